"""What annotations and names of parameters ask for, as tests of arguments: by them `blame.py` finds the one that an error is about."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from types import EllipsisType, GeneratorType, ModuleType, NotImplementedType
from typing import Any

import numpy as np

from calque.base.device import Device
from calque.base.dtypes import DType
from calque.functional.common import is_number, is_tensor


def is_int(x: Any) -> bool:
    """An int, a NumPy one, or an integer Tensor of one element."""
    if is_tensor(x):
        return x._layout.numel == 1 and x._layout.dtype.category < 2  # type: ignore[no-any-return]
    if isinstance(x, np.ndarray):
        return not x.ndim and x.dtype.kind in "iu"
    return hasattr(x, "__index__") and not isinstance(x, type)


def is_real(x: Any) -> bool:
    """A number or a Tensor of one element."""
    return is_number(x) or (is_tensor(x) and x._layout.numel == 1) or is_int(x)


def many(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test of a tuple or list of such things."""
    return lambda x: isinstance(x, (tuple, list)) and all(test(v) for v in x)


def each(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test of something with such things inside. What can be walked through only once is taken to be right."""

    def holds(x: Any) -> bool:
        if not isinstance(x, Iterable) or getattr(x, "ndim", 1) == 0:
            return False
        return not isinstance(x, Sized) or all(test(v) for v in x)

    return holds


def either(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test that any of the tests holds."""
    return lambda x: any(test(x) for test in tests)


def nothing(x: Any) -> bool:
    """None."""
    return x is None


def has(*names: str) -> Callable[[Any], bool]:
    """A test that something has these attributes: of classes that stand above this layer."""
    return lambda x: all(hasattr(x, name) for name in names) and not isinstance(x, type)


def _has_bytes(x: Any) -> bool:
    try:
        return bool(memoryview(x).contiguous)
    except (TypeError, ValueError, BufferError):
        return False


# Annotation -> (what it is called, whether an argument is one).
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "Tensor": ("a Tensor", is_tensor),
    "Operand": ("a Tensor or a number", either(is_tensor, is_number)),
    "Tensors": ("a Tensor", either(is_tensor, many(is_tensor))),
    "Sequence[Tensor]": ("a tuple or list of Tensors", many(is_tensor)),
    "int": ("an int", is_int),
    "float": ("a number", is_real),
    "bool": ("a bool", lambda x: isinstance(x, (bool, int, np.bool_))),
    "str": ("a str", lambda x: isinstance(x, str)),
    "Sequence[int]": ("a tuple or list of ints", many(is_int)),
    "Sizes": ("an int or a tuple of ints", either(is_int, many(is_int))),
    "Dims": ("an int, a tuple of ints or None", either(nothing, is_int, many(is_int))),
    "DType": ("a dtype", lambda x: isinstance(x, (DType, type, np.dtype))),
    "Shape": ("ints", either(is_int, many(is_int))),
    "Generator": ("a Generator", has("manual_seed", "get_state", "take")),
    "Module": ("a Module", has("state_dict", "_modules")),
    "Optimizer": ("an Optimizer", has("param_groups", "state_dict")),
    "LRScheduler": ("a learning rate scheduler", has("get_last_lr", "step")),
    "PackedSequence": ("a PackedSequence", has("batch_sizes", "data")),
    "Device": ("a device", either(lambda x: isinstance(x, (str, Device)), is_int)),
    "os.PathLike": ("a path", lambda x: isinstance(x, os.PathLike)),
    "Size": ("ints", either(is_int, many(is_int))),
    "Distribution": ("a Distribution", has("log_prob", "batch_shape")),
    "Transform": ("a Transform", has("log_abs_det_jacobian", "inv")),
    "Constraint": ("a Constraint", has("check", "event_dim")),
    "Figure": ("a Figure of matplotlib's, or a list of them", either(has("savefig"), many(has("savefig")))),
    "_Folder": ("a str or a path", lambda x: isinstance(x, (str, os.PathLike))),
    "Image": ("an image: a Tensor, an array or one of Pillow's", lambda x: getattr(x, "ndim", 0) > 0 or has("mode", "size")(x)),
    "Proxy": ("a Proxy", has("node", "tracer")),
    "Node": ("a Node", has("op", "target")),
    "Graph": ("a Graph", has("create_node", "nodes")),
    "GraphModule": ("a GraphModule", has("graph", "state_dict")),
    "Dataset": ("a dataset with __getitem__ or __iter__", lambda x: hasattr(x, "__getitem__") or hasattr(x, "__iter__")),
    "tuple[int, ...]": ("a tuple of ints", many(is_int)),
    "Sequence[Callable]": ("a tuple or list of functions", many(callable)),
    "Sequence[Transform]": ("a tuple or list of Transforms", many(has("log_abs_det_jacobian", "inv"))),
    "Sequence[Constraint]": ("a tuple or list of Constraints", many(has("check", "event_dim"))),
    "Callable": ("a function", lambda x: callable(x) and not (isinstance(x, type) and hasattr(x, "load_state_dict"))),
    "Mapping": ("a dict", lambda x: isinstance(x, Mapping)),
    "dict": ("a dict", lambda x: isinstance(x, dict)),
    "Iterable": ("something to walk through", lambda x: isinstance(x, Iterable)),
    "Sequence": ("a sequence", lambda x: has("__getitem__", "__len__")(x) and getattr(x, "ndim", 1) > 0),
    "list": ("a list", lambda x: isinstance(x, list)),
    "tuple": ("a tuple", lambda x: isinstance(x, tuple)),
    "Iterable[Tensor]": ("Tensors", either(is_tensor, each(is_tensor))),
    "Iterable[Parameter]": ("Parameters", either(is_tensor, each(is_tensor))),
    "Iterable[Module]": ("Modules", each(has("state_dict", "_modules"))),
    "Buffer": ("an object with bytes, such as bytes or an array", _has_bytes),
    "Iterable[int]": ("ints", each(is_int)),
    "Iterable[float]": ("numbers", each(is_real)),
    "Sequence[float]": ("a tuple or list of numbers", many(is_real)),
}

# What parameters of these names are wherever their annotation says no more than `Any`.
CONVENTIONS = {
    name: kind
    for kind, names in {
        "DType | None": "dtype out_dtype", "Device | None": "device output_device target_device", "Generator | None": "generator",
        "bool | None": "size_average reduce", "Module": "module model network layer parametrization", "Buffer": "buffer", "Optimizer": "optimizer",
        "Callable": "hook fn func function",
        "Tensor | None": "out weight bias running_mean running_var pos_weight attn_mask key_padding_mask src_mask tgt_mask memory_mask _weight "
        "offsets src_key_padding_mask tgt_key_padding_mask memory_key_padding_mask mask in_proj_weight in_proj_bias out_proj_bias bias_k bias_v "
        "q_proj_weight k_proj_weight v_proj_weight static_k static_v per_sample_weights covariance_matrix precision_matrix scale_tril",
        "Sizes | str | None": "kernel_size stride padding dilation output_size output_padding size normalized_shape", "int | float": "momentum",
        "Sizes | float | Sequence[float] | None": "scale_factor", "Iterable[Tensor]": "parameters", "Iterable[Module]": "modules",
        "Sequence[int] | Tensor": "lengths", "Tensors": "inputs",
        "Tensor | float | int": "alpha beta value fill_value p ord s start end step scalar_value",
        "Mapping | Sequence": "parameter_and_buffer_dicts",
        "Shape": "shape dims repeats",
        "Callable | None": "distance_function closure callable transform target_transform window_fn",
        "tuple[int, ...]": "batch_shape event_shape in_shape out_shape", "Size": "sample_shape", "Constraint": "constraint base_constraint",
        "Distribution": "base_distribution base_dist mixture_distribution component_distribution",
        "Tensor | float | int | None": "probs logits", "Tensor | float": "lower_bound upper_bound df loc scale rate concentration concentration0 "
        "concentration1 low high total_count zero_point temperature",
        "Tensor": "x y", "Image": "img image inpt pic img_tensor", "dict": "state_dict",
        "str | os.PathLike": "path filename folder github repo_or_dir", "Figure": "figure", "Sequence[Callable] | Module | None": "transforms",
        "float | Sequence[float] | Tensor | None": "fill degrees brightness contrast saturation hue sigma", "str | Sequence": "seq1 seq2",
        "Sequence[int] | int | Tensor": "indices_or_sections split_size_or_sections split_size indices sections",
        "Tensor | float | None": "atol rtol correction", "int": "num_samples num_layers",
    }.items()
    for name in names.split()
}  # fmt: skip


def kind_of(annotation: Any) -> tuple[str, Callable[[Any], bool]] | None:
    """What an annotation asks for, if it is one of `KINDS` or several of them."""
    text = getattr(annotation, "__name__", str(annotation))
    parts = [part.strip(" '").removeprefix("dt.").removeprefix("nn.") for part in _ALTERNATIVES.split(text)]
    parts = [part if part in KINDS else part.partition("[")[0] for part in parts]
    found = [KINDS[part] for part in parts if part in KINDS]
    if len(found) < len([part for part in parts if part != "None"]):
        return None
    tests = [test for _, test in found] + [nothing] * ("None" in parts)
    return " or ".join([name for name, _ in found] + ["None"] * ("None" in parts)), either(*tests)


def kind_for(name: str, parameter: inspect.Parameter) -> tuple[str, Callable[[Any], bool]] | None:
    """What a parameter asks for, by its annotation or, if that says no more than `Any` or is not one of `KINDS`, by its name."""
    unsaid = parameter.annotation in ("Any", parameter.empty) or parameter.annotation is Any
    found = None if unsaid else kind_of(parameter.annotation)
    return found or kind_of(CONVENTIONS.get(name, "Any"))


def as_in_pytorch(function: Callable[..., Any]) -> bool:
    """Whether a function is one of PyTorch's, whose errors about kinds are TypeErrors; classes say themselves what they are made of."""
    module, name = (getattr(function, word, None) or "" for word in ("__module__", "__name__"))  # generated functions have neither
    return module.startswith(("calque.functional", "calque.nn")) and name != "__init__"


def sure_kind(name: str, parameter: inspect.Parameter) -> tuple[str, Callable[[Any], bool]] | None:
    """What a parameter asks for by its annotation alone. Of texts nothing: whatever is compared with the names that there are is none of them."""
    found = kind_of(parameter.annotation)
    return None if found is None or "a str" in found[0] else found


_ALTERNATIVES = re.compile(r"\|(?![^\[]*\])")  # not those inside of brackets


_FOREIGN = (ModuleType, EllipsisType, NotImplementedType, GeneratorType, Iterator, slice, set, frozenset, bytes, type, DType, np.dtype)


def foreign(value: Any) -> bool:
    """Whether it is what hardly any parameter takes."""
    return isinstance(value, _FOREIGN) or type(value) is object or (isinstance(value, np.ndarray) and value.dtype.kind in "OUSV")
