"""Searches on Ray that cannot go well, one cluster for all; run by test_ray.py."""

import contextlib
import os
import signal
import threading
import time

import ray

import calque
from calque import tune
from calque.tune.schedulers import ASHAScheduler


@contextlib.contextmanager
def raises(kind, *words):
    """It must raise, and say this."""
    try:
        yield
    except kind as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"expected {kind.__name__}")


def step(net, width):
    """Holds a lot where width is large."""
    net(calque.ones(64, width)).sum().backward()


def rehearse(config):
    """What a trial of this width would do."""
    return step, calque.nn.Linear(config["width"], config["width"]), config["width"]


def sleeps(config):
    """Until it is stopped."""
    while True:
        time.sleep(0.1)
        tune.report(loss=1.0)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with raises(RuntimeError, "expected a machine of the cluster with CPU 3", "got CPU 2", "ask for less"):
        tune.run(sleeps, resources_per_trial={"cpu": 3}, verbose=0)
    with raises(RuntimeError, "GPU 0.5", "GPU 0"):
        tune.run(sleeps, resources_per_trial={"gpu": 0.5}, verbose=0)
    with raises(ValueError, "expected a scheduler of calque.tune.schedulers or ray.tune.schedulers, got int"):
        tune.run(sleeps, scheduler=3, verbose=0)

    space = {"x": tune.grid_search([0, 1])}
    found = tune.run(lambda config: {"y": 1 / config["x"]}, config=space, verbose=0, raise_on_failed_trial=False)
    assert [t.status for t in found.trials] == ["ERROR", "TERMINATED"] and "ZeroDivisionError" in found.trials[0].error, found.trials
    assert found.trials[1].last_result["y"] == 1.0

    space = {"width": tune.grid_search([64, 4096])}
    halving = ASHAScheduler(metric="loss", mode="min", max_t=2)
    found = tune.run(
        lambda config: {"loss": 0.0}, config=space, rehearse=rehearse, resources_per_trial={"memory": "32MiB"}, scheduler=halving, verbose=0
    )
    assert [t.status for t in found.trials] == ["TERMINATED", "REFUSED"], found.trials
    assert "holds at most 33,554,432 bytes, got one that would hold 2" in found.trials[1].error

    handler = signal.getsignal(signal.SIGINT)
    threading.Timer(10, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with raises(KeyboardInterrupt):
        tune.run(sleeps, verbose=0)
    assert signal.getsignal(signal.SIGINT) is handler
    ray.shutdown()
    print("all said")
