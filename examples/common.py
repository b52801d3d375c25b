"""What the examples share: the command line, weights and draws by NumPy, and text to read.

NumPy draws because its numbers are the same with every version of every library: a run can be repeated anywhere.
"""

import argparse
import math
import sysconfig
from pathlib import Path

import numpy as np
import torch


def options(description, steps):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps, help="updates of the weights")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def draw_weights(module, rng):
    """Uniform weights of variance 1 / (inputs of a unit), and zero where PyTorch has a bias; scales of normalisations stay at one."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                limit = math.sqrt(3 / parameter[0].numel())
                parameter.copy_(torch.from_numpy(rng.uniform(-limit, limit, tuple(parameter.shape)).astype(np.float32)))
            elif "bias" in name:
                parameter.zero_()
    return module


def normal(rng, *shape):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def is_reported(step, steps):
    """Whether a loop of `steps` steps should print at this one: about ten times, and at the end."""
    return step % max(1, steps // 10) == 0 or step == steps


def library_text(characters):
    """The beginning of the source of Python's own standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = ""
    for name in ("textwrap", "random", "statistics", "argparse", "heapq", "string", "fractions"):
        text += (folder / f"{name}.py").read_text(encoding="utf-8")
        if len(text) >= characters:
            break
    return text[:characters]
