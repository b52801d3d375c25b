"""Waiting for another thread, as LLVM IR: look again and again, after `SPIN_BARRIER` looks let other threads of the machine run in between."""

from __future__ import annotations

SPIN_BARRIER = 4000

_TEXT = """spin:
  %turn = phi i32 [0, %BEFORE], [%turn1, %pause], [SPIN_BARRIER, %yield]
LOOK
  br i1 %ready, label %AFTER, label %wait
wait:
  %long = icmp uge i32 %turn, SPIN_BARRIER
  br i1 %long, label %yield, label %pause
pause:
  PAUSE
  %turn1 = add i32 %turn, 1
  br label %spin
yield:
  %ignored = call i32 @sched_yield()
  br label %spin"""


def spin_text(before: str, look: str, after: str) -> str:
    """Blocks of a function, `spin` the first: entered from the block `before`, they repeat the instructions `look` until these set %ready, and go on
    at the block `after`."""
    text = _TEXT.replace("BEFORE", before).replace("LOOK", look.strip("\n")).replace("AFTER", after)
    return text.replace("SPIN_BARRIER", str(SPIN_BARRIER))
