"""Search for the learning rate, batch size and layer widths of a network for handwritten digits.

    python examples/tune_digits.py [--trials 10] [--epochs 8] [--runner ray]

A trial that dies goes on from its newest checkpoint. Trials are processes of this machine, or, with --runner ray, of a cluster of Ray. Needs
scikit-learn, for the data.
"""

import argparse
import os
from functools import partial

import numpy as np

import calque
from calque import nn, tune
from calque.nn import functional as F
from calque.tune import CLIReporter
from calque.tune.schedulers import ASHAScheduler


def load_data(data_dir):
    """1,797 images of 8 by 8, cut into two parts."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = calque.tensor(x / 16, dtype=calque.float32), calque.tensor(y)
    return (x[:1400], y[:1400]), (x[1400:], y[1400:])


def train_cifar(config, checkpoint_dir=None, data_dir=None):
    """One trial."""
    (x, y), (test_x, test_y) = load_data(data_dir)
    l1, l2 = int(config["l1"]), int(config["l2"])
    net = nn.Sequential(nn.Linear(64, l1), nn.ReLU(), nn.Linear(l1, l2), nn.ReLU(), nn.Linear(l2, 10))
    optimizer = calque.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    if checkpoint_dir:
        state = calque.load(os.path.join(checkpoint_dir, "checkpoint.calque"))
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(state["epoch"] + 1 if checkpoint_dir else 0, max_num_epochs):
        order = calque.randperm(len(x))
        for rows in order.split(int(config["batch_size"])):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        with calque.no_grad():
            found = net(test_x)
            loss, accuracy = F.cross_entropy(found, test_y).item(), (found.argmax(1) == test_y).float().mean().item()
        with tune.checkpoint_dir(epoch) as folder:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            calque.save(state, os.path.join(folder, "checkpoint.calque"))
        tune.report(loss=loss, accuracy=accuracy)


max_num_epochs, num_samples, gpus_per_trial = 8, 10, 0

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=num_samples)
    parser.add_argument("--epochs", type=int, default=max_num_epochs)
    parser.add_argument("--runner", choices=["local", "ray"], default="local")
    options = parser.parse_args()
    max_num_epochs, num_samples = options.epochs, options.trials

    data_dir = os.path.abspath("./data")
    load_data(data_dir)
    config = {
        "l1": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
        "l2": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
        "lr": tune.loguniform(1e-4, 1e-1),
        "batch_size": tune.choice([2, 4, 8, 16]),
    }
    scheduler = ASHAScheduler(metric="loss", mode="min", max_t=max_num_epochs, grace_period=1, reduction_factor=2)
    reporter = CLIReporter(metric_columns=["loss", "accuracy", "training_iteration"])
    result = tune.run(
        partial(train_cifar, data_dir=data_dir),
        resources_per_trial={"cpu": 1, "gpu": gpus_per_trial},
        config=config, num_samples=num_samples,
        scheduler=scheduler,
        progress_reporter=reporter,
        runner=options.runner,
    )
    best = result.get_best_trial("loss", "min", "last")
    print(f"best: {best.config}, loss {best.last_result['loss']:.4f}, accuracy {best.last_result['accuracy']:.4f}")
