"""The snippet of the sources under Ray Tune itself, with a function that trains by Calque and a trial that dies; run by test_ray.py."""

import os
import sys
import tempfile
from functools import partial

import numpy as np
import ray
from ray import tune
from ray.tune import CLIReporter
from ray.tune.schedulers import ASHAScheduler


def train_cifar(config, data_dir=None):
    """One trial."""
    import calque
    from calque import nn

    found, start = tune.get_checkpoint(), 0
    net = nn.Linear(8, 1)
    optimizer = calque.optim.SGD(net.parameters(), lr=config["lr"])
    if found:
        with found.as_directory() as folder:
            state = calque.load(os.path.join(folder, "state.calque"))
        net.load_state_dict(state["net"])
        start = state["epoch"] + 1
    for epoch in range(start, 4):
        loss = (net(calque.ones(config["batch_size"], 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            calque.save({"net": net.state_dict(), "epoch": epoch}, os.path.join(folder, "state.calque"))
            metrics = {"loss": loss.item(), "accuracy": 0.5, "start": start}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
        if epoch == 1 and not found and config["dies"]:
            os._exit(9)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    config = {
        "l1": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
        "lr": tune.loguniform(1e-4, 1e-1),
        "batch_size": tune.choice([2, 4, 8, 16]),
        "dies": tune.grid_search([True, False]),
    }
    scheduler = ASHAScheduler(metric="loss", mode="min", max_t=4, grace_period=4, reduction_factor=2)
    result = tune.run(
        partial(train_cifar, data_dir="data"), resources_per_trial={"cpu": 0.5, "gpu": 0}, config=config, scheduler=scheduler, max_failures=1,
        progress_reporter=CLIReporter(metric_columns=["loss", "accuracy", "training_iteration"]), storage_path=sys.argv[1], verbose=1,
    )  # fmt: skip
    for trial in result.trials:
        print("trial", trial.config["dies"], trial.status, trial.last_result["start"], trial.last_result["training_iteration"])
