"""Models and trained weights by their names. Names as in `torchvision.models`."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import described, shown
from calque.vision.models.weights import MAKERS, WEIGHTS_OF, Weights

__all__ = ["get_model", "get_model_builder", "get_model_weights", "get_weight", "list_models"]


def _patterns(what: str, given: Any) -> list[str]:
    found = [given] if isinstance(given, str) else list(given or ())
    if not all(isinstance(pattern, str) for pattern in found):
        raise ArgumentError(f"[list_models] expected {what} as a pattern like 'resnet*' or several of them, got {shown(given)}")
    return found


def list_models(
    module: ModuleType | None = None, include: Iterable[str] | str | None = None, exclude: Iterable[str] | str | None = None
) -> list[str]:  # fmt: skip
    """Names of the models, in alphabetical order.

    module: only those of this module. include, exclude: patterns as of a shell, one or several; names that match one of `include` (all, if there is
    none) and none of `exclude`.

    >>> import calque
    >>> calque.vision.models.list_models(include="squeeze*")
    ['squeezenet1_0', 'squeezenet1_1']
    """
    wanted, unwanted = _patterns("include", include), _patterns("exclude", exclude)
    own = MAKERS if module is None else set(dir(module))
    names = [name for name in MAKERS if name in own]
    return sorted(
        name for name in names
        if (not wanted or any(fnmatch.fnmatch(name, p) for p in wanted)) and not any(fnmatch.fnmatch(name, p) for p in unwanted)
    )  # fmt: skip


def get_model_builder(name: str) -> Callable[..., Any]:
    """The function that makes the model of this name, whatever the case of its letters. Raises ValueError for another name."""
    found = MAKERS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise ArgumentError(f"[get_model] Unknown model {described(name)}: expected one of list_models()")
    return found


def get_model(name: str, **config: Any) -> Any:
    """The model of this name, made with these options (`weights=`, `num_classes=`).

    >>> import calque
    >>> type(calque.vision.models.get_model("resnet18", num_classes=10)).__name__
    'ResNet'
    """
    return get_model_builder(name)(**config)


def get_model_weights(name: str | Callable[..., Any]) -> Any:
    """The class of the weights that belong to a model, given by its name or by the function that makes it."""
    made = get_model_builder(name) if isinstance(name, str) else name
    found = WEIGHTS_OF.get(getattr(made, "__name__", ""))
    if found is None:
        raise ArgumentError(f"[get_model_weights] expected a model with trained weights, got {described(name)}; list_models() names all models")
    return found


def get_weight(name: str) -> Any:
    """Trained weights by the name of their class and their own.

    >>> import calque
    >>> calque.vision.models.get_weight("ResNet50_Weights.IMAGENET1K_V2") is calque.vision.models.ResNet50_Weights.DEFAULT
    True
    """
    kind, _, member = name.partition(".") if isinstance(name, str) else ("", "", "")
    classes = {found.__name__: found for found in WEIGHTS_OF.values()}
    if kind not in classes:
        raise ArgumentError(f"[get_weight] expected a name like 'ResNet50_Weights.IMAGENET1K_V2', got {described(name)}")
    if member not in classes[kind].__members__:
        raise ArgumentError(f"[get_weight] expected one of {', '.join(classes[kind].__members__)} of {kind}, got {described(member)}")
    found: Weights = classes[kind][member]
    return found


def give_weights_to_modules() -> None:
    """Models say which module they are of, and the class of their weights is a name of it, too: programs import both from there."""
    for module in [m for name, m in sys.modules.items() if name.startswith(f"{__package__}.")]:  # the package has models under some of these names
        for name, value in list(vars(module).items()):
            if MAKERS.get(name) is value:
                if not hasattr(module, "__path__") and name in getattr(module, "__all__", [name]):  # not those that have it from another
                    value.__module__ = module.__name__
                if name in WEIGHTS_OF:
                    setattr(module, WEIGHTS_OF[name].__name__, WEIGHTS_OF[name])
                    vars(module).get("__all__", []).append(WEIGHTS_OF[name].__name__)
