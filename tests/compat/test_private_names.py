"""Private names of PyTorch's layers, optimizers and distributions that libraries import: they are there, and do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import calque
calque.install_as_torch(children=False)
import torch
from torch._compile import _disable_dynamo
from torch._jit_internal import _copy_to_script_wrapper
from torch.distributions.kl import _KL_REGISTRY
from torch.distributions.multivariate_normal import _batch_mahalanobis, _batch_mv
from torch.distributions.transforms import _InverseTransform
from torch.distributions.utils import _standard_normal, _sum_rightmost
from torch.nn.init import _calculate_correct_fan, _calculate_fan_in_and_fan_out, _no_grad_trunc_normal_
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.modules.module import Module, register_module_forward_hook
from torch.nn.modules.rnn import RNNCellBase
from torch.nn.modules.transformer import _get_activation_fn, _get_clones
from torch.nn.utils import prune
from torch.optim.lr_scheduler import LRScheduler, _LRScheduler
import torch.utils._foreach_utils
from torch.nn.modules.transformer import LayerNorm, MultiheadAttention
from torch.utils.data.dataloader import Dataset, RandomSampler, Sampler
from torch.optim.optimizer import Optimizer, ParamsT, _get_value, _use_grad_for_differentiable, required

assert _copy_to_script_wrapper(len) is len and torch._disable_dynamo is _disable_dynamo
assert _disable_dynamo(len)([1]) == 1 and _disable_dynamo(recursive=False)(len)([1]) == 1
assert torch.utils._foreach_utils._foreach_supported_types == [torch.Tensor]
assert (LayerNorm, MultiheadAttention) == (torch.nn.LayerNorm, torch.nn.MultiheadAttention)
assert (Dataset, Sampler, RandomSampler) == (torch.utils.data.Dataset, torch.utils.data.Sampler, torch.utils.data.RandomSampler)
assert not isinstance(torch.ones(1), torch.masked.MaskedTensor) and not torch.masked.is_masked_tensor(torch.ones(1))
assert issubclass(_LRScheduler, LRScheduler) or _LRScheduler is LRScheduler
assert (torch.distributions.Normal, torch.distributions.Normal) in _KL_REGISTRY and Module is torch.nn.Module
assert isinstance(torch.distributions.ExpTransform().inv, _InverseTransform)
assert _calculate_fan_in_and_fan_out(torch.ones(3, 4)) == (4, 3) and _calculate_correct_fan(torch.ones(3, 4), "fan_out") == 3
import inspect
for kind in (torch.optim.Adam, torch.optim.SGD, torch.nn.Conv2d, torch.nn.LSTM, torch.optim.lr_scheduler.OneCycleLR):  # as torchtuples looks for `lr`
    wanted = [p.name for p in inspect.signature(kind.__init__).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    assert set(wanted) <= set(kind.__init__.__code__.co_varnames) and len(wanted) >= (1 if kind is torch.nn.LSTM else 4)

class Factorized(torch.nn.Module):  # as tltorch's, whose weight has a shape and no memory of it
    shape = (3, 4, 5)

assert _calculate_fan_in_and_fan_out(Factorized()) == (20, 15)
assert _sum_rightmost(torch.ones(2, 3), 1).tolist() == [3.0, 3.0]
assert _batch_mv(torch.eye(2), torch.ones(2)).tolist() == [1.0, 1.0] and _batch_mahalanobis(2 * torch.eye(2), torch.ones(2)).item() == 0.5
assert _standard_normal((2,), torch.float64, "cpu").dtype is torch.float64
clones = _get_clones(NonDynamicallyQuantizableLinear(1, 1), 2)
assert clones[0].weight is not clones[1].weight and _get_activation_fn("relu")(torch.tensor(-1.0)).item() == 0.0
w = torch.ones(100)
_no_grad_trunc_normal_(w, 0.0, 1.0, -0.5, 0.5)
assert w.abs().max() <= 0.5 and _get_value(torch.tensor(2.0)) == 2.0

class Own(Optimizer):
    def __init__(self, params: ParamsT, lr=required):
        super().__init__(params, {"lr": lr, "differentiable": False})

    @_use_grad_for_differentiable
    def step(self, closure=None):
        self._cuda_graph_capture_health_check()
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])

p = torch.ones(2, requires_grad=True)
p.sum().backward()
Own([p], lr=0.5).step()
assert p.tolist() == [0.5, 0.5]

layer, first, second = torch.nn.BatchNorm1d(2), torch.nn.Parameter(torch.ones(2)), torch.zeros(3)
replica = layer._replicate_for_data_parallel()
replica.weight, replica.bias = layer.weight * 2, layer.bias * 1
assert type(replica) is type(layer) and replica._is_replica and not list(replica.parameters()) and len(list(replica.buffers())) == 3
assert replica(torch.ones(4, 2)).shape == (4, 2) and len(list(layer.parameters())) == 2
x = torch.ones(2)
assert x._cdata == x._cdata != x.detach()._cdata and second._cdata == second._cdata
assert x.untyped_storage()._cdata == x[1:].untyped_storage()._cdata != second.untyped_storage()._cdata
first.grad, second.note, held = torch.ones(2), "mine", first
torch.utils.swap_tensors(first, second)
assert held is first and type(first) is torch.Tensor and first.tolist() == [0.0] * 3 and first.note == "mine" and first.grad is None
assert type(second) is torch.nn.Parameter and second.requires_grad and second.grad.tolist() == [1.0, 1.0] and not hasattr(second, "note")
for tensors in ((torch.ones(2, requires_grad=True) * 2, second), (torch.ones(2), torch.ones(2)[:1])):
    try:
        torch.utils.swap_tensors(*tensors)
    except RuntimeError:
        continue
    assert False
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
held = torch.nn.Sequential(torch.nn.Linear(1, 1)).state_dict()
consume_prefix_in_state_dict_if_present(held, "0.")
assert list(held) == ["weight", "bias"] and list(held._metadata) == [""]
consume_prefix_in_state_dict_if_present(held, "none.")
assert list(held) == ["weight", "bias"]
memory = torch.ones(3).storage()
assert isinstance(memory, torch.TypedStorage) and not isinstance(memory, torch.UntypedStorage) and isinstance(memory.untyped(), torch.UntypedStorage)
with torch.backends.__allow_nonbracketed_mutation():
    torch.backends.cudnn.deterministic = True
assert torch.backends.cudnn.deterministic and not torch.backends.flags_frozen()
from torchvision.models._utils import IntermediateLayerGetter, _make_divisible
layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1), torch.nn.Tanh())
getter = IntermediateLayerGetter(layers, {"0": "first", "2": "last"})
found = getter(torch.ones(4, 2))
assert list(getter) == ["0", "1", "2"] and list(found) == ["first", "last"] and torch.equal(found["last"], layers[2](found["first"].relu()))
try:
    IntermediateLayerGetter(layers, {"0": "first", "9": "none"})
    assert False
except ValueError as error:
    assert "return_layers are not present in model" in str(error) and "got '9'" in str(error)
assert [_make_divisible(n, 8) for n in (3, 13, 37)] == [8, 16, 40] and _make_divisible(3, 8, 1) == 9 and _make_divisible(11, 8, 16) == 16
"""


def test_private_names_that_libraries_import() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_objects_of_any_class_are_saved_by_name_and_not_read(tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(
        "import collections, enum, pickle, sys, torch, zipfile\n"
        "class Kind(enum.Enum):\n    ONE = 1\n"
        "class Settings:\n    def __init__(self):\n"
        "        self.rate, self.kind, self.counts, self.w = 0.1, Kind.ONE, collections.Counter('ab'), torch.ones(2)\n"
        "torch.save(Settings(), sys.argv[1])\n"
        "try:\n    torch.load(sys.argv[1], weights_only=False)\nexcept Exception as error:\n    print('refused', '__main__.Settings' in str(error))\n"
        "text = zipfile.ZipFile(sys.argv[1]).read('archive/data.pkl')\n"
        "class Reader(pickle.Unpickler):\n"
        "    def persistent_load(self, name): return name\n"
        "    def find_class(self, module, name): return (lambda *a: a) if module.startswith('torch') else super().find_class(module, name)\n"
        "import io\nfound = Reader(io.BytesIO(text)).load()\nprint(found.rate, found.kind, dict(found.counts), type(found).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-m", "calque", "run", str(script), str(tmp_path / "x.bin")], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["refused True", "0.1 Kind.ONE {'a': 1, 'b': 1} Settings"], done.stderr
