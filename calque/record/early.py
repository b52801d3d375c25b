"""Programs that begin while they are still being recorded.

A loop that waits for every step leaves the workers idle while it records the next one. But what a library call has recorded at a place of the trace
(`stretches.py`) was followed by the same program the last times: its first launches may begin, if all that they read is in the trace already.
Values that a trace has taken in do not change until it is flushed, so this gives what a later start would give. If another program comes, or
none, what was begun is forgotten.
"""

from __future__ import annotations

from typing import Any

from calque.base.config import settings
from calque.base.device import CPU
from calque.observe import events
from calque.record.path import Trace
from calque.run.dispatch import Plan, settled
from calque.run.engine import CPU_QUEUE, ENGINE, alone

SURE = 4  # times in a row that a program must have followed
MOST = 12
COST = 4  # of a program that was begun in vain
PAUSE = 16  # times that it must follow once more when that has happened too often; twice as many the next time
LONGEST = 1 << 14


class Guess:
    """Which program follows a stretch, and how often it did. `pause`: how often it must follow if it is begun in vain once more than that allows."""

    __slots__ = ("plan", "times", "pause")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.times = 1
        self.pause = PAUSE

    def wrong(self) -> None:
        """It was begun in vain."""
        self.times -= COST
        if self.times < SURE:
            self.times, self.pause = -self.pause, min(2 * self.pause, LONGEST)


def begin(guess: Guess, inputs: list[Any]) -> Any:
    """Begin with the program that is expected for a trace with these inputs so far: (guess, what to give up if another comes), or None."""
    plan = guess.plan
    if guess.times < SURE or plan.device is not CPU or events.active is not None or settings.checked or settings.verify:
        return None
    if not CPU_QUEUE.idle() or (ENGINE.tracking and not alone(CPU_QUEUE)):
        return None
    executable = plan.compiled.executable
    arrays = settled(inputs[: executable.leading])
    try:
        begun = None if arrays is None else executable.begin(arrays)
    except MemoryError:  # the run itself will say so
        return None
    return None if begun is None else (guess, begun)


def in_vain(trace: Trace) -> bool:
    """A trace is flushed: forget what was begun for it, unless its run has taken that over. Whether it was forgotten."""
    guess, begun = trace.early
    trace.early = None
    vain: bool = begun.give_up()
    if vain:
        guess.wrong()
    return vain


def learn(trace: Trace, plan: Plan, at_once: bool) -> None:
    """A program ran at once behind the stretches of a trace: the first of them that knew enough of its inputs expects it next time. What was begun
    for one that is queued instead is of no use to it, but the guess was right."""
    if not at_once:
        if trace.early is not None and trace.early[0].plan is plan:
            trace.early[1].give_up()
            trace.early = None
        return
    form = plan.compiled
    leading = 0 if form is None or not form.plain else form.executable.leading
    if not leading:
        return
    for macro, known in trace.passed:
        if known >= leading:
            guess = macro.guess
            if guess is None or (guess.plan is not plan and guess.times < SURE):
                macro.guess = Guess(plan)
            elif guess.plan is plan:
                guess.times = min(guess.times + 1, MOST)
            return
