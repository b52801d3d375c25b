"""What a replay gives back to its caller."""

from __future__ import annotations

from typing import Any

from calque.hybrid.graph import CallGraph, Spent
from calque.hybrid.region import Place, handle
from calque.hybrid.structure import build
from calque.record.versions import Silent
from calque.report.losses import ReplayedLoss
from calque.tensor import Tensor, alias

View = tuple[str, int]  # of which "argument", tensor that the function has "reached", or "output", and its number; or what `.data` gave


class Outcome:
    """What a replay gives back: `structure` describes the result, `grads` the new `.grad` of leaves, `template` the graph behind the outputs.
    `views`: which outputs are views, and of what, because a write to one of both then changes the history of the other."""

    __slots__ = ("structure", "places", "grads", "differentiable", "views", "template", "spent", "single", "unread", "losses")

    def __init__(
        self, structure: tuple[Any, ...], places: list[Place], grads: list[tuple[int, Place | None]], differentiable: list[int],
        views: list[tuple[int, View]],
    ) -> None:  # fmt: skip
        self.structure, self.places, self.grads, self.differentiable, self.views = structure, places, grads, differentiable, views
        self.template: CallGraph | None = None
        self.spent: list[Spent] = []  # what stands behind the differentiable outputs in the place of a template
        self.single = structure == ("tensor", 0) and not views
        self.unread: set[int] = set()  # leaves whose old gradient nobody reads
        self.losses: list[tuple[int, ReplayedLoss]] = []  # new storages from which backward passes started

    def give_gradients(self, leaves: list[Tensor], created: list[Any], cells: list[Any]) -> None:
        """Let leaves have their new gradients, whose program has been recorded or started: whatever interrupts a call leaves a leaf without a
        gradient, never with one that has no value."""
        for k, place in self.grads:
            leaves[k]._grad = None if place is None else handle(place, created, cells)


def given(reached: list[Any], outcome: Outcome, cells: list[Any], created: list[Any], tensors: list[Tensor], known: list[Any]) -> Any:
    """What a replayed call gives back: results with their gradients' history."""
    if outcome.single and not outcome.losses and (outcome.template is not None or not outcome.differentiable):  # what most modules give
        out = handle(outcome.places[0], created, cells)
        if outcome.template is not None:
            outcome.template.attach([out], cells, created, tensors, known)
        return out
    outputs = [handle(place, created, cells) for place in outcome.places]
    for k, (what, number) in outcome.views:
        if what == "data":
            outputs[k]._views = Silent()
            continue
        base = tensors[number] if what == "argument" else reached[number][0] if what == "reached" else outputs[number]
        outputs[k] = alias(base, outcome.places[k][2])
    if outcome.differentiable:
        chosen = [outputs[k] for k in outcome.differentiable]
        if outcome.template is not None:
            outcome.template.attach(chosen, cells, created, tensors, known)
        else:
            ends = {id(spent): spent.node(tensors) for spent in outcome.spent}
            for out, spent in zip(chosen, outcome.spent, strict=True):
                out._grad_fn, out._requires_grad = ends[id(spent)], True
    for k, watch in outcome.losses:
        watch.next(created[k])
    if outcome.single:
        return outputs[0]
    return build(outcome.structure, outputs, tensors, reached, known)
