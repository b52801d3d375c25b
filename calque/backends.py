"""PyTorch's `torch.backends` names and the precision of products: settings that choose kernels there. All of Calque's kernels give the same
bits every time and compute float32 products in float32, so that settings which allow more are kept and change nothing.

>>> import calque
>>> calque.backends.cudnn.benchmark = True
>>> calque.backends.cudnn.is_available()
False
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from calque.base.config import settings
from calque.base.errors import ArgumentError
from calque.base.text import shown

__all__ = [
    "cuda", "cudnn", "get_float32_matmul_precision", "kleidiai", "mha", "miopen", "mkl", "mkldnn", "mps", "nnpack", "openmp", "opt_einsum",
    "quantized", "set_float32_matmul_precision",
]  # fmt: skip

PRECISIONS = ("highest", "high", "medium")


class _Settings:
    """Named settings of something that is not there; other names are refused."""

    _name: str

    def __init__(self, name: str, functions: dict[str, Any] | None = None, **values: Any) -> None:
        self.__dict__.update(values, _name=name, _functions=functions or {})

    def __getattr__(self, name: str) -> Any:
        functions = self.__dict__.get("_functions", {})
        if name in functions:
            return functions[name]
        known = [key for key in (*self.__dict__, *functions) if not key.startswith("_")]
        raise AttributeError(f"[backends.{self.__dict__.get('_name')}] expected one of the settings {known}, got {shown(name)}", name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__ or name.startswith("_"):
            known = [key for key in self.__dict__ if not key.startswith("_")]
            raise AttributeError(f"[backends.{self._name}] expected one of the settings {known}, got {shown(name)}")
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"<settings of backends.{self._name}>"

    def is_available(self) -> bool:
        """Whether it can be used."""
        return False

    is_built = is_available

    @contextlib.contextmanager
    def flags(self, **values: Any) -> Iterator[None]:
        """A block in which settings have other values: `flags(enabled=False)`."""
        before = {name: getattr(self, name) for name in values}
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def set_flags(self, **values: Any) -> None:
        """Set several settings."""
        for name, value in values.items():
            setattr(self, name, value)

    def version(self) -> None:
        """None: it is not there."""




def _kept(owner: str, name: str, value: Any) -> dict[str, Any]:
    """Functions that set and tell a choice among kernels: `enable_<name>(bool)` and `<name>_enabled()`. It is kept and changes nothing."""
    state = {"value": value}

    def enable(enabled: bool) -> None:
        state["value"] = bool(enabled)

    enable.__doc__, enable.__name__ = f"Kept, and without effect: `backends.{owner}` has no kernels here.", f"enable_{name}"
    return {f"enable_{name}": enable, f"{name}_enabled": lambda: state["value"]}


_SDP = {key: f for name in ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp") for key, f in _kept("cuda", name, True).items()}


@contextlib.contextmanager
def _sdp_kernel(enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True, enable_cudnn: bool = True) -> Iterator[None]:
    """A block with other choices among the kernels of attention; they are kept and change nothing."""
    wanted = {"flash_sdp": enable_flash, "math_sdp": enable_math, "mem_efficient_sdp": enable_mem_efficient, "cudnn_sdp": enable_cudnn}
    before = {name: _SDP[f"{name}_enabled"]() for name in wanted}
    try:
        for name, value in wanted.items():
            _SDP[f"enable_{name}"](value)
        yield
    finally:
        for name, value in before.items():
            _SDP[f"enable_{name}"](value)


_FASTPATH = _kept("mha", "fastpath", True)

cudnn = _Settings(
    "cudnn", {"is_acceptable": lambda tensor: False}, enabled=True, benchmark=False, deterministic=False, allow_tf32=True, benchmark_limit=10,
    fp32_precision="none",
)  # fmt: skip
cuda = _Settings(
    "cuda", {**_SDP, "sdp_kernel": _sdp_kernel, "is_flash_attention_available": lambda: False},
    matmul=_Settings(
        "cuda.matmul", allow_tf32=False, allow_fp16_reduced_precision_reduction=True, allow_bf16_reduced_precision_reduction=True,
        allow_fp16_accumulation=False, fp32_precision="none",
    ),
)  # fmt: skip
mps, mkl, openmp = _Settings("mps"), _Settings("mkl"), _Settings("openmp")
mkldnn = _Settings("mkldnn", enabled=True, deterministic=False, allow_tf32=True, fp32_precision="none")
opt_einsum = _Settings("opt_einsum", enabled=False, strategy=None)
quantized = _Settings("quantized", engine="none", supported_engines=["none"])
nnpack = _Settings("nnpack", enabled=False)
miopen, kleidiai = _Settings("miopen"), _Settings("kleidiai")
mha = _Settings("mha", {"get_fastpath_enabled": _FASTPATH["fastpath_enabled"], "set_fastpath_enabled": _FASTPATH["enable_fastpath"]})


class _Chosen:
    """What was asked for, so that it can be asked back."""

    precision = PRECISIONS[0]


def set_float32_matmul_precision(precision: str) -> None:
    """Allow products of float32 to be computed with less than float32: "highest" (no), "high" or "medium". On the CPU they never are; a GPU with
    tensor cores then rounds their operands to TF32, as soon as programs are compiled."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ArgumentError(f"[set_float32_matmul_precision] expected one of {', '.join(map(repr, PRECISIONS))}, got {shown(precision)}")
    _Chosen.precision = precision
    settings.tf32 = precision != PRECISIONS[0]


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was told last."""
    return _Chosen.precision
