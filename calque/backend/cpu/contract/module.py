"""The whole library of one dtype as one LLVM module."""

from __future__ import annotations

from calque.backend.cpu.contract.attention import attention_functions
from calque.backend.cpu.contract.attention_grad import attention_grad_functions
from calque.backend.cpu.contract.bfloat import bfloat_module
from calque.backend.cpu.contract.broadcast import broadcast_functions
from calque.backend.cpu.contract.builder import declarations
from calque.backend.cpu.contract.conv import conv_functions
from calque.backend.cpu.contract.direct import direct_functions
from calque.backend.cpu.contract.flat import flat_functions
from calque.backend.cpu.contract.flat_grad import flat_grad_functions
from calque.backend.cpu.contract.gemm import gemm_functions
from calque.backend.cpu.contract.int4 import int4_functions
from calque.backend.cpu.contract.int8 import int8_module
from calque.backend.cpu.contract.joint import joint_functions
from calque.backend.cpu.contract.micro import dot_kernels, outer_kernels
from calque.backend.cpu.contract.near import near_functions
from calque.backend.cpu.contract.pack import packers
from calque.backend.cpu.contract.plane_grad import plane_grad_functions
from calque.backend.cpu.contract.product_words import blocking_for
from calque.backend.cpu.contract.recurrent import recurrent_functions
from calque.backend.cpu.contract.scan import scan_functions
from calque.backend.cpu.contract.strided import strided_functions
from calque.backend.cpu.contract.target import VectorUnit
from calque.backend.cpu.contract.tile_grad import tile_grad_functions
from calque.backend.cpu.contract.tiles import tile_functions
from calque.backend.cpu.contract.weight_grad import weight_grad_functions
from calque.backend.cpu.contract.winograd import ALL_FORMS, FORMS
from calque.backend.cpu.contract.winograd_conv import winograd_conv_functions
from calque.backend.cpu.contract.winograd_weight import winograd_weight_functions


def module_ir(dtype: str, target: VectorUnit) -> str:
    """IR text of every contraction for ``float32`` or ``float64``, of the products for ``bfloat16`` and ``int8``; needs only ``calque_barrier``
    from outside."""
    blocking = blocking_for(dtype, target)
    if blocking.narrow:
        return int8_module(blocking) if dtype == "int8" else bfloat_module(blocking)
    parts = (declarations, outer_kernels, dot_kernels, packers, gemm_functions, flat_functions, tile_functions, direct_functions,
             joint_functions, near_functions, broadcast_functions, strided_functions, conv_functions, tile_grad_functions,
             flat_grad_functions, plane_grad_functions,
             weight_grad_functions, attention_functions, attention_grad_functions, recurrent_functions, scan_functions,
             int4_functions)
    winograd = [winograd_conv_functions(blocking, form) for form in ALL_FORMS]
    winograd += [winograd_weight_functions(blocking, form) for form in FORMS.values()]
    return "\n".join([*(part(blocking) for part in parts), *winograd])
