"""The snippet of the sources with a trial that dies, here and on Ray; prints what each has found; run by test_ray.py."""

import json
import os
import random
import sys
from functools import partial

import calque
from calque import nn, tune
from calque.tune import CLIReporter
from calque.tune.schedulers import ASHAScheduler


def train_cifar(config, checkpoint_dir=None, data_dir=None):
    """One trial."""
    assert data_dir == os.path.abspath("data")
    net = nn.Sequential(nn.Linear(8, int(config["l1"])), nn.Linear(int(config["l1"]), 1))
    optimizer = calque.optim.SGD(net.parameters(), lr=config["lr"])
    start = 0
    if checkpoint_dir:
        state = calque.load(os.path.join(checkpoint_dir, "checkpoint.calque"))
        net.load_state_dict(state["net"])
        start = state["epoch"] + 1
        assert tune.get_checkpoint().path == checkpoint_dir
    for epoch in range(start, 4):
        loss = (net(calque.rand(config["batch_size"], 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tune.checkpoint_dir(epoch) as folder:
            calque.save({"net": net.state_dict(), "epoch": epoch}, os.path.join(folder, "checkpoint.calque"))
        tune.report(loss=loss, accuracy=0.5, start=start)
        if epoch == 1 and not checkpoint_dir and config["dies"]:
            os._exit(9)


if __name__ == "__main__":
    data_dir, max_num_epochs, num_samples, gpus_per_trial = os.path.abspath("data"), 4, 2, 0
    for runner in ("local", "ray"):
        draw = random.Random(0)
        config = {
            "l1": tune.sample_from(lambda _, draw=draw: 2 ** draw.randrange(2, 9)),
            "lr": tune.loguniform(1e-4, 1e-1),
            "batch_size": tune.choice([2, 4, 8, 16]),
            "dies": tune.grid_search([True, False]),
        }
        scheduler = ASHAScheduler(metric="loss", mode="min", max_t=max_num_epochs, grace_period=4, reduction_factor=2)
        reporter = CLIReporter(metric_columns=["loss", "accuracy", "training_iteration"])
        result = tune.run(
            partial(train_cifar, data_dir=data_dir),
            resources_per_trial={"cpu": 1, "gpu": gpus_per_trial},
            config=config, num_samples=num_samples,
            scheduler=scheduler,
            progress_reporter=reporter, max_failures=1, seed=3, runner=runner, storage_path=os.path.join(sys.argv[1], runner),
        )  # fmt: skip
        rows = [[t.trial_id, dict(t.config), t.status, t.failures, *(list(map(dict, t.results)))] for t in result.trials]
        for row in rows:
            for values in row[4:]:
                values.pop("time_total_s")
        states = [calque.load(os.path.join(t.checkpoint.path, "checkpoint.calque"))["epoch"] for t in result.trials]
        print("found", json.dumps([rows, states, result.best_trial.trial_id], default=float))
