"""Training and fine-tuning beyond the plain loop, and the training jobs that the command line offers."""

import sys

from calque.functional.blame import publish as _publish
from calque.train.checkpoints import Checkpoints
from calque.train.lr_find import Rates, lr_find
from calque.train.trainer import Trainer
from calque.train.transfer import (
    LoadReport,
    cached_features,
    finetune,
    freeze,
    load_partial,
    lora,
    lora_state_dict,
    merge_lora,
    parameter_groups,
    replace_head,
    reuse_classifier,
    unfreeze,
)

__all__ = [
    "Checkpoints",
    "LoadReport",
    "Rates",
    "Trainer",
    "cached_features",
    "finetune",
    "freeze",
    "load_partial",
    "lora",
    "lora_state_dict",
    "lr_find",
    "merge_lora",
    "parameter_groups",
    "replace_head",
    "reuse_classifier",
    "unfreeze",
]

_publish(sys.modules[__name__])
