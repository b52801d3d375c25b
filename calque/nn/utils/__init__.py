"""Helpers around parameters: gradient clipping, vectors of parameters, parametrizations, packed sequences."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from calque.functional.later import resolver as _resolver
from calque.nn.utils import parametrizations, parametrize, rnn, stateless
from calque.nn.utils.clip_grad import clip_grad_norm, clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from calque.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from calque.nn.utils.weight_hooks import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm

# Loaded when one of them is first asked for.
if _TYPE_CHECKING:
    from calque.nn.utils.fusion import *  # noqa: F403
    from calque.nn.utils.int4 import *  # noqa: F403
    from calque.nn.utils.making import *  # noqa: F403
    from calque.nn.utils.quantize import *  # noqa: F403
__getattr__ = _resolver(
    globals(),
    {
        "calque.nn.utils.fusion": "fuse_conv_bn_eval fuse_conv_bn_weights fuse_linear_bn_eval fuse_linear_bn_weights",
        "calque.nn.utils.int4": "Int4Linear",
        "calque.nn.utils.making": "convert_conv2d_weight_memory_format convert_conv3d_weight_memory_format skip_init",
        "calque.nn.utils.quantize": "Int8Linear quantize_",
    },
)

__all__ = [
    "clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm", "parameters_to_vector",
    "parametrizations", "parametrize", "remove_spectral_norm", "remove_weight_norm", "rnn", "spectral_norm", "stateless", "vector_to_parameters",
    "weight_norm",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__.__dict__["names"]})
