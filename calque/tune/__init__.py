"""Search for hyper-parameters: many short trainings on this machine, in the words of Ray Tune.

>>> from calque import tune
>>> space = {"lr": tune.uniform(0, 1)}
>>> found = tune.run(lambda config: {"loss": config["lr"] ** 2}, config=space, num_samples=3, metric="loss", mode="min", verbose=0)
>>> len(found.trials), found.best_result["loss"] == found.best_config["lr"] ** 2
(3, True)
"""

from calque.tune import schedulers
from calque.tune.reporter import CLIReporter
from calque.tune.runner import run
from calque.tune.search import OptunaSearch
from calque.tune.session import Checkpoint, checkpoint_dir, get_checkpoint, get_trial_id, report
from calque.tune.space import choice, grid_search, lograndint, loguniform, quniform, randint, randn, sample_from, uniform
from calque.tune.trial import ExperimentAnalysis, Trial

__all__ = [
    "CLIReporter", "Checkpoint", "ExperimentAnalysis", "OptunaSearch", "Trial", "checkpoint_dir", "choice", "get_checkpoint", "get_trial_id",
    "grid_search", "lograndint", "loguniform", "quniform", "randint", "randn", "report", "run", "sample_from", "schedulers", "uniform",
]  # fmt: skip
