"""What stands behind PyTorch's names: the faces of modules, and the names that only programs written for PyTorch ask for."""

from __future__ import annotations

import pkgutil
from collections import OrderedDict, namedtuple
from typing import Any

import pytest

import calque
import calque.compat.torch
from calque.base.text import type_name
from calque.compat import missing
from calque.compat.face import Face, face
from calque.compat.handed_on import HANDED_ON, OURS, own_module
from calque.compat.torch.torch_version import TorchVersion

torch: Any = face("torch")
IN_THE_FOLDER = [found.name.removeprefix(OURS) for found in pkgutil.walk_packages(calque.compat.torch.__path__, "calque.compat.torch.")]


@pytest.mark.parametrize("path", ["torch", *IN_THE_FOLDER, *HANDED_ON])
def test_every_module_of_ours_has_what_it_lists(path: str) -> None:
    module: Any = own_module(path)
    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    assert isinstance(found, Face) and found.__name__ == path
    assert len(set(module.__all__)) == len(module.__all__)
    for listed in module.__all__:
        assert hasattr(module, listed) and hasattr(found, listed), listed
    assert set(module.__all__) <= set(dir(found))


def test_asking_for_missing_names_lists_the_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listings: list[str] = []
    names = Face.__dir__
    monkeypatch.setattr(Face, "__dir__", lambda self: listings.append(self.__name__) or names(self))
    assert not any(hasattr(torch.nn.utils, f"nobody_has_{k}") for k in range(5)) and len(listings) <= 1


def test_names_of_inner_modules_are_those_of_the_outer_ones() -> None:
    assert torch.nn.modules.batchnorm.BatchNorm2d is calque.nn.BatchNorm2d is torch.nn.BatchNorm2d
    assert torch.optim.sgd.SGD is calque.optim.SGD and torch.utils.data.dataloader.DataLoader is calque.data.DataLoader
    assert torch.cuda.amp.grad_scaler.GradScaler is torch.cuda.amp.GradScaler
    assert not hasattr(torch.nn.modules.batchnorm, "Linear")
    assert torch.utils.data.DataLoader is calque.utils.data.DataLoader


def test_inner_modules_of_calque_are_not_names_of_torch() -> None:
    for name in ("base", "kernel", "run", "ops_", "compat", "train", "cli", "tensor_"):
        assert not hasattr(torch, name), name
    with pytest.raises(AttributeError, match=r"\[torch\.kernel\] expected a name of PyTorch or Calque, got one that neither has"):
        torch.kernel  # noqa: B018


def test_settings_are_written_through() -> None:
    before = calque.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    assert calque.backends.cudnn.benchmark is True
    with torch.backends.cudnn.flags(enabled=False, benchmark=False):
        assert not torch.backends.cudnn.enabled and not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.enabled and torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before
    with torch.backends.cuda.sdp_kernel(enable_flash=False):
        assert not torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()
    with pytest.raises(AttributeError, match="expected one of the settings"):
        torch.backends.cudnn.bench = True
    torch._dynamo.config.cache_size_limit = 64
    with torch._dynamo.config.patch(cache_size_limit=1, suppress_errors=True):
        assert (torch._dynamo.config.cache_size_limit, torch._dynamo.config.suppress_errors) == (1, True)
    assert (torch._dynamo.config.cache_size_limit, torch._dynamo.config.suppress_errors) == (64, False)
    with pytest.raises(AttributeError, match="expected a setting that was set before"):
        torch._dynamo.config.nonsense  # noqa: B018


def test_versions_compare_by_numbers() -> None:
    version = TorchVersion("2.13.0+calque")
    assert version > "2.9" and version >= (1, 13) and not version < (2, 13) and version > "2.13.0" and version != "2.12"
    assert TorchVersion("2.1.0") == "2.1" and TorchVersion("2.1.0a1") < "2.1" < TorchVersion("2.1.0.post1")
    assert version.split(".")[:2] == ["2", "13"] and version.startswith("2.13")


def test_marks_change_nothing() -> None:
    def f(x: int) -> int:
        return x + 1

    for mark in (torch.jit.unused, torch.jit.ignore, torch.jit.export, torch.compiler.disable, torch._dynamo.disable, torch.compiler.allow_in_graph):
        assert mark(f) is f
    assert torch.jit.ignore(drop=True)(f) is f and torch.compiler.disable(recursive=False)(f) is f
    assert not torch.jit.is_scripting() and not torch.jit.is_tracing() and not torch.compiler.is_compiling()
    assert torch.jit.annotate(list[int], [1]) == [1]
    assert torch.jit.isinstance([1, 2], list[int]) and not torch.jit.isinstance([1, "a"], list[int])
    assert torch.jit.isinstance({"a": calque.ones(1)}, dict[str, calque.Tensor]) and torch.jit.isinstance(None, int | None)
    assert torch.jit.wait(torch.jit.fork(f, 2)) == 3
    with pytest.raises(AssertionError, match="told"):
        torch._assert(False, "told")
    with pytest.raises(ValueError, match="told"):
        torch._check_value(False, lambda: "told")

    @torch.jit.script
    class Pair:
        pass

    assert isinstance(Pair, type)


def test_devices_that_are_not_there_say_so() -> None:
    assert not torch.cuda.is_available() and torch.cuda.device_count() == 0 and torch.cuda.memory_allocated() == 0
    assert torch.accelerator.current_accelerator() is None and not torch.xpu.is_available() and not torch.mps.is_available()
    for call in (torch.cuda.get_device_name, torch.cuda.Stream, torch.mps.synchronize, torch.xpu.mem_get_info, torch.cuda.nvtx.range_pop):
        with pytest.raises(calque.base.errors.DeviceError, match="device"):
            call()
    assert not hasattr(torch.cuda, "nonsense")
    assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
    for make in (lambda: torch.cuda.FloatTensor(2), lambda: torch.ones(1).type("torch.cuda.LongTensor")):
        with pytest.raises(RuntimeError, match="expected a device that exists"):
            make()
    with pytest.warns(UserWarning, match="CUDA is not available"), torch.cuda.amp.autocast():
        assert not calque.is_autocast_enabled("cpu")


def test_refused_functions_say_what_to_use() -> None:
    with pytest.raises(NotImplementedError, match=r"\[torch\.onnx\.register_custom_op_symbolic\].*ONNX model"):
        torch.onnx.register_custom_op_symbolic("a::b", None, 9)
    with pytest.raises(NotImplementedError, match=r"\[torch\.onnx\.export\] expected options that Calque has, got nonsense"):
        torch.onnx.export(None, None, "x.onnx", nonsense=1)
    with pytest.raises(NotImplementedError, match="cpp_extension"):
        torch.utils.cpp_extension.load(name="x", sources=[])
    assert not torch.distributed.is_initialized() and not torch.onnx.is_in_onnx_export()
    assert not isinstance(calque.nn.Linear(1, 1), torch.nn.parallel.DistributedDataParallel)
    assert torch.nn.parallel.DistributedDataParallel is calque.nn.parallel.DistributedDataParallel


def test_trees() -> None:
    pytree = torch.utils._pytree
    Point = namedtuple("Point", "x y")
    tree = {"a": [1, (2, 3)], "b": Point(4, None), "c": OrderedDict(z=5)}
    leaves, spec = pytree.tree_flatten(tree)
    assert leaves == [1, 2, 3, 4, None, 5] and spec.num_leaves == 6
    assert pytree.tree_unflatten(leaves, spec) == tree
    assert pytree.tree_map(lambda x: x and x * 2, tree)["b"] == Point(8, None)
    assert pytree.tree_map(lambda a, b: a + b, [1, {"k": 2}], [10, {"k": 20}]) == [11, {"k": 22}]
    assert pytree.tree_map_only(int, str, ["a", 1]) == ["a", "1"]
    assert [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(tree)] == [
        "['a'][0]", "['a'][1][0]", "['a'][1][1]", "['b'].x", "['b'].y", "['c']['z']"
    ]  # fmt: skip
    with pytest.raises(ValueError, match="expected 6 leaves"):
        pytree.tree_unflatten([1], spec)


def test_operators_that_programs_define() -> None:
    @torch.library.custom_op("calque_test::scale", mutates_args=())
    def scale(x: calque.Tensor, factor: float) -> calque.Tensor:
        return x.detach() * factor

    scale.register_autograd(lambda ctx, grad: (grad * ctx.factor, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]))
    x = calque.ones(2, requires_grad=True)
    torch.ops.calque_test.scale(x, 3.0).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]
    assert torch.ops.calque_test.scale.default(x, factor=2.0).tolist() == [2.0, 2.0]
    library = torch.library.Library("calque_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="a definition alone"):
        torch.ops.calque_test.twice(x)
    library.impl("twice", lambda x: x * 2, "CPU")
    assert torch.ops.calque_test.twice(x).tolist() == [2.0, 2.0]
    assert torch.ops.aten.relu.default(calque.tensor([-1.0, 1.0])).tolist() == [0.0, 1.0]
    assert not hasattr(torch.ops.torchvision, "nms")


def test_the_list_of_names_is_read_once_somebody_asks() -> None:
    names = missing.pytorch_names()
    assert {"torch", "torch.nn", "torch.Tensor", "torch.nn.Module"} <= set(names) and "conv2d" in names["torch.nn.functional"]
    assert missing.pytorch_has("torch", "fft") and missing.pytorch_has("torch.utils", "data") and not missing.pytorch_has("torch", "compat")


def test_hub_and_deterministic_modes(tmp_path: Any) -> None:
    (tmp_path / "hubconf.py").write_text("dependencies = ['nowhere_at_all']\ndef f():\n    'Told.'\n    return 1\n")
    with pytest.raises(RuntimeError, match="nowhere_at_all"):
        torch.hub.load(str(tmp_path), "f", source="local")
    with pytest.raises(ValueError, match="source='local'"):
        torch.hub.load("owner/repository", "f")
    torch.set_deterministic_debug_mode("warn")
    assert torch.get_deterministic_debug_mode() == 1
    torch.set_deterministic_debug_mode(0)
    torch.set_default_tensor_type(torch.DoubleTensor)
    assert calque.zeros(1).dtype is calque.float64
    torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.typename(calque.zeros(1)) == "torch.FloatTensor"


def test_functions_over_lists() -> None:
    values = [calque.ones(2), calque.zeros(3)]
    torch._foreach_mul_(values, scalar=2.0)
    torch._foreach_add_(values, [calque.ones(2), calque.ones(3)], alpha=3.0)
    assert [v.tolist() for v in values] == [[5.0, 5.0], [3.0, 3.0, 3.0]] and hasattr(torch, "_foreach_lerp_")
    assert not hasattr(torch, "_foreach_nothing")


def test_texts_name_tensors_the_same_way_wherever_torch_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of their class is another one then. Where another torch may be imported it is not: pickles would name its classes."""
    assert calque.Tensor.__module__ == "calque.tensor"
    monkeypatch.setattr(calque.Tensor, "__module__", "torch")
    monkeypatch.setattr(calque.nn.Parameter, "__module__", "torch.nn.parameter")
    assert type_name(calque.ones(1)) == "Tensor" and type_name(calque.nn.Parameter(calque.ones(1))) == "Parameter"
