"""Optimizers and learning-rate schedules under PyTorch's names."""

from typing import TYPE_CHECKING

from calque.base.on_demand import on_first_use
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


# What few programs name.
_OF_FEW = {
    "asgd": "ASGD", "adadelta": "Adadelta", "adafactor": "Adafactor", "adamax": "Adamax", "layerwise": "LAMB LARS", "muon": "Muon", "nadam": "NAdam",
    "radam": "RAdam", "rprop": "Rprop", "sparse_adam": "SparseAdam", "swapping": "swap_in_optimizer_params_and_state",
}  # fmt: skip
_part = on_first_use(__name__, _OF_FEW, publish)
_LATER = sorted(" ".join(_OF_FEW.values()).split())

__all__ = ["LBFGS", "SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSprop", "lr_scheduler", "swa_utils", *_LATER]


def __getattr__(name: str) -> object:
    return _part(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
