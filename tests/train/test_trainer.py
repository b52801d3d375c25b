"""The Trainer: what it computes is what a plain loop computes, it goes on bit for bit wherever it was killed, and nothing is lost on a full disk."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError, CheckpointError, DTypeError, NonFiniteError
from calque.data import DataLoader, Dataset, TensorDataset
from calque.train import Checkpoints, Trainer, lr_find

F = nn.functional


class Noisy(Dataset[Any]):
    """Samples that are another each time, from two streams of random numbers."""

    def __init__(self, count: int = 26) -> None:
        self.values = np.random.default_rng(0).normal(size=(count, 6)).astype(np.float32)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index] + np.float32(random.gauss(0, 0.1)) + np.float32(np.random.normal(0, 0.1)), index % 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    def forward(self, x: Any) -> Any:
        return self.body(x)


def accuracy(outputs: Any, targets: Any) -> Any:
    return (outputs.argmax(1) == targets).float().mean()


class Killed(BaseException):
    """As if the process ended here."""


def trainer(folder: Path, **options: Any) -> Any:
    calque.manual_seed(4)
    random.seed(4)
    np.random.seed(4)
    model = Net()
    optimizer = calque.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = calque.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    settings = {"schedule": "step", "accumulate": 2, "max_norm": 1.0, "metrics": {"accuracy": accuracy}, "quiet": True, "scheduler": scheduler}
    return Trainer(model, optimizer, F.cross_entropy, folder=folder, **(settings | options))


def loaders(workers: int = 0, generator: Any = None) -> Any:
    kind = "thread" if workers else None
    training = DataLoader(Noisy(), 4, shuffle=True, num_workers=workers, multiprocessing_context=kind, generator=generator)
    return training, DataLoader(Noisy(9), 4)


def values(model: Any) -> dict[str, Any]:
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("options", [{"save_every": 1}, {"save_every": 3, "amp": "bfloat16"}, {"amp": "float16", "save_every": 2}])
def test_it_goes_on_bit_for_bit_wherever_it_was_killed(tmp_path: Path, rng: np.random.Generator, options: dict[str, Any]) -> None:
    """With dropout, batch norm, samples that are drawn, a scheduler, accumulation; killed at random steps, again and again."""
    whole = trainer(tmp_path / "whole", **options)
    history = whole.fit(*loaders(), epochs=3)
    moments = sorted(rng.choice(np.arange(1, 20), 7, replace=False).tolist())
    for moment in [*moments, 1 << 30]:
        run = trainer(tmp_path / "killed", **options)
        run.resume()
        update, count = run._update, [run.updates]

        def dying(group: Any, update: Any = update, count: Any = count, moment: int = moment) -> Any:
            count[0] += 1
            if count[0] > moment:
                raise Killed
            return update(group)

        run._update = dying
        try:
            run.fit(*loaders(), epochs=3)
        except Killed:
            continue
    assert values(run.model) == values(whole.model) and run.history == history == run.history
    assert (tmp_path / "killed" / "losses.jsonl").read_text() == (tmp_path / "whole" / "losses.jsonl").read_text()
    assert calque.get_rng_state().tolist() == whole_state(tmp_path / "whole")


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2, 7])
def test_a_kill_between_the_last_update_of_an_epoch_and_its_end(tmp_path: Path, accumulate: int, own: bool) -> None:
    """The loader has seen its end there, or has not: 7 batches in groups. Its own generator goes on for the next epoch."""

    def data() -> Any:
        return loaders(generator=calque.Generator().manual_seed(8) if own else None)

    whole = trainer(tmp_path / "whole", save_every=1, accumulate=accumulate)
    whole.fit(*data(), epochs=2)
    run = trainer(tmp_path / "run", save_every=1, accumulate=accumulate)

    def die(_: Any) -> Any:
        raise Killed

    run.evaluate = die
    with pytest.raises(Killed):
        run.fit(*data(), epochs=2)
    run = trainer(tmp_path / "run", save_every=1, accumulate=accumulate)
    run.resume()
    assert run.epoch == 0 and run.step == -(-7 // accumulate)
    run.fit(*data(), epochs=2)
    assert values(run.model) == values(whole.model) and run.history == whole.history


def test_a_run_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    """With the losses of its own steps alone: those of the one before stood in front of them."""
    whole = trainer(tmp_path / "whole", save_every=3)
    whole.fit(*loaders(), epochs=1)
    run = trainer(tmp_path / "run", save_every=3)
    update, seen = run._update, [0]

    def second(group: Any) -> Any:
        seen[0] += 1
        if seen[0] == 3:
            raise Killed
        return update(group)

    run._update = second  # type: ignore[method-assign]
    with pytest.raises(Killed):
        run.fit(*loaders(), epochs=1)
    run.checkpoints.clear()  # as if the disk had taken none
    assert run.losses.read_text()
    run = trainer(tmp_path / "run", save_every=3)
    assert not run.resume()
    run.fit(*loaders(), epochs=1)
    assert run.losses.read_bytes() == whole.losses.read_bytes()


def whole_state(folder: Path) -> Any:
    return Checkpoints(folder).load()["streams"]["calque"].tolist()


def test_longer_training_after_the_end(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole")
    whole.fit(*loaders(), epochs=3)
    for epochs in (1, 3):
        run = trainer(tmp_path / "parts")
        assert run.resume() == (epochs == 3)
        run.fit(*loaders(), epochs=epochs)
    assert values(run.model) == values(whole.model) and len(run.history) == 3


def test_accumulation_is_the_big_batch() -> None:
    """Also with a last group, and a last batch, that are smaller."""
    x, y = calque.randn(22, 6, dtype=calque.float64), calque.arange(22) % 3

    def run(batch: int, accumulate: int, folder: str) -> Any:
        calque.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        optimizer = calque.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loop = Trainer(model, optimizer, F.cross_entropy, folder=folder, accumulate=accumulate, max_norm=0.5, quiet=True)
        loop.fit(DataLoader(TensorDataset(x, y), batch), epochs=2)
        return calque.cat([p.detach().reshape(-1) for p in model.parameters()]), loop.history

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        big, losses = run(8, 1, f"{folder}/1")
        small, others = run(3, 3, f"{folder}/2")  # groups of 9, 9, 4 samples
        same, _ = run(2, 4, f"{folder}/3")  # groups of 8, 8, 6
    assert (big - same).abs().max().item() < 1e-12 < (big - small).abs().max().item()
    assert losses[0]["loss"] != others[0]["loss"]


def test_early_stopping_best_checkpoints_and_the_index(tmp_path: Path) -> None:
    run = trainer(tmp_path, monitor="val_accuracy", mode="max", patience=2, keep=2)
    figures = iter([0.1, 0.5, 0.4, 0.5, 0.9])
    run.evaluate = lambda loader: {"loss": 1.0, "accuracy": next(figures)}
    seen: list[int] = []
    run.on_epoch = lambda loop, entry: seen.append(entry["epoch"])
    run.fit(*loaders(), epochs=9)
    assert seen == [1, 2, 3, 4] and "val_accuracy has not become better for 2 epochs" in run.stopped
    index = json.loads((tmp_path / "index.json").read_text())
    best = run.checkpoints.best.name
    assert [e["value"] for e in index["best"]] == [0.5, 0.5] and best.startswith("epoch002") and "val_accuracy0.5" in best
    files = {entry["file"] for kind in ("last", "best") for entry in index[kind]}
    assert {p.name for p in tmp_path.glob("*.calque")} == files and len(files) == 3
    assert Checkpoints(tmp_path).best == run.checkpoints.best  # another process


def test_a_damaged_checkpoint_and_a_damaged_index(tmp_path: Path) -> None:
    run = trainer(tmp_path, keep=0)
    run.fit(*loaders(), epochs=3)
    newest = run.checkpoints.last
    content = bytearray(newest.read_bytes())
    content[-5] ^= 1
    newest.write_bytes(content)
    again = trainer(tmp_path, keep=0)
    with pytest.warns(UserWarning, match=rf"expected {newest.name} to be whole .*; the checkpoint before it is taken"):
        again.resume()
    assert again.epoch == 2
    again.fit(*loaders(), epochs=3)
    assert values(again.model) == values(run.model)
    index = (tmp_path / "index.json").read_text()
    for text in ("{", "[]", '{"last": [{"file": "../x", "value": 0, "epoch": 0, "step": 0}], "best": []}'):
        (tmp_path / "index.json").write_text(text)
        with pytest.warns(UserWarning, match=r"expected an index of checkpoints in .*; the 2 files there are taken instead"):
            again = trainer(tmp_path)
        assert again.resume() and again.epoch == 3
    for file in tmp_path.glob("*.calque"):
        file.unlink()
    (tmp_path / "index.json").write_text(index)
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="got none that can be read"):
        trainer(tmp_path).resume()


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: every write, flush and rename of the third epoch fails."""
    whole = trainer(tmp_path / "whole")
    whole.fit(*loaders(), epochs=4)
    for call in ("fsync", "replace"):
        folder = tmp_path / call
        run = trainer(folder)

        def at(loop: Any, figures: Any, call: str = call) -> None:
            monkeypatch.undo()
            if figures["epoch"] == 3:
                monkeypatch.setattr(os, call, full)

        run.on_epoch = at
        with pytest.warns(UserWarning, match=r"bytes needed, .* free; .*training goes on, the last checkpoint is .*epoch002"):
            warnings.filterwarnings("ignore", ".*its lines are tried again")  # of the losses
            run.fit(*loaders(), epochs=4)
        assert values(run.model) == values(whole.model)
        assert Checkpoints(folder).load()["epoch"] == 4 and not [p for p in os.listdir(folder) if ".tmp" in p]


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.layer(x.sqrt())


def test_a_loss_that_is_no_number_names_its_operation_and_line(tmp_path: Path) -> None:
    calque.manual_seed(0)
    x = calque.rand(20, 6)
    x[13, 2] = -1.0
    model = Root()
    run = Trainer(model, calque.optim.SGD(model.parameters(), lr=0.1), F.cross_entropy, folder=tmp_path, quiet=True)
    with pytest.raises(NonFiniteError, match=r"got nan in epoch 1, step 3; it comes from: .*sqrt.*test_trainer.py.*the last good checkpoint is "
    r".*epoch000"):
        run.fit(DataLoader(TensorDataset(x, calque.arange(20) % 3), 4), epochs=1)
    assert all(np.isfinite(p.detach().numpy()).all() for p in model.parameters())  # as before that step


PROGRAM = """
    import os, signal, sys
    import calque
    from tests.train.test_trainer import loaders, trainer
    loop = trainer({folder!r}, quiet=False)
    loop.resume()
    update = loop._update
    def hit(group):
        if loop.updates == 5 and "stop" in sys.argv:
            os.kill(os.getpid(), signal.{name})
        return update(group)
    loop._update = hit
    loop.fit(*loaders(), epochs=3)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", -2), ("SIGKILL", -9)])
def test_signals(tmp_path: Path, name: str, code: int) -> None:
    whole = trainer(tmp_path / "whole")
    whole.fit(*loaders(), epochs=3)
    program = textwrap.dedent(PROGRAM.format(folder=str(tmp_path / "run"), name=name))
    environment = os.environ | {"PYTHONPATH": str(Path(calque.__file__).parents[1])}
    for stop in ("stop", "on"):
        done = subprocess.run([sys.executable, "-c", program, stop], capture_output=True, text=True, env=environment, timeout=300, check=False)
        assert done.returncode == (code if stop == "stop" else 0), done.stderr
        if stop == "stop" and name != "SIGKILL":
            assert Checkpoints(tmp_path / "run").load()["updates"] == 6  # the step was done
    assert "val_accuracy" in done.stdout
    run = trainer(tmp_path / "run")
    run.resume()
    assert values(run.model) == values(whole.model)


KILLS = 200


@pytest.mark.slow
def test_200_kills(tmp_path: Path, rng: np.random.Generator) -> None:
    """kill -9 at random moments of training and saving: the losses are those of a run that nobody disturbed, and no checkpoint is lost."""
    trainer(tmp_path / "whole", save_every=1).fit(*loaders(), epochs=3)
    program = textwrap.dedent(PROGRAM.format(folder=str(tmp_path / "run"), name="SIGKILL")).replace("quiet=False", "save_every=1")
    environment = os.environ | {"PYTHONPATH": str(Path(calque.__file__).parents[1])}
    program = program.replace("loop.resume()", 'print("begin", flush=True)\nloop.resume()')

    def begun(text: str) -> Any:
        process = subprocess.Popen([sys.executable, "-c", text, "on"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        assert process.stdout is not None and process.stdout.readline() == b"begin\n"
        return process

    process, started = begun(program.replace("/run'", "/first'")), time.monotonic()
    process.communicate()
    whole = time.monotonic() - started
    last, landed = -1, 0
    for kill in range(KILLS):
        process = begun(program)
        try:
            _, errors = process.communicate(timeout=float(rng.uniform(0.0, 1.0)) * whole)
            assert process.returncode == 0, errors
            assert (tmp_path / "run" / "losses.jsonl").read_text() == (tmp_path / "whole" / "losses.jsonl").read_text(), kill
            for file in (tmp_path / "run").iterdir():
                file.unlink()
            last = -1
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            if (tmp_path / "run" / "index.json").exists():
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    found = Checkpoints(tmp_path / "run")
                    state = found.load() if found.last is not None else {"updates": -1}
                assert state["updates"] >= last
                landed += state["updates"] > last
                last = state["updates"]
    print(f"{landed} of {KILLS} kills came behind a new checkpoint")
    assert landed > KILLS // 20


def test_wrong_arguments(tmp_path: Path) -> None:
    model = Net()
    optimizer = calque.optim.SGD(model.parameters(), lr=0.1)
    for options, words in (
        ({"accumulate": 0}, "accumulate to be an integer >= 1, got 0"), ({"patience": 1.5}, "patience"), ({"amp": "float64"}, "amp to be one of"),
        ({"schedule": "batch"}, "schedule to be one of"), ({"mode": "best"}, "mode to be 'min' or 'max', got 'best'"), ({"keep": -1}, "keep"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            Trainer(model, optimizer, F.cross_entropy, folder=tmp_path / "x", **options)
    with pytest.raises(TypeError, match="expected a Module and a loss function"):
        Trainer(optimizer, optimizer, F.cross_entropy, folder=tmp_path)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="expected a folder that can be written"):
        Trainer(model, optimizer, F.cross_entropy, folder=tmp_path / "file")
    run = Trainer(model, optimizer, F.cross_entropy, folder=tmp_path / "run", monitor="acc", quiet=True)
    with pytest.raises(ValueError, match=r"expected monitor to be one of \['epoch', 'loss'\], got 'acc'"):
        run.fit(loaders()[0], epochs=1)
    with pytest.raises(TypeError, match=r"expected batches \(inputs, targets\), got calque.Tensor|Tensor; override"):
        Trainer(model, optimizer, F.cross_entropy, folder=tmp_path / "t", quiet=True).fit([calque.ones(2, 6)], epochs=1)
    with pytest.raises(CheckpointError, match="expected a checkpoint of a Trainer"):
        run.load_state_dict({"model": 1})
    used = Trainer(model, optimizer, F.cross_entropy, folder=tmp_path / "run", quiet=True, config={"width": 16})
    with pytest.raises(CheckpointError, match=r"expected resume\(\) before fit, because .* has checkpoints of an earlier run"):
        used.fit(loaders()[0], epochs=1)
    with pytest.raises(CheckpointError, match="width: saved None, now 16"):
        used.resume()
    used.clear()
    used.fit(loaders()[0], epochs=1)
    assert used.checkpoints.last is not None and len(list((tmp_path / "run").glob("*.calque"))) == 2
    with pytest.raises(CheckpointError, match="expected a checkpoint with a scheduler"):
        trainer(tmp_path / "s").load_state_dict(run.state_dict())


def test_a_rate_is_found_and_nothing_is_changed(tmp_path: Path) -> None:
    """Least squares with one curvature: a rate of the order of 1 / curvature, below 2 / curvature, where gradient descent explodes."""
    calque.manual_seed(0)
    for scale in (1.0, 10.0):
        model = nn.Linear(4, 1, bias=False)
        x = calque.eye(4).repeat(8, 1) * 2 * scale
        data = [(x, x @ calque.ones(4, 1))]
        optimizer = calque.optim.SGD(model.parameters(), lr=0.5, momentum=0.1)
        before, stream = values(model), calque.get_rng_state().tolist()
        found = lr_find(model, optimizer, F.mse_loss, data, start=1e-6, end=100.0)
        assert 0.005 < found.suggestion * 2 * scale**2 < 2.2
        assert values(model) == before and optimizer.param_groups[0]["lr"] == 0.5 and not optimizer.state_dict()["state"]
        assert calque.get_rng_state().tolist() == stream
    with pytest.raises(ValueError, match="expected 0 < start < end"):
        lr_find(model, optimizer, F.mse_loss, data, start=1.0, end=0.1)
    with pytest.raises(ValueError, match="a loss that is finite at small rates"):
        lr_find(model, optimizer, lambda a, b: F.mse_loss(a, b) * float("inf"), data)
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


def test_it_goes_on_with_a_loader_that_has_a_generator_of_its_own(tmp_path: Path) -> None:
    def run(folder: str, epochs: int) -> Any:
        made = trainer(tmp_path / folder)
        made.resume()
        made.fit(DataLoader(Noisy(), 4, shuffle=True, generator=calque.Generator().manual_seed(8)), epochs=epochs)
        return made.losses.read_text()

    whole = run("whole", 3)
    run("parts", 1)
    run("parts", 2)
    assert run("parts", 3) == whole


def test_a_signal_that_comes_after_the_last_step_ends_it_too(tmp_path: Path) -> None:
    made = trainer(tmp_path, on_epoch=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):
        made.fit(*loaders(), epochs=1)
    assert made.checkpoints.last is not None and "epoch001" in made.checkpoints.last.name


def test_checkpoints_that_are_written_while_training_goes_on(tmp_path: Path, rng: np.random.Generator) -> None:
    """A checkpoint is the state at the call, whatever was overwritten since; every one of them resumes to the same bits; errors come out later."""
    whole = trainer(tmp_path / "whole", save_every=1)
    whole.fit(*loaders(), epochs=3)
    made = trainer(tmp_path / "beside", save_every=1, wait=False)
    state = made.state_dict()
    before = values(made.model)
    slow, written = threading.Event(), calque.save

    def later(*args: Any, **keywords: Any) -> None:
        slow.wait(20)
        written(*args, **keywords)

    made.checkpoints.folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calque, "save", later)
        made.checkpoints.save(state, 0, 0, wait=False)
        for parameter in made.model.parameters():
            with calque.no_grad():
                parameter.mul_(3.0)
        slow.set()
        made.checkpoints.wait()
    found = made.checkpoints.load()["model_state_dict"]
    assert {name: value.numpy().tobytes() for name, value in found.items()} == before
    made.checkpoints.clear()
    made = trainer(tmp_path / "beside", save_every=1, wait=False)
    stop = int(rng.integers(2, 10))

    def killed(*_: Any, **__: Any) -> Any:
        if made.updates >= stop:
            raise Killed
        return F.cross_entropy(*_)

    made.loss_fn = killed
    with pytest.raises(Killed):
        made.fit(*loaders(), epochs=3)
    made.checkpoints.wait()
    again = trainer(tmp_path / "beside", save_every=1, wait=False)
    again.resume()
    again.fit(*loaders(), epochs=3)
    assert values(again.model) == values(whole.model) and again.losses.read_text() == whole.losses.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calque, "save", lambda *_: (_ for _ in ()).throw(CheckpointError("no room")))
        again.checkpoints.save({}, 9, 9, wait=False)
        with pytest.raises(CheckpointError, match="no room"):
            again.checkpoints.wait()
        again.save()
        with pytest.warns(UserWarning, match="no room; training goes on"):
            again.save(last=True)
    assert again.checkpoints.load()["epoch"] == 3


def test_when_the_last_two_are_damaged_a_best_one_is_taken(tmp_path: Path) -> None:
    run = trainer(tmp_path, keep=4)
    run.fit(*loaders(), epochs=4)
    for entry in run.checkpoints.entries["last"]:
        (tmp_path / entry["file"]).write_bytes(b"nothing")
    again = trainer(tmp_path, keep=4)
    with pytest.warns(UserWarning, match="the checkpoint before it is taken"):
        assert again.resume()
    assert again.epoch == 2


def test_what_a_trainer_cannot_work_with_is_refused(tmp_path: Path) -> None:
    """A metric called loss was averaged with the loss, and an epoch without batches had the loss 0, the best of all."""
    x, y = calque.randn(8, 4), calque.arange(8) % 2

    def made(folder: str, loss: Any = nn.functional.cross_entropy, optimizer: Any = calque.optim.SGD, **options: Any) -> Trainer:
        model = nn.Linear(4, 2)
        return Trainer(model, optimizer(model.parameters(), lr=0.1), loss, folder=tmp_path / folder, quiet=True, **options)

    for name in ("loss", "epoch", "val_loss"):
        with pytest.raises(ArgumentError, match=r"\[Trainer\] expected names of metrics other than epoch, loss and val_..., got"):
            made("names", metrics={name: lambda outputs, targets: outputs.mean()})
    with pytest.raises(DTypeError, match=r"\[Trainer\] expected an optimizer whose step\(\) takes no function, got LBFGS"):
        made("lbfgs", optimizer=calque.optim.LBFGS)
    model = nn.Linear(4, 2)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match=r"\[Trainer\] expected schedule='epoch' for ReduceLROnPlateau"):
        Trainer(model, optimizer, nn.functional.cross_entropy, folder=tmp_path / "plateau", schedule="step",
                scheduler=calque.optim.lr_scheduler.ReduceLROnPlateau(optimizer))  # fmt: skip
    for loss in (lambda outputs, targets: None, lambda outputs, targets: 1.0, lambda outputs, targets: outputs):
        with pytest.raises(DTypeError, match=r"\[Trainer\] expected loss_fn\(outputs, targets\) to give the mean loss, one number as a Tensor, got"):
            made("loss", loss).fit([(x, y)])
        (tmp_path / "loss" / "index.json").unlink()
    once = made("once")
    with pytest.raises(ArgumentError, match=r"\[Trainer\] expected batches with samples for epoch 2, got none; a generator"):
        once.fit(((x, y) for _ in range(2)), epochs=2)
    assert len(once.history) == 1
    with pytest.raises(ArgumentError, match=r"\[Trainer\] expected batches with samples to evaluate, got none"):
        made("validation").fit([(x, y)], [])


def test_a_run_goes_on_with_the_same_optimizer_and_accumulation(tmp_path: Path) -> None:
    x, y = calque.randn(8, 4), calque.arange(8) % 2

    def made(kind: Any = calque.optim.SGD, accumulate: int = 1) -> Trainer:
        model = nn.Linear(4, 2)
        optimizer = kind(model.parameters(), lr=0.1)
        return Trainer(model, optimizer, nn.functional.cross_entropy, folder=tmp_path, accumulate=accumulate, save_every=1, quiet=True)

    class Cut(Exception):
        pass

    def batches() -> Iterator[Any]:
        for k in range(4):
            if k == 2:
                raise Cut
            yield x, y

    with pytest.raises(Cut):
        made().fit(batches())
    with pytest.raises(CheckpointError, match="expected a checkpoint of a run with the optimizer Adam, got one with SGD"):
        made(calque.optim.Adam).resume()
    with pytest.raises(CheckpointError, match="expected a checkpoint of a run with the accumulate 2, got one with 1"):
        made(accumulate=2).resume()
    assert made().resume()


def test_an_error_leaves_nobody_who_still_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that catches it and goes on from the folder at once read an index that was written over a moment later."""
    write = Checkpoints._save

    def slow(self: Any, *arguments: Any) -> None:
        time.sleep(0.2)
        write(self, *arguments)

    monkeypatch.setattr(Checkpoints, "_save", slow)
    made = trainer(tmp_path, save_every=1, wait=False)
    update = made._update
    made._update = lambda group: (_ for _ in ()).throw(Killed) if made.updates == 2 else update(group)
    with pytest.raises(Killed):
        made.fit(*loaders(), epochs=1)
    assert not [t for t in threading.enumerate() if t.name == "calque-checkpoint"]
    again = trainer(tmp_path, save_every=1)
    assert again.resume() and again.updates == 2
