"""`torch.utils.data` names; see `calque.data`, where those that load on first use come from, too."""

from calque.data import (
    BatchSampler as BatchSampler,
)
from calque.data import (
    ChainDataset as ChainDataset,
)
from calque.data import (
    ConcatDataset as ConcatDataset,
)
from calque.data import (
    DataLoader as DataLoader,
)
from calque.data import (
    Dataset as Dataset,
)
from calque.data import (
    IterableDataset as IterableDataset,
)
from calque.data import (
    RandomSampler as RandomSampler,
)
from calque.data import (
    Sampler as Sampler,
)
from calque.data import (
    SequentialSampler as SequentialSampler,
)
from calque.data import (
    StackDataset as StackDataset,
)
from calque.data import (
    Subset as Subset,
)
from calque.data import (
    SubsetRandomSampler as SubsetRandomSampler,
)
from calque.data import (
    TensorDataset as TensorDataset,
)
from calque.data import (
    WeightedRandomSampler as WeightedRandomSampler,
)
from calque.data import (
    WorkerInfo as WorkerInfo,
)
from calque.data import __all__ as __all__
from calque.data import __getattr__ as __getattr__
from calque.data import (
    default_collate as default_collate,
)
from calque.data import (
    default_convert as default_convert,
)
from calque.data import (
    get_worker_info as get_worker_info,
)
from calque.data import (
    random_split as random_split,
)
