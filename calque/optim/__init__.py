"""Optimizers and learning-rate schedules under PyTorch's names."""

from importlib import import_module
from typing import TYPE_CHECKING

from calque.base.text import no_attribute
from calque.functional.blame import publish
from calque.optim import lr_scheduler, swa_utils
from calque.optim.adam import Adam, AdamW
from calque.optim.adaptive import Adagrad, RMSprop
from calque.optim.lbfgs import LBFGS
from calque.optim.optimizer import Optimizer
from calque.optim.sgd import SGD

if TYPE_CHECKING:
    from calque.optim.adadelta import Adadelta as Adadelta
    from calque.optim.adafactor import Adafactor as Adafactor
    from calque.optim.adamax import Adamax as Adamax
    from calque.optim.asgd import ASGD as ASGD
    from calque.optim.layerwise import LAMB as LAMB
    from calque.optim.layerwise import LARS as LARS
    from calque.optim.muon import Muon as Muon
    from calque.optim.nadam import NAdam as NAdam
    from calque.optim.radam import RAdam as RAdam
    from calque.optim.rprop import Rprop as Rprop
    from calque.optim.sparse_adam import SparseAdam as SparseAdam
    from calque.optim.swapping import swap_in_optimizer_params_and_state as swap_in_optimizer_params_and_state

# What few programs name loads when they are first asked for (PEP 562): name -> module.
_ON_FIRST_USE = {
    "ASGD": "asgd", "Adadelta": "adadelta", "Adafactor": "adafactor", "Adamax": "adamax", "LAMB": "layerwise", "LARS": "layerwise", "Muon": "muon",
    "NAdam": "nadam", "RAdam": "radam", "Rprop": "rprop", "SparseAdam": "sparse_adam",
    "swap_in_optimizer_params_and_state": "swapping",
}  # fmt: skip

__all__ = ["LBFGS", "SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSprop", "lr_scheduler", "swa_utils", *_ON_FIRST_USE]


def __getattr__(name: str) -> object:
    if name not in _ON_FIRST_USE:
        raise no_attribute("calque.optim", name)
    module = import_module(f"calque.optim.{_ON_FIRST_USE[name]}")
    publish(module)
    globals()[name] = found = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_FIRST_USE})
