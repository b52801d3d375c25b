"""Functions of neural networks, under PyTorch's names and signatures: `import calque.nn.functional as F`."""

from calque.functional.blame import public as _public
from calque.nn.functional.activation import *  # noqa: F403
from calque.nn.functional.attention import *  # noqa: F403
from calque.nn.functional.conv import *  # noqa: F403
from calque.nn.functional.cross_entropy import *  # noqa: F403
from calque.nn.functional.distance import *  # noqa: F403
from calque.nn.functional.dropout import *  # noqa: F403
from calque.nn.functional.embedding import *  # noqa: F403
from calque.nn.functional.linear import *  # noqa: F403
from calque.nn.functional.loss import *  # noqa: F403
from calque.nn.functional.norm import *  # noqa: F403
from calque.nn.functional.padding import *  # noqa: F403
from calque.nn.functional.pooling import *  # noqa: F403
from calque.nn.functional.softmax import *  # noqa: F403
from calque.nn.functional.vision import *  # noqa: F403

globals().update(_public(globals(), __name__))
