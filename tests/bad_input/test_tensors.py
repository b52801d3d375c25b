"""Bad input, rows 15 to 19, 22, 23, 29 and 45 to 47: numbers, data, memory, devices and indices."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import calque as torch
from calque import nn
from calque.base.config import settings
from calque.base.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    IntegerOverflowError,
    NonFiniteError,
    NonFiniteWarning,
    OutOfMemoryError,
    OutOfRangeError,
    ShapeError,
)  # fmt: skip
from calque.nn import functional as F
from calque.report import losses
from tests.bad_input.refusals import refused, unchanged


@pytest.fixture
def checked() -> Iterator[None]:
    """Checked mode."""
    torch.synchronize()
    settings.checked = True
    yield
    settings.checked = False


def test_row_15_the_operation_that_makes_the_loss_nan(checked: None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.ones(4, 2)

    def train(shift: float) -> float:
        optimizer.zero_grad()
        loss = torch.log(model(x).mean() - shift)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    with unchanged(*model.parameters()):
        error = refused(lambda: train(100.0), NonFiniteError, ArithmeticError, "[log]", "1 NaN of 1", "operand 0", "min -", "max -", __file__)
        assert "-100" in str(error) or "-99" in str(error)
        optimizer.zero_grad()
    torch.synchronize()  # the error was reported once
    assert np.isfinite(train(-100.0))


@pytest.mark.parametrize(("start", "shown"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_row_15_first_bad_loss_warns_in_default_mode(start: float, shown: str) -> None:
    losses._told.clear()  # a line is told once per process
    w = torch.ones(3, requires_grad=True)
    data = [torch.ones(3), torch.tensor([1.0, start, 1.0]), torch.ones(3), torch.tensor([start, 1.0, 1.0]), torch.ones(3)]
    optimizer = torch.optim.SGD([w], lr=0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in data:
            optimizer.zero_grad()
            loss = (w * batch).sum()
            loss.backward()
            optimizer.step()
            torch.synchronize()
    messages = [c for c in caught if issubclass(c.category, NonFiniteWarning)]
    assert len(messages) == 1, "only the first is told"
    text = str(messages[0].message)
    assert f"got {shown} in backward pass" in text and "test_tensors.py:" in text and "CALQUE_CHECKED=1" in text
    assert messages[0].filename == __file__


def test_row_15_infinite_loss(checked: None) -> None:
    refused(lambda: (torch.ones(3) / torch.zeros(3)).sum().item(), NonFiniteError, "[div]", "3 infinite of 3", "operand 1: shape (3,), min 0, max 0")


def test_row_15_nan_in_the_data(checked: None) -> None:
    x = torch.tensor([1.0, float("nan")])
    refused(lambda: F.mse_loss(x, torch.ones(2)).item(), NonFiniteError, "1 NaN of 2", "input of shape (2,)", "index (1,)")
    assert torch.isnan(x).tolist() == [False, True]


def test_row_15_training_in_checked_mode_equals_training(checked: None) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        found = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.randn(6, 4)), torch.randint(0, 3, (6,)))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    strict = losses()
    settings.checked = False
    assert losses() == strict


def test_row_15_masks_are_no_mistake(checked: None) -> None:
    x = torch.tensor([-1.0, 2.0])
    assert torch.where(x > 0, torch.log(x), torch.zeros(2)).tolist() == pytest.approx([0.0, 0.6931472])
    masked = torch.zeros(3).masked_fill(torch.tensor([True, False, False]), -torch.inf)
    assert F.softmax(masked, 0).tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize("call", ["log(-1)", "sqrt(-1)", "0/0"])
def test_row_16_domain_errors(call: str) -> None:
    functions: dict[str, Any] = {
        "log(-1)": lambda: torch.log(torch.tensor([2.0, -1.0])).tolist(),
        "sqrt(-1)": lambda: torch.sqrt(torch.tensor([2.0, -1.0])).tolist(),
        "0/0": lambda: (torch.tensor([2.0, 0.0]) / torch.tensor([1.0, 0.0])).tolist(),
    }
    function = functions[call]
    assert np.isnan(function()[1])  # IEEE by default
    settings.checked = True
    try:
        refused(function, NonFiniteError, "[" + {"l": "log", "s": "sqrt", "0": "div"}[call[0]] + "]", "1 NaN of 2", "index (1,)", __file__)
    finally:
        settings.checked = False


def test_row_16_other_results_survive(checked: None) -> None:
    a = torch.ones(3)
    good = a * 3
    bad = torch.log(a - 5)
    refused(lambda: bad.tolist(), NonFiniteError, "[log]")
    assert good.tolist() == [3.0] * 3
    assert (good + a).tolist() == [4.0] * 3


@pytest.mark.parametrize("divide", ["//", "%"])
def test_row_17_integer_division_by_zero(divide: str) -> None:
    a, b = torch.tensor([[4, 3], [2, 1]]), torch.tensor([[1, 2], [0, 0]])
    name = {"//": "floor_divide", "%": "remainder"}[divide]
    run: Any = {"//": lambda: (a // b).tolist(), "%": lambda: (a % b).tolist()}[divide]
    refused(run, ZeroDivisionError, f"[{name}]", "position (1, 0)", __file__)
    by_number: Any = {"//": lambda: a // 0, "%": lambda: a % 0}[divide]
    refused(by_number, ZeroDivisionError, f"[{name}]", "position 0")
    assert (a // 2).tolist() == [[2, 1], [1, 0]]


def test_row_18_integers_wrap_around() -> None:
    a, b = torch.tensor([5, 200], dtype=torch.uint8), torch.tensor([1, 100], dtype=torch.uint8)
    assert (a + b).tolist() == [6, 44]
    settings.checked = True
    try:
        refused(lambda: (a + b).tolist(), IntegerOverflowError, OverflowError, "torch.uint8", "0..255", "300 of 200 and 100", "index (1,)", __file__)
        assert (a + 1).tolist() == [6, 201]
        big = torch.tensor([2**62])
        refused(lambda: (big * 4).tolist(), OverflowError, "torch.int64")
        assert a.sum().item() == 205
    finally:
        settings.checked = False


def test_row_19_empty_tensors() -> None:
    refused(lambda: torch.zeros(0).max(), ShapeError, ValueError, "[max]", "(0,)", "axis 0")
    refused(lambda: torch.zeros(0, 3).argmax(0), OutOfRangeError, IndexError, "[argmax]", "(0, 3)", "dim 0")
    refused(lambda: torch.zeros(3, 0).amin(1), OutOfRangeError, IndexError, "[amin]", "(3, 0)", "dim 1")
    with pytest.warns(RuntimeWarning, match=r"\[mean\].*NaN: shape \(3, 0\), axis 1") as caught:
        assert np.isnan(torch.zeros(3, 0).mean(1).tolist()).all()
    assert caught[0].filename == __file__
    assert torch.zeros(0).sum().item() == 0.0


def test_row_22_ragged_lists() -> None:
    refused(lambda: torch.tensor([[1, 2], [3]]), ShapeError, ValueError, "length 2", "got 1", "index [1]")
    refused(lambda: torch.tensor([[1, 2], 3]), ShapeError, ValueError, "the number 3", "index [1]")


def test_row_22_what_is_no_number() -> None:
    refused(lambda: torch.tensor(["a", "b"]), DTypeError, TypeError, "index [0]", "str 'a'")
    refused(lambda: torch.tensor([[1, 2], [3, None]]), TypeError, "index [1][1]", "NoneType")
    refused(lambda: torch.tensor(np.array([1, "a"], dtype=object)), TypeError, "dtype object", "str 'a'", "index [1]")
    refused(lambda: torch.from_numpy(np.array(["x"])), TypeError, "<U1")


def test_row_23_arrays_that_cannot_be_shared_are_copied() -> None:
    array = np.arange(4.0)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = torch.from_numpy(array)
        copy[0] = 7.0
        assert array[0] == 0.0 and copy.tolist() == [7.0, 1.0, 2.0, 3.0]
        assert torch.from_numpy(np.arange(4.0)[::-1]).tolist() == [3.0, 2.0, 1.0, 0.0]
        assert torch.tensor(np.arange(6).reshape(2, 3)[:, ::-1]).tolist() == [[2, 1, 0], [5, 4, 3]]


def test_row_29_integers_have_no_gradient() -> None:
    refused(lambda: torch.tensor([1, 2], requires_grad=True), DTypeError, TypeError, "torch.int64", "floating point")
    t = torch.tensor([True])
    refused(lambda: t.requires_grad_(), TypeError, "torch.bool", "floating point")
    assert not t.requires_grad


@pytest.mark.parametrize("elements", [10**15, 10**17])
def test_row_45_too_large(elements: int) -> None:
    held = torch.ones(1000)
    error = refused(lambda: torch.zeros(elements).tolist(), OutOfMemoryError, MemoryError, "GiB free", "in use", "smaller batch")
    found = re.search(r"([\d.]+) PiB", str(error))
    assert found and elements * 4 / 2**50 <= float(found[1]) + 0.1 <= 1.2 * elements * 4 / 2**50, str(error)
    refused(lambda: (torch.zeros(elements) + 1).sum().item(), MemoryError, "free", "in use")
    refused(lambda: held.expand(elements // 1000, 1000).contiguous().tolist(), MemoryError, "free", "in use")
    assert held.sum().item() == 1000.0


def test_row_46_no_such_device() -> None:
    for call in (lambda: torch.ones(2).cuda(), lambda: torch.ones(2, device="cuda"), lambda: nn.Linear(2, 2).to("cuda")):
        refused(call, DeviceError, RuntimeError, "cuda", "driver", "device='cpu'")
    refused(lambda: torch.ones(2, device="gpu"), DeviceError, "string: gpu", "cpu")
    assert not torch.cuda.is_available()


@pytest.mark.usefixtures("two_devices")
def test_row_46_two_devices() -> None:
    here, there, layer = torch.ones(2, device="cpu:0"), torch.ones(2, device="cpu:1"), nn.Linear(2, 2).to("cpu:1")
    refused(lambda: here + there, DeviceError, "[add]", "cpu:0", "cpu:1", ".to(device)")
    refused(lambda: layer(here), DeviceError, "[matmul]", "cpu:0", "cpu:1", ".to(device)", "in layer Linear")


def test_row_47_truth_of_several_values() -> None:
    def branch() -> None:
        if torch.ones(2, 3) > 0:
            raise AssertionError

    refused(branch, ArgumentError, ValueError, "[bool]", "6 values", "shape (2, 3)", ".any()", ".all()")
    assert torch.ones(1)


def test_row_47_index_out_of_range() -> None:
    a = torch.ones(2, 3)
    refused(lambda: a[2], OutOfRangeError, IndexError, "index 2", "dimension 0", "size 2", "(2, 3)")
    refused(lambda: a[:, -4], IndexError, "index -4", "dimension 1", "size 3")
    refused(lambda: a[0, 0, 0], IndexError, "too many indices", "(2, 3)")
    refused(lambda: a[torch.tensor([0, 5])].tolist(), IndexError, "index 5", "position [1]", "size 2")
    refused(lambda: a.index_select(0, torch.tensor([0, 5])).tolist(), IndexError, "[index_select]", "index 5", "size 2")
    refused(lambda: a.gather(1, torch.tensor([[0, 5]])).tolist(), IndexError, "[gather]", "index 5", "position [0, 1]", "size 3")
    refused(lambda: a[torch.tensor([0, 4]) + 1].tolist(), IndexError, "index 5", "position [1]")  # known only when it runs
    assert a[1].tolist() == [1.0] * 3


def test_row_47_write_out_of_range() -> None:
    a = torch.ones(2, 3)

    def write() -> None:
        a[torch.tensor([0, 5])] = 2.0
        a.tolist()

    with unchanged(a):
        refused(write, IndexError, "index 5", "size 2")
        torch.synchronize()


def test_row_47_wrong_shape_in_assignment() -> None:
    a = torch.ones(2, 3)

    def assign() -> None:
        a[0] = torch.ones(4)

    with unchanged(a):
        refused(assign, ShapeError, ValueError, "[4]", "[3]")
    a[0] = torch.zeros(3)
    assert a.tolist() == [[0.0] * 3, [1.0] * 3]


@pytest.mark.parametrize("dim", [2, -3])
def test_axes_out_of_range(dim: int) -> None:
    a = torch.ones(2, 3)
    for call in (lambda: a.sum(dim), lambda: a.softmax(dim), lambda: a.unsqueeze(dim + (1 if dim > 0 else -1)), lambda: torch.cat([a, a], dim)):
        refused(call, OutOfRangeError, IndexError, "Dimension out of range")
    refused(lambda: a.transpose(0, dim), IndexError, "Dimension out of range", "-2 to 1")
    refused(lambda: a.permute(0, 0), ShapeError, "(2, 3)", "(0, 0)")


def test_values_and_dims_of_the_wrong_kind() -> None:
    refused(lambda: torch.full((2,), "a"), TypeError, "[full] expected fill_value as a number, got str")
    refused(lambda: torch.ones(2, 3).flip(0, -2), RuntimeError, "[flip] expected different dims, got (0, 0)", "dim 0 appears multiple times")
    refused(lambda: torch.device("cpu", -2), RuntimeError, "[device] expected an index >= 0, got -2")
    refused(lambda: torch.nn.utils.rnn.pad_sequence([]), RuntimeError, "[pad_sequence] expected one sequence or more", "empty list")


def test_losses_that_another_thread_looks_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    done, waiting, x = torch.ones(()), torch.ones(()), torch.ones(2, requires_grad=True)
    assert done.item() == 1.0
    held = losses.deque([(1, "a", done._storage), (2, "b", (waiting * 2.0)._storage)])
    last = held[1][2]
    computed = losses._computed

    def slowly(storage: Any) -> bool:
        found = computed(storage)
        if held and storage is done._storage and held[0][2] is storage:
            held.popleft()  # as another thread would between the look and the taking
        return found

    assert computed(done._storage)
    monkeypatch.setattr(losses, "_pending", held)
    monkeypatch.setattr(losses, "_computed", slowly)
    x.sum().backward()
    assert [entry[2] for entry in held][0] is last
    assert x.grad.tolist() == [1.0, 1.0]


def test_arguments_that_a_fuzzer_tried() -> None:
    """They ended as "a bug of Calque"."""
    with pytest.raises(TypeError, match=r"\[ConcatDataset\] expected a list of datasets"):
        torch.data.ConcatDataset(np.array(1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"\[index_put\] expected a tuple of index tensors"):
        torch.zeros(3).index_put(1 << 63, torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sum of probabilities <= 0"):
        torch.zeros(0).multinomial(2, True)
    empty = torch.ones(2, 0, 3, dtype=torch.bool)
    assert nn.functional.local_response_norm(empty, 1).dtype is torch.bool
