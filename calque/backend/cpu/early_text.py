"""The first launches of a program, begun by the workers while the rest is still recorded, as LLVM IR (see `early.py`).

The launches are cut into units, which whoever is free takes one after the other from a counter; a unit of a launch begins when all units of the
launches before it are done. The counter is closed as long as nothing has been begun, so a worker that comes late takes nothing. Fields of the
control block, bytes from `EARLY` on:

    0    i64  the unit that is taken next, at least `CLOSED` if there is none
    64   i64  units that are done
    128  ptr  launches;  136 i64 units;  144 ptr argument words;  152 i64 units of each launch

They change only while the counter is closed and every unit that was taken is done.
"""

from __future__ import annotations

from calque.backend.cpu.spin_text import spin_text

EARLY = 384
EARLY_BYTES = 192
CLOSED = 1 << 40
_FIELDS = {"next": 0, "done": 64, "launches": 128, "units": 136, "words": 144, "parts": 152}
"""Field -> bytes from `EARLY` on; a function that says FIELDS has their addresses as %nextp, %donep, ..."""
_LOOK = """
  %done = load atomic i64, ptr %donep acquire, align 8
  %ready = icmp uge i64 %done, %wanted"""

_TEXT = """
define internal void @early_units(ptr %control, ptr %scratch) nounwind {
entry:
  %barrier = getelementptr i8, ptr %control, i64 128
FIELDS
  br label %take
take:
  %unit = atomicrmw add ptr %nextp, i64 1 acq_rel
  %closed = icmp uge i64 %unit, CLOSED
  br i1 %closed, label %over, label %open
open:
  %units = load i64, ptr %unitsp
  %mine = icmp ult i64 %unit, %units
  br i1 %mine, label %begin, label %over
begin:
  %parts = load i64, ptr %partsp
  %number = udiv i64 %unit, %parts
  %part = urem i64 %unit, %parts
  %before = mul i64 %number, %parts
  call void @early_wait(ptr %donep, i64 %before)
  %launches = load ptr, ptr %launchesp
  %row = mul i64 %number, 24
  %launch = getelementptr i8, ptr %launches, i64 %row
  %function = load ptr, ptr %launch
  %offset = load i64, ptr %launch + 8
  %words = load ptr, ptr %wordsp
  %args = getelementptr i8, ptr %words, i64 %offset
  call void %function(i64 %part, i64 %parts, ptr %barrier, ptr %scratch, ptr %args)
  %finished = atomicrmw add ptr %donep, i64 1 acq_rel
  br label %take
over:
  ret void
}

define internal void @early_wait(ptr %donep, i64 %wanted) nounwind {
entry:
  br label %spin
SPIN
over:
  ret void
}

; Nothing more is taken, and what was taken is done. `join`: everything is done, with the help of this thread. Returns 1 if something had been begun.
define i64 @calque_settle(ptr %control, i64 %join) nounwind {
entry:
FIELDS
  %now = load atomic i64, ptr %nextp acquire, align 8
  %nothing = icmp uge i64 %now, CLOSED
  br i1 %nothing, label %idle, label %begun
begun:
  %helps = icmp ne i64 %join, 0
  br i1 %helps, label %help, label %close
help:
  %scratch = load ptr, ptr %control + FIRST_SCRATCH
  call void @early_units(ptr %control, ptr %scratch)
  br label %close
close:
  %old = atomicrmw xchg ptr %nextp, i64 CLOSED acq_rel
  %units = load i64, ptr %unitsp
  %all = icmp ugt i64 %old, %units
  %taken = select i1 %all, i64 %units, i64 %old
  call void @early_wait(ptr %donep, i64 %taken)
  ret i64 1
idle:
  ret i64 0
}

; Called by Python with (list of arrays), bound to the array of a request: addresses, then the workers begin. Returns the list.
define ptr @calque_early(ptr %self, ptr %arguments, i64 %count) nounwind {
entry:
  %request = load ptr, ptr %self + 16
LOAD_EARLY
  %arrays = load ptr, ptr %arguments
  %objects = load ptr, ptr %arrays + 24
  call void @calque_patch(ptr %words, i64 %patches, ptr %positions, ptr %sources, ptr %offsets, ptr %objects)
FIELDS
  store ptr %launches, ptr %launchesp
  store i64 %units, ptr %unitsp
  store ptr %words, ptr %wordsp
  store i64 %parts, ptr %partsp
  store i64 0, ptr %donep
  store atomic i64 0, ptr %nextp release, align 8
  call void @announce(ptr %control)
  %references = load i64, ptr %arrays
  %more = add i64 %references, 1
  store i64 %more, ptr %arrays
  ret ptr %arrays
}
"""

EARLY_REQUEST = ("control", "launches", "units", "words", "parts", "patches", "positions", "sources", "offsets")
"""What the words of a request of `calque_early` say; the last four as for `calque_patch`."""
_NUMBERS = ("units", "parts", "patches")


def early_text() -> str:
    """The functions."""
    lines = []
    for k, name in enumerate(EARLY_REQUEST):
        lines.append(f"  %{name}.at = getelementptr i64, ptr %request, i64 {k}")
        lines.append(f"  %{name} = load {'i64' if name in _NUMBERS else 'ptr'}, ptr %{name}.at")
    fields = "\n".join(f"  %{name}p = getelementptr i8, ptr %control, i64 {EARLY + at}" for name, at in _FIELDS.items())
    text = _TEXT.replace("SPIN", spin_text("entry", _LOOK, "over")).replace("FIELDS", fields)
    text = text.replace("LOAD_EARLY", "\n".join(lines)).replace("EARLY", str(EARLY)).replace("CLOSED", str(CLOSED))
    return text.replace("FIRST_SCRATCH", str(EARLY + EARLY_BYTES + 16))
