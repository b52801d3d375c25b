"""What the order of a pass depends on beside the loader's generator: generators of samplers, and the streams that a program's samplers draw from.

A pass that is taken up again asks the samplers once more for all that they gave, so all of these have to stand where they stood when it began.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from calque.data.random_source import position
from calque.functional.generators import Generator

_STREAMS = {"python": 3, "numpy": 5}  # parts of their states


def generators(loader: Any) -> dict[str, Generator]:
    """Generators of the samplers that are not the loader's own, by where they are."""
    found: dict[str, Generator] = {}
    for name, sampler in _samplers(loader).items():
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, Generator) and all(generator is not other for other in (loader.generator, *found.values())):
            found[name] = generator
    return found


def standing(loader: Any) -> dict[str, Any]:
    """Where these generators stand: seeds and offsets."""
    return {name: list(position(generator)) for name, generator in generators(loader).items()}


def beginning(loader: Any) -> dict[str, Any]:
    """Where everything stands that a pass will draw its order from, as numbers and text. The streams of `random` and NumPy are long, and asked for
    only where a sampler of the program's may draw from them."""
    if loader.streamed:
        return {}
    found = standing(loader)
    if loader.generator is not None:  # a sampler without a generator draws from the default one, and the loader from its own
        found["default"] = list(position(None))
    if any(type(sampler).__module__.partition(".")[0] not in ("calque", "builtins") for sampler in _samplers(loader).values()):
        found.update(_streams())
    return found


def checked(found: Any) -> dict[str, Any]:
    """What `beginning` gave. Raises TypeError or ValueError for anything else."""
    places = dict(found)
    for name, place in places.items():
        if name in _STREAMS:
            if len(place) != _STREAMS[name] or len(_words(place[1])) < 624:
                raise ValueError(f"the place of the stream of {name}")
        elif len(place) != 2 or any(type(n) is not int for n in place):
            raise ValueError(f"the place of the generator of {name}")
    return places


def go(loader: Any, places: dict[str, Any]) -> None:
    """Let everything stand there."""
    for name, generator in {**generators(loader), "default": None}.items():
        if name in places:
            position(generator, tuple(places[name]))
    if "python" in places:
        version, words, gauss = places["python"]
        random.setstate((version, tuple(_words(words).tolist()), gauss))
        kind, keys, *rest = places["numpy"]
        np.random.set_state((kind, _words(keys), *rest))


class Kept:
    """A context after which the streams that belong to the program are where they were."""

    def __enter__(self) -> None:
        self.default, self.python, self.numpy = position(None), random.getstate(), np.random.get_state(legacy=False)

    def __exit__(self, *_: object) -> None:
        position(None, self.default)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


def _samplers(loader: Any) -> dict[str, Any]:
    found = {"sampler": loader.sampler, "batch_sampler": loader.batch_sampler, "inner": getattr(loader.batch_sampler, "sampler", None)}
    return {name: sampler for name, sampler in found.items() if sampler is not None}


def _streams() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    return {"python": [version, np.array(words, np.uint32).tobytes().hex(), gauss], "numpy": [kind, np.asarray(keys).tobytes().hex(), *rest]}


def _words(text: str) -> Any:
    return np.frombuffer(bytes.fromhex(text), np.uint32)
