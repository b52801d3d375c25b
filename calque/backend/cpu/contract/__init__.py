"""Native contraction kernels: matrix product and two-dimensional convolution in its three directions.

One LLVM module per dtype; sizes, strides, padding, dilation and groups are run-time words, so nothing is ever
recompiled for a new shape. Every kernel is ``void f(i64 thread, i64 threads, ptr barrier, ptr scratch, ptr args)``:
``args`` holds four buffer addresses (operand, operand, result, workspace) and then ``params.words()``.
"""

from typing import TYPE_CHECKING, Any

from calque.base.on_demand import on_first_use

if TYPE_CHECKING:
    from calque.backend.cpu.contract.expectations import CHOSEN as CHOSEN
    from calque.backend.cpu.contract.expectations import expected as expected
    from calque.backend.cpu.contract.module import module_ir as module_ir
    from calque.backend.cpu.contract.params import ROUTINES as ROUTINES
    from calque.backend.cpu.contract.params import Contraction as Contraction
    from calque.backend.cpu.contract.params import Conv2d as Conv2d
    from calque.backend.cpu.contract.params import Conv2dInputGrad as Conv2dInputGrad
    from calque.backend.cpu.contract.params import Conv2dWeightGrad as Conv2dWeightGrad
    from calque.backend.cpu.contract.params import all_ways as all_ways
    from calque.backend.cpu.contract.params import contraction as contraction
    from calque.backend.cpu.contract.params import is_narrow as is_narrow
    from calque.backend.cpu.contract.params import is_native as is_native
    from calque.backend.cpu.contract.params import packed_bytes as packed_bytes
    from calque.backend.cpu.contract.params import suits_pairs as suits_pairs
    from calque.backend.cpu.contract.params import symbol as symbol
    from calque.backend.cpu.contract.params import ways_of as ways_of
    from calque.backend.cpu.contract.product_words import DTYPES as DTYPES
    from calque.backend.cpu.contract.product_words import Matmul as Matmul
    from calque.backend.cpu.contract.target import AVX2 as AVX2
    from calque.backend.cpu.contract.target import AVX512 as AVX512
    from calque.backend.cpu.contract.target import AVX512_BF16 as AVX512_BF16
    from calque.backend.cpu.contract.target import AVX512_VNNI as AVX512_VNNI
    from calque.backend.cpu.contract.target import NEON as NEON
    from calque.backend.cpu.contract.target import SCRATCH_BYTES as SCRATCH_BYTES
    from calque.backend.cpu.contract.target import SSE as SSE
    from calque.backend.cpu.contract.target import PlainUnit as PlainUnit
    from calque.backend.cpu.contract.target import VectorUnit as VectorUnit
    from calque.backend.cpu.contract.target import target_for_features as target_for_features
    from calque.backend.cpu.contract.tuning import candidates as candidates

# A process that runs what others have planned and compiled needs none of it.
_HOMES = {
    "expectations": "CHOSEN expected",
    "module": "module_ir",
    "params": "ROUTINES Contraction Conv2d Conv2dInputGrad Conv2dWeightGrad all_ways contraction is_native is_narrow packed_bytes suits_pairs symbol "
              "ways_of",
    "product_words": "DTYPES Matmul",
    "target": "AVX2 AVX512 AVX512_BF16 AVX512_VNNI NEON SCRATCH_BYTES SSE PlainUnit VectorUnit target_for_features",
    "tuning": "candidates",
}
_part = on_first_use(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    return _part(name)
