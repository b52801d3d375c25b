"""Names that libraries of graphs, probabilities, attributions and privacy look up while they are imported."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import threading
import calque
calque.install_as_torch(children=False)
import torch
import pytest

# Modules for one class each have what they need of their package; others have nothing of it.
from torch.distributions.multivariate_normal import Distribution
assert Distribution is torch.distributions.Distribution and not hasattr(torch.nn.functional, "Linear")
from torch.nn.modules.conv import Module
from torch.nn import _reduction
assert Module is torch.nn.Module and [_reduction.get_enum(n) for n in ("none", "mean", "sum")] == [0, 1, 2]
assert [_reduction.legacy_get_enum(a, r, False) for a, r in ((None, None), (False, None), (None, False), (True, True))] == [1, 2, 0, 1]
assert torch.quasirandom.SobolEngine.MAXBIT == 30
x, w = torch.arange(24.0).reshape(1, 2, 3, 4), torch.ones(2, 3, 2, 2)
one = torch.ops.aten._convolution(x, w.transpose(0, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, False)
assert torch.equal(one, torch.nn.functional.conv2d(x, w.transpose(0, 1)))
two = torch.ops.aten.convolution(x, w, None, [2, 1], [1, 0], [1, 1], True, [1, 0], 1)
assert torch.equal(two, torch.nn.functional.conv_transpose2d(x, w, None, (2, 1), (1, 0), (1, 0)))

# Libraries choose functions by the module of a class (autoray, opt_einsum).
import pickle
assert {kind.__module__.split(".")[0] for kind in (torch.Tensor, torch.nn.Parameter)} == {"torch"} and str(torch.Tensor) == "<class 'torch.Tensor'>"
assert type(pickle.loads(pickle.dumps(torch.nn.Parameter(torch.ones(1))))) is torch.nn.Parameter
class Asked(torch.Tensor):
    seen = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})
assert type(torch.ones(2).as_subclass(Asked) + 1) is Asked and "add" in Asked.seen

# A library goes through the classes of a module by its dictionary.
kinds = [kind for kind in vars(torch.distributions).values() if isinstance(kind, type) and issubclass(kind, torch.distributions.Distribution)]
assert torch.distributions.Bernoulli in kinds and len(kinds) > 30
assert "Future" in torch.futures.__dict__

# Operators as keys of a table, one key for each form.
aten, x = torch.ops.aten, torch.arange(6.0).reshape(2, 3)
assert aten.sort.stable is aten.sort.stable and aten.sort.stable is not aten.sort.default
assert aten.add.Tensor(x, x).tolist() == (2 * x).tolist() and aten.slice.Tensor(x, 1, 0, 2).tolist() == [[0.0, 1.0], [3.0, 4.0]]
assert aten.index.Tensor(x, [None, torch.tensor([2])]).tolist() == [[2.0], [5.0]] and aten._to_copy.default(x, dtype=torch.int64).dtype is torch.int64
assert aten.alias.default(x).data_ptr() == x.data_ptr() and aten.add_.Tensor(x.clone(), 1.0)[0, 0].item() == 1.0
with pytest.raises(NotImplementedError, match="sparse"):
    aten._sparse_addmm.default(x, x, x)
assert not hasattr(torch.ops.aten, "no_such_operator")

# Futures: set by one thread, awaited by another, chained, gathered.
first, second = torch.futures.Future(), torch.futures.Future()
following = first.then(lambda f: f.value() + 1)
both = torch.futures.collect_all([first, second])
threading.Thread(target=lambda: (first.set_result(1), second.set_exception(KeyError("k")))).start()
assert following.wait() == 2 and [f.done() for f in both.wait()] == [True, True] and torch.futures.wait_all([first, following]) == [1, 2]
with pytest.raises(KeyError):
    torch.futures.wait_all([first, second])
with pytest.raises(RuntimeError, match="set once"):
    first.set_result(2)
with pytest.raises(RuntimeError, match="call wait"):
    torch.futures.Future().value()
with pytest.raises(AssertionError, match="exception"):
    torch.futures.Future().set_exception(3)
assert torch.futures.collect_all([]).wait() == [] and torch.jit.wait(torch.jit.fork(max, 1, 2)) == 2
called = []
first.add_done_callback(lambda f: called.append(f.value()))
assert called == [1]

from torch._tensor_str import PRINT_OPTS, _add_suffixes, _tensor_str
assert _tensor_str(torch.ones(2), 0) == "[1., 1.]" and _tensor_str(torch.ones(0), 0) == "[]"
assert _add_suffixes("Index([0]", ["dim_size=3"], 6, force_newline=False) == "Index([0], dim_size=3)" and PRINT_OPTS.linewidth == 80
assert _add_suffixes("Index([0]", ["dim_size=3"], 6, force_newline=True).count(chr(10)) == 1
from torch.utils.data._utils.collate import default_collate
from torch.utils.data.dataloader import _collate_fn_t, _worker_init_fn_t
assert default_collate is torch.utils.data.default_collate
rows, columns = torch.tensor([0, 0, 2, 3, 3, 3]), torch.tensor([1, 2, 0, 0, 1, 2])
begins = torch._convert_indices_from_coo_to_csr(rows, 5, out_int32=False)
assert begins.tolist() == [0, 2, 2, 3, 6, 6] and torch._convert_indices_from_coo_to_csr(rows, 5, out_int32=True).dtype is torch.int32
assert torch._convert_indices_from_csr_to_coo(begins, columns).tolist() == [rows.tolist(), columns.tolist()]
from torch.distributed import rpc
from torch.distributed._composable.fsdp import FSDPModule
from torch.distributed._tensor import Replicate
from torch.distributed._tensor.experimental import implicit_replication
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
assert not rpc.is_available() and not isinstance(torch.nn.Linear(1, 1), (FSDPModule, FullyShardedDataParallel)) and Replicate is not None

# Checks are written down where a graph is traced, and stay in it; they say no when it runs.
def checked(x):
    torch._assert(x.shape[-1] == 3, "three are wanted")
    return x * 2
by_hand = torch.fx.Graph()
by_hand.output(checked(torch.fx.Proxy(by_hand.placeholder("x"))).node)
for graph in (by_hand, torch.fx.symbolic_trace(checked).graph):
    assert not graph.eliminate_dead_code() and [n.target for n in graph.nodes].count(torch._assert) == 1
    module = torch.fx.GraphModule({}, graph)
    assert module(torch.ones(3)).tolist() == [2.0] * 3 and module(torch.ones(2, 3)).shape == (2, 3)
    with pytest.raises(AssertionError, match="three are wanted"):
        module(torch.ones(4))
torch._assert(torch.tensor(True), "is true")
with pytest.raises(AssertionError, match="is not"):
    torch._assert(torch.tensor(False), "is not")

from torch.utils.tensorboard.writer import SummaryWriter
assert torch.utils.tensorboard.SummaryWriter is SummaryWriter
from torch.distributed.autograd import DistAutogradContext, context, get_gradients
assert not torch.distributed.autograd.is_available()
with pytest.raises(NotImplementedError, match="docs/distributed.md"):
    get_gradients(0)
from torch.distributions import constraints
assert isinstance(torch.distributions.Normal(0.0, 1.0).support, constraints._Real) and constraints._IndependentConstraint is constraints.independent
from torch.utils.data._utils import collate
assert collate.collate_tensor_fn([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]] and collate.collate_str_fn(["a", "b"]) == ["a", "b"]
assert collate.collate_float_fn([1.0, 2.0]).dtype is torch.float64 and collate.collate_int_fn([1, 2]).tolist() == [1, 2]
for name, module in list(sys.modules.items()):
    if name.startswith("torch") and isinstance(module, type(sys)):
        assert len(vars(module)) > 3, name  # all names that are listed are there
"""


def test_names_that_libraries_ask_for_at_import() -> None:
    found = subprocess.run([sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
