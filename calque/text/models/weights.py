"""Published weights of language models: where they are, their sizes, and which of their names a model takes."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError, CheckpointError, DTypeError, ShapeError
from calque.base.text import shown, type_name
from calque.functional.common import is_tensor
from calque.io.weights import file_of, is_place, read_weights
from calque.observe.source import warn_user
from calque.tensor import Tensor

State = dict[str, Any]
_MOST = 10_000_000  # bytes of a config.json


def checked_ids(model: str, input_ids: Tensor, most: int) -> None:
    """Raise unless these are numbers of words, (N, L) with L at most `most`."""
    if not is_tensor(input_ids) or input_ids.is_floating_point() or input_ids.is_complex():
        got = f"dtype {input_ids.dtype}" if is_tensor(input_ids) else type_name(input_ids)
        raise DTypeError(f"[{model}] expected the numbers of words as a tensor of integers, got {got}; a tokenizer gives them")
    if input_ids.ndim != 2 or not 0 < input_ids.shape[1] <= most:
        raise ShapeError(
            f"[{model}] expected numbers of words of shape (N, L) with L from 1 to {most}, got {tuple(input_ids.shape)}; cut the text into pieces"
        )


def checked_mask(model: str, mask: Tensor, ids: Tensor) -> Tensor:
    """The mask (N, 1, 1, L), True where a word may be looked at, of one that is 1 or True there."""
    if tuple(mask.shape) != tuple(ids.shape):
        raise ShapeError(f"[{model}] expected attention_mask of the shape of input_ids, {tuple(ids.shape)}, got {tuple(mask.shape)}; 1 marks words")
    return mask[:, None, None, :] != 0


def settings_beside(model: str, file: Path, build: Callable[..., Any], only: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The arguments of `build` that a `config.json` beside the weights gives; {} if there is none.

    only: what settings of it must be, where they are there. Raises CheckpointError for another value, and for a file that is no JSON object.
    """
    place = file.parent / "config.json"
    if not place.is_file():
        return {}
    try:
        with open(place, "rb") as stream:
            found = json.loads(stream.read(_MOST))
    except ValueError as error:
        raise CheckpointError(f"[{model}] expected JSON in {str(place)!r}, got something else ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"[{model}] expected an object in {str(place)!r}, got {shown(found)}; fetch it again")
    for name, values in only.items():
        if name in found and found[name] not in values:
            expected = " or ".join(map(repr, values))
            raise CheckpointError(f"[{model}] expected {name} {expected} in {str(place)!r}, got {shown(found[name])}; this model is another one")
    if isinstance(found.get("id2label"), dict):
        found["num_labels"] = len(found["id2label"])
    return {name: found[name] for name in inspect.signature(build).parameters if name in found}


def put(model: nn.Module, state: State, heads: tuple[str, ...], name: str) -> None:
    """Load a state dict. A head, a group of names with a beginning in `heads`, may be missing as a whole: it stays as drawn, with a warning."""
    own = model.state_dict()
    drawn = []
    for head in heads:
        wanted = [key for key in own if key.startswith(head)]
        if wanted and not any(key in state for key in wanted):
            state = {**state, **{key: own[key] for key in wanted}}
            drawn.append(head.rstrip("."))
    model.load_state_dict(state)
    if drawn:
        warn_user(f"[{name}] expected weights of {', '.join(drawn)}, got none in the file; they are as drawn: train them before they are used")


def maker(name: str, kinds: Mapping[str, Any], hub: str, sizes: dict[str, Any], text: str) -> Any:
    """The function that makes a model by its name, with trained weights if they are asked for.

    kinds: the class for each head. Each has `_ONLY`, what settings must be, `_HEADS`, which names may be missing, and `_renamed`, which turns
    names of a file into its own.
    """

    def make(*, weights: Any = None, head: str = "", **options: Any) -> Any:
        if head not in kinds:
            raise ArgumentError(f"[{name}] expected head to be one of {', '.join(map(repr, kinds))}, got {shown(head)}")
        kind = kinds[head]
        if weights is None:
            return kind(**{**sizes, **options})
        file = file_of(name, hub if isinstance(weights, str) and weights == "DEFAULT" else weights, "'DEFAULT'")
        # What lies beside a single file may be anybody's: only folders and the hub's belong together.
        together = os.path.isdir(weights) or not (is_place(weights) or "://" in weights)
        told = settings_beside(name, file, kind, kind._ONLY) if together else {}
        model = kind(**{**sizes, **told, **options})
        put(model, kind._renamed(read_weights(name, file)), kind._HEADS, name)
        return model

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""{text}

    weights: None, which draws them; a file (`.safetensors`, `.calque`, `.pt`, `.bin`); a folder that `save_pretrained` of transformers has written;
    an address whose file's name ends in its hash; owner/name of the Hugging Face Hub, fetched by its client before; or "DEFAULT", which is {hub!r} of
    it. The `config.json` of a folder, or of the hub, gives the sizes; options win. head: {" or ".join(map(repr, kinds))}. Other options are those of
    the class. Raises CheckpointNotFoundError, which says where the file has to be, where nothing can be fetched, and StateDictError for other names
    or shapes.
    """
    return make
