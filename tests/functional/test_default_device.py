"""Where tensors go if nobody says where: `set_default_device` and `with device:`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import DeviceError

META = calque.device("meta")


@pytest.fixture(autouse=True)
def _no_default_afterwards(two_devices: None) -> Iterator[None]:
    yield
    calque.set_default_device(None)


MAKERS: list[Callable[[], Any]] = [
    lambda: calque.zeros(2),
    lambda: calque.tensor([1.0]),
    lambda: calque.arange(3),
    lambda: calque.randn(2),
    lambda: calque.eye(2),
    lambda: calque.as_tensor(np.ones(2)),
    lambda: nn.Linear(2, 2).weight,
    lambda: nn.BatchNorm1d(2).running_mean,
    lambda: nn.LSTM(2, 2).weight_hh_l0,
    lambda: nn.Parameter(calque.ones(2)),
    lambda: nn.Transformer.generate_square_subsequent_mask(2),
]


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_made_goes_there(make: Callable[[], Any]) -> None:
    calque.set_default_device("cpu:1")
    assert str(make().device) == "cpu:1"
    assert str(calque.get_default_device()) == "cpu:1"
    with META:
        assert make().device is META
        with calque.device("cpu"):
            assert str(make().device) == "cpu"
        assert make().device is META
    calque.set_default_device(None)
    assert str(make().device) == str(calque.get_default_device()) == "cpu"


def test_what_has_a_place_stays_there() -> None:
    """A device that is given, tensors like others, results, and what layers make for their inputs."""
    x = calque.ones(2, 3)
    lstm, norm = nn.LSTM(3, 2), nn.BatchNorm1d(3, device="cpu:1")
    assert str(norm.running_mean.device) == str(norm.num_batches_tracked.device) == "cpu:1"
    with calque.device("cpu:1"):
        assert str(calque.zeros(2, device="cpu").device) == "cpu"
        assert str(calque.zeros_like(x).device) == str(x.new_zeros(2).device) == str((x * 2).sum().device) == "cpu"
        out, _ = lstm(x)
        assert str(out.device) == "cpu"
        out.sum().backward()
        assert str(lstm.weight_ih_l0.grad.device) == "cpu"
        optimizer = calque.optim.Adam(lstm.parameters())
        optimizer.step()
        assert str(optimizer.state[lstm.weight_ih_l0]["exp_avg"].device) == "cpu"


def test_other_threads_and_errors_change_nothing() -> None:
    found: list[str] = []
    with META, pytest.raises(ValueError, match="inside"):
        thread = threading.Thread(target=lambda: found.append(str(calque.zeros(1).device)))
        thread.start()
        thread.join()
        with calque.device("cpu:1"):
            raise ValueError("inside")
    assert found == ["cpu"]
    assert str(calque.zeros(1).device) == "cpu"
    with pytest.raises(DeviceError, match=r"\[device\].*cuda:0"):
        calque.set_default_device("cuda:0")
    with pytest.raises(DeviceError, match="cpu:7"), calque.device("cpu:7"):
        pass
    assert calque.get_default_device() is calque.device("cpu")


def test_a_hybridized_call_is_another_one_elsewhere() -> None:
    @calque.compile
    def made(n: int) -> Any:
        return calque.arange(n) * 2

    for _ in range(6):
        assert str(made(3).device) == "cpu"
        with calque.device("cpu:1"):
            assert str(made(3).device) == "cpu:1"
            assert made(3).tolist() == [0, 2, 4]


def test_libraries_learn_the_kinds_of_devices_from_the_refusal() -> None:
    """The Array API's `devices()` reads them from PyTorch's words."""
    with pytest.raises(DeviceError) as caught:
        calque.device("notadevice")
    kinds = str(caught.value).split("Expected one of ")[1].split(" device type")[0].split(", ")
    assert kinds[0] == "cpu" and "meta" in kinds and "notadevice" not in kinds
    assert "at start of device string: notadevice" in str(caught.value)


def test_kinds_that_nobody_serves_are_names() -> None:
    """Programs compare with them (`x.device == torch.device("mps")`); using one is refused."""
    for name in ("mps", "xpu", "mps:0"):
        device = calque.device(name)
        assert str(device) == name and device != calque.ones(1).device and device is calque.device(name)
        kind = name.partition(":")[0]
        text = rf"\[device\] expected a device that exists, got one of the kind '{kind}': nothing serves it; or use device='cpu'"
        for use in (lambda name: calque.ones(1, device=name), calque.ones(1).to, calque.nn.Linear(1, 1).to):
            with pytest.raises(DeviceError, match=text):
                use(name)
        with pytest.raises(DeviceError, match=text), device:
            pass
