"""Native contraction kernels: matrix product and two-dimensional convolution in its three directions.

One LLVM module per dtype; sizes, strides, padding, dilation and groups are run-time words, so nothing is ever
recompiled for a new shape. Every kernel is ``void f(i64 thread, i64 threads, ptr barrier, ptr scratch, ptr args)``:
``args`` holds four buffer addresses (operand, operand, result, workspace) and then ``params.words()``.
"""

from calque.backend.cpu.contract.candidates import candidates
from calque.backend.cpu.contract.expected import CHOSEN, expected
from calque.backend.cpu.contract.module import is_tight, module_ir
from calque.backend.cpu.contract.params import (
    ROUTINES,
    Contraction,
    Conv2d,
    Conv2dInputGrad,
    Conv2dWeightGrad,
    all_ways,
    contraction,
    is_native,
    narrow,
    suits_pairs,
    symbol,
    ways_of,
)
from calque.backend.cpu.contract.product_words import DTYPES, Matmul
from calque.backend.cpu.contract.target import (
    AVX2,
    AVX512,
    AVX512_BF16,
    AVX512_VNNI,
    NEON,
    SCRATCH_BYTES,
    SSE,
    PlainUnit,
    VectorUnit,
    target_for_features,
)

__all__ = ["AVX2", "AVX512", "AVX512_BF16", "AVX512_VNNI", "CHOSEN", "DTYPES", "NEON", "ROUTINES", "SCRATCH_BYTES", "SSE", "Contraction", "Conv2d",
           "Conv2dInputGrad", "Conv2dWeightGrad", "Matmul", "PlainUnit", "VectorUnit", "all_ways", "candidates", "contraction", "expected",
           "is_native", "is_tight", "module_ir", "narrow", "suits_pairs", "symbol", "target_for_features", "ways_of"]
