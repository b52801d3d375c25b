"""The functions of a library (`runtime.ll`): create, describe, run, reset, state, destroy; its threads (`team.ll`). They allocate nothing and call
nothing of the system but `memmove` and what threads need. Text, not a compiled file: LLVM compiles it together with the kernels, for any processor.

An instance is a block of the caller's memory. Slots of 8 bytes from its beginning (pointers fill what they need of them):

    0   a number that says that this is an instance of this library
    8   programs for this processor        16  text of the last error      24  i32: whether it runs; 28 i32: the process that made its threads
    32  weights                            40  bases: addresses of the memories (see `plan.py`)
    48  words of all programs              56  state                       64  arena
    72  the control block of its threads   80  bytes that were given       88  bytes that are used
    96  until when brief programs leave its threads alone, 104 for how long they do, 112 when these last were kept waiting (nanoseconds)

Behind `HEADER` bytes: bases, words, state, arena, scratch memory of the caller's thread, the control block with a line for each thread
(`runtime_text.py`), scratch memory of the others. So an instance has one thread to begin with, and as many as its memory is for when it is told.

Tables that it walks through, with the fields of their types. Spec: name, dtype, dims, shape. Signature: name, entry, inputs, outputs, their specs.
Argument: bytes, bytes of an element, texts of errors (`TEXTS`). Program: signature, launches and their number, launches of the checks, words and
their number and place, patches, copies and checks with their numbers, arguments, whose threads' are the checks and the rest.
"""

from __future__ import annotations

from pathlib import Path

HEADER = 128
MAGIC = 0x43414C5155450000

NULL, MEMORY, WEIGHTS, PROGRAM, COUNT, DTYPE, SHAPE, LAYOUT, OVERLAP, INDEX, INSTANCE, BUSY, CPU, ALIGNED, THREADS, FEWER = range(1, 17)
CODES = {
    "NULL": "a pointer that is needed is NULL",
    "MEMORY": "the memory of an instance is too small (for so many threads), or does not begin at a multiple of 64",
    "WEIGHTS": "the weights are not those of this library, or damaged",
    "PROGRAM": "there is no program of this number",
    "COUNT": "another number of inputs or outputs than the program has",
    "DTYPE": "a tensor has another dtype",
    "SHAPE": "a tensor has another shape",
    "LAYOUT": "a tensor is not dense and row-major",
    "OVERLAP": "an output shares memory with another tensor, or a tensor lies in the memory of the instance",
    "INDEX": "an index is outside of the dimension that it selects from",
    "INSTANCE": "this is no instance of this library",
    "BUSY": "this instance is running in another thread",
    "CPU": "this processor lacks instructions that the library is built for",
    "ALIGNED": "the data of a tensor does not begin at a multiple of the size of its elements",
    "THREADS": "this library does not run on so many threads: see how many set_threads takes",
    "FEWER": "the system has started fewer threads than were asked for; the instance runs on these",
}
"""Error codes from 1 on, and what they say where no better text is known."""

TEXTS = (DTYPE, SHAPE, LAYOUT, OVERLAP, NULL, ALIGNED)
"""The errors of which an argument has a text of its own, in the order of `%argument`."""


def text(part: str) -> str:
    """One of the files beside this one."""
    return Path(__file__).with_name(f"{part}.ll").read_text(encoding="utf-8")
