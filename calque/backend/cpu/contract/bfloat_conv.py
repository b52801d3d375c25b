"""Convolutions of bfloat16 where the processor multiplies pairs: the ways without patches, and those of stride 2 and of weight gradients.

Sums are float32 from beginning to end and are rounded once. Few output channels per group and everything else that :func:`narrow` refuses
run in float32 between two casts, as on every processor without such an instruction.
"""

from __future__ import annotations

from collections.abc import Callable

from calque.backend.cpu.contract.builder import Builder
from calque.backend.cpu.contract.claims import CONVOLUTIONS, hand_over
from calque.backend.cpu.contract.conv_words import BLOCK_WORDS
from calque.backend.cpu.contract.direct import direct_functions, packed_size, read_words
from calque.backend.cpu.contract.joint import joint_functions
from calque.backend.cpu.contract.pairs import pair_functions
from calque.backend.cpu.contract.target import Blocking
from calque.backend.cpu.contract.tile_grad import tile_grad_functions
from calque.backend.cpu.contract.tiles import tile_functions

BUFFERS = 4


def bfloat_convolutions(blocking: Blocking) -> str:
    """The entries of convolutions and everything specific to them; nothing where pairs are not multiplied."""
    parts = (pair_functions, tile_functions, direct_functions, joint_functions, tile_grad_functions, _convolution, _biased, _weight_gradient)
    return "".join(part(blocking) for part in parts) if blocking.pairs else ""


def _entry(name: str, blocking: Blocking) -> Builder:
    return Builder(f"calque_{name}_{blocking.dtype}", ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args"), blocking,
                   linkage="")


def _convolution(blocking: Blocking) -> str:
    """Any number of parameter blocks on the same three tensors, or all classes of stride 2 together."""
    b = _entry("conv2d", blocking)
    image, weights, result, shared = (b.pointer_word("%args", index) for index in range(BUFFERS))
    count, base = b.word("%args", BUFFERS), b.byte_at("%args", 8 * (BUFFERS + 2))
    hand_over(b, CONVOLUTIONS, count, (image, weights, result, shared), "null")
    b.call("clear_share", "i64 %thread", "i64 %threads", f"ptr {result}", f"i64 {b.word('%args', BUFFERS + 1)}")
    packed = b.variable(0)

    def each_block(work: Callable[[str, str], None]) -> None:
        b.assign(packed, 0)
        with b.loop(0, count) as index:
            block = b.byte_at(base, b.mul(index, 8 * BLOCK_WORDS))
            work(block, b.at(shared, b.read(packed)))
            b.assign(packed, b.add(b.read(packed), packed_size(b, *read_words(b, block))))

    each_block(lambda block, place: b.call("direct_pack_weights", "i64 %thread", "i64 %threads", f"ptr {weights}", f"ptr {block}",
                                           f"ptr {place}"))
    b.barrier("%barrier", "%threads")
    each_block(lambda block, place: b.call("direct_convolve", "i64 %thread", "i64 %threads", "ptr %scratch", f"ptr {image}", f"ptr {place}",
                                           f"ptr {result}", f"ptr {block}", "ptr null"))
    return b.text()


def _biased(blocking: Blocking) -> str:
    """One parameter block, or all classes of stride 2 together, and a bias as the third operand."""
    b = _entry("biased_conv2d", blocking)
    image, weights, bias, result, shared = (b.pointer_word("%args", index) for index in range(BUFFERS + 1))
    hand_over(b, CONVOLUTIONS, b.word("%args", BUFFERS + 1), (image, weights, result, shared), bias)
    block = b.byte_at("%args", 8 * (BUFFERS + 3))
    b.call("direct_pack_weights", "i64 %thread", "i64 %threads", f"ptr {weights}", f"ptr {block}", f"ptr {shared}")
    b.barrier("%barrier", "%threads")
    b.call("direct_convolve", "i64 %thread", "i64 %threads", "ptr %scratch", f"ptr {image}", f"ptr {shared}", f"ptr {result}", f"ptr {block}",
           f"ptr {bias}")
    return b.text()


def _weight_gradient(blocking: Blocking) -> str:
    b = _entry("conv2d_weight_grad", blocking)
    image, gradient, result, shared = (b.pointer_word("%args", index) for index in range(BUFFERS))
    b.call("tile_grad", "i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", f"ptr {image}", f"ptr {gradient}", f"ptr {result}",
           f"ptr {shared}", f"ptr {b.byte_at('%args', 8 * (BUFFERS + 1))}")
    return b.text()
