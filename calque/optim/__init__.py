"""Optimizers and learning-rate schedules under PyTorch's names."""

from calque.optim import lr_scheduler, swa_utils
from calque.optim.adam import Adam, AdamW
from calque.optim.adaptive import Adagrad, RMSprop
from calque.optim.lbfgs import LBFGS
from calque.optim.optimizer import Optimizer
from calque.optim.sgd import SGD

__all__ = ["LBFGS", "SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSprop", "lr_scheduler", "swa_utils"]
