"""Error context: which layer of which model an exception came from."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from calque.base.errors import no_tensor
from calque.base.text import clipped
from calque.functional.blame import explained, is_guess, refusal, wrong_settings
from calque.run.interrupt import shielded

_KEY = "_calque_layers"
_NOTE = "in layer "


def describe(module: Any) -> str:
    """One line: class and settings, e.g. `Linear(in_features=5, out_features=2, bias=True)`."""
    try:
        settings = clipped(module.extra_repr(), 400)
    except Exception:  # a half-built module must not hide the error that is being described
        settings = "..."
    return f"{clipped(type(module).__name__)}({settings})"


def layer_path(chain: list[Any]) -> str:
    """Dotted name of the innermost module of a call chain (innermost first) under the outermost."""
    parts = []
    for child, parent in pairwise(chain):
        name = next((n for n, m in parent.named_modules() if m is child), "")
        parts.append(name or f"<{type(child).__name__}>")
    return ".".join(reversed(parts))


@shielded
def annotate(module: Any, error: Exception, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Exception:
    """The exception that leaves `module`'s forward, with a note of the path and class of the failing layer; inner calls extend outwards."""
    if type(module).__module__.startswith("calque."):  # our layers explain what was wrong with their arguments
        error = explained(type(module).__name__, module.forward, args, kwargs or {}, error) or error
        if is_guess(error):
            error = next((refusal(type(module).__name__, *wrong) for wrong in wrong_settings(module)), error)
    elif isinstance(error, AttributeError):
        error = no_tensor(type(module).__name__, error) or error
    chain: list[Any] = error.__dict__.setdefault(_KEY, [])
    if not chain or chain[-1] is not module:
        chain.append(module)
    path = layer_path(chain)
    where = f"{clipped(path, 200)!r} of {clipped(type(module).__name__)}: " if path else ""
    notes = [n for n in getattr(error, "__notes__", ()) if not n.startswith(_NOTE)]
    error.__notes__ = [*notes, f"{_NOTE}{where}{describe(chain[0])}"]
    return error
