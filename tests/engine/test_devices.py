"""Logical CPU devices and `meta`: placement, copies, mixed operands, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.config import settings
from calque.base.errors import AutogradError, DeviceError
from calque.record import recorder
from calque.record.copies import CopyCounters

F = nn.functional


pytestmark = pytest.mark.usefixtures("two_devices")


def test_results_live_where_their_operands_live() -> None:
    a = calque.ones(3, 4, device="cpu:1")
    for made in (a + 1, a @ a.t(), a.sum(), a[1:], a.view(4, 3), a.reshape(-1), a.to(calque.float64), a > 0, F.softmax(a, -1), a.expand(2, 3, 4)):
        assert made.device == calque.device("cpu:1") and made.get_device() == 1 and made.is_cpu
    assert (a + 1).tolist() == [[2.0] * 4] * 3
    assert calque.zeros_like(a).device == a.device == calque.rand_like(a).device == a.new_ones(2).device
    assert calque.ones(2).device == calque.device("cpu") != a.device


@pytest.mark.parametrize(
    "make",
    [
        lambda d: calque.zeros(2, 3, device=d), lambda d: calque.full((2,), 7.0, device=d), lambda d: calque.arange(5, device=d),
        lambda d: calque.arange(1.0, 2.0, 0.25, device=d), lambda d: calque.eye(3, device=d), lambda d: calque.linspace(0, 1, 5, device=d),
        lambda d: calque.tensor([[1, 2], [3, 4]], device=d), lambda d: calque.tensor(2.5, device=d), lambda d: calque.as_tensor([1.0], device=d),
        lambda d: calque.randn(3, device=d), lambda d: calque.randint(0, 9, (4,), device=d), lambda d: calque.randperm(6, device=d),
        lambda d: calque.as_tensor(np.arange(3.0), device=d), lambda d: calque.tensor(calque.ones(2), device=d),
        lambda d: calque.normal(0.0, 1.0, (3,), device=d), lambda d: calque.empty(3, device=d), lambda d: calque.logspace(0, 1, 3, device=d),
    ],
)  # fmt: skip
def test_creation_on_a_device(make: Any) -> None:
    calque.manual_seed(3)
    expected = make("cpu")
    for name in ("cpu:0", "cpu:1"):
        calque.manual_seed(3)
        made = make(name)
        assert str(made.device) == name and calque.equal(made.cpu(), expected)
        assert str((made + made).device) == name
    assert make("meta").shape == expected.shape and make("meta").is_meta


def test_copies_go_both_ways_and_write_in_place() -> None:
    a = calque.arange(6.0).reshape(2, 3)
    b = a.to("cpu:0")
    c = b.t().to("cpu:1")
    assert c.stride() == (1, 3) and c.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    c[0] = calque.zeros(2, device="cpu:1")
    a[0].copy_(c[:, 1])
    assert a.tolist() == [[0.0, 4.0, 5.0], [3.0, 4.0, 5.0]]
    assert b.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    b.add_(1.0)  # a copy is a copy, whenever it runs
    b.copy_(c.t())
    assert b.tolist() == [[0.0, 1.0, 2.0], [0.0, 4.0, 5.0]]
    assert c.to("cpu:1") is c and c.cpu().device == calque.device("cpu")


def test_a_source_may_change_right_after_its_copy() -> None:
    """Write after read: the copy task reads the buffer that the next program overwrites in place."""
    x = calque.zeros(1 << 20, device="cpu:0")
    seen = []
    for _ in range(20):
        x.add_(1.0)
        seen.append(x.to("cpu:1"))
    for k, copy in enumerate(seen):
        assert copy[::4099].tolist() == [k + 1.0] * len(copy[::4099])


def test_gradients_cross_devices() -> None:
    w = calque.tensor([1.0, 2.0, 3.0], requires_grad=True)
    first = (w.to("cpu:0") * 2).to("cpu:1")
    second = w.to("cpu:1").exp()
    loss = (first * second).sum()
    loss.backward()
    assert w.grad is not None and w.grad.device == w.device
    values = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(w.grad.numpy(), 2 * np.exp(values) * (1 + values), rtol=1e-6)
    (second_grad,) = calque.autograd.grad((w.to("cpu:1") ** 3).sum(), w, create_graph=True)
    assert second_grad.device == w.device
    (g,) = calque.autograd.grad(second_grad.sum(), w)
    np.testing.assert_allclose(g.numpy(), 6 * values, rtol=1e-6)


def test_saved_values_are_checked_across_devices() -> None:
    w = calque.ones(3, requires_grad=True)
    y = w.to("cpu:1").exp()
    z = y.sum()
    with calque.no_grad():
        y.add_(1.0)
    with pytest.raises(AutogradError, match="modified by an inplace"):
        z.backward()


def test_operands_on_different_devices_are_refused() -> None:
    a, b, c = calque.ones(3, device="cpu:0"), calque.ones(3, device="cpu:1"), calque.ones(3)
    for wrong in (lambda: a + b, lambda: a @ b, lambda: b * c, lambda: calque.cat([a, b]), lambda: calque.where(a > 0, b, b)):
        with pytest.raises(DeviceError, match="same device.*cpu.*move one with"):
            wrong()
    with pytest.raises(DeviceError, match="cpu:0.*cpu:1|cpu:1.*cpu:0"):
        a.add_(b)
    recorder.flush("test")  # whether a value is realised makes no difference
    with pytest.raises(DeviceError, match="same device"):
        b + c


def test_numbers_and_tables_go_where_they_are_used() -> None:
    b = calque.arange(12.0, device="cpu:1").reshape(3, 4)
    scale = calque.tensor(2.0)  # 0-d on the CPU, as in PyTorch
    assert (b * scale).device == b.device and (b * scale).sum().item() == 132.0
    scale = scale * 1.5
    assert (b * scale).sum().item() == 198.0
    assert F.interpolate(b[None, None], (6, 8)).device == b.device
    assert F.pad(b[None], (1, 1), mode="reflect").device == b.device
    assert b[[0, 2]].tolist() == [[0.0, 1.0, 2.0, 3.0], [8.0, 9.0, 10.0, 11.0]]
    assert calque.tril(b).device == b.device
    assert F.cross_entropy(b, calque.tensor([0, 1, 2], device="cpu:1")).device == b.device


HOSTED = {
    "nonzero": lambda x: (x.nonzero(), *x.nonzero(as_tuple=True), calque.argwhere(x)),
    "unique": lambda x: (*calque.unique(x, return_inverse=True, return_counts=True), *calque.unique(x, dim=0, return_counts=True)),
    "unique_consecutive": lambda x: calque.unique_consecutive(x, return_inverse=True),
    "isin": lambda x: (calque.isin(x, x[0]), calque.isin(x, 2.0)),
    "bincount": lambda x: calque.bincount(x.long().flatten(), x.flatten()),
    "histc": lambda x: calque.histc(x, 4),
    "searchsorted": lambda x: (calque.searchsorted(x, x), calque.bucketize(x, x[0])),
    "masked_select": lambda x: x.masked_select(x > 3),
    "masked_scatter": lambda x: x.masked_scatter(x > 3, -x),
    "mode": lambda x: (*x.mode(0), *x[0, 0].mode()),
    "cummax": lambda x: (*x.cummax(1), *x.cummin(0), *x[:0].cummax(0)),
    "multinomial": lambda x: (calque.manual_seed(1), calque.multinomial(x, 2))[1],
    "gcd": lambda x: calque.gcd(x.long(), x[0].long()),
    "scatter_reduce": lambda x: x.scatter_reduce(0, x.long() % 3, x, "amax"),
    "inv": lambda x: (calque.linalg.inv(regular(x)), calque.det(regular(x)), *calque.slogdet(regular(x))),
    "solve": lambda x: (calque.linalg.solve(regular(x), x[:, :2]), *calque.linalg.lstsq(x, x[:, :1])),
    "cholesky": lambda x: (calque.linalg.cholesky(regular(x)), *calque.linalg.eigh(regular(x)), calque.linalg.eigvalsh(regular(x))),
    "svd": lambda x: (*calque.linalg.svd(x), calque.linalg.svdvals(x), calque.linalg.matrix_rank(x), calque.pinverse(x)),
    "qr": lambda x: (*calque.linalg.qr(x), *calque.linalg.qr(x, "r")),
    "matrix_power": lambda x: (x.matrix_power(0), regular(x).matrix_power(-2)),
    "a mask": lambda x: (x[x > 3], x[x[0] > 2], written(x, x > 5, 0), written(x, x[0] > 2, x[0])),
    "a mask of the CPU": lambda x: (x[(x > 3).cpu()], written(x, (x > 5).cpu(), 0.0), written(x, (x[0] > 2).cpu(), x[0])),
    "positions of the CPU": lambda x: (x[calque.tensor([2, 0])], x[:, calque.tensor([1])], written(x, calque.tensor([1, 1]), 4.0)),
    "0-d positions": lambda x: (x[x[0, 1].long()], x[calque.tensor(1)], x[True]),
}  # fmt: skip


def regular(x: calque.Tensor) -> calque.Tensor:
    return x @ x.t() + x.new_tensor([[9.0, 0.0, 0.0], [0.0, 7.0, 0.0], [0.0, 0.0, 5.0]])


def written(x: calque.Tensor, index: Any, value: Any) -> calque.Tensor:
    x = x.clone()
    x[index] = value
    return x


@pytest.mark.parametrize("name", HOSTED)
def test_what_the_host_computes_lives_beside_its_input(name: str) -> None:
    values = [[1.0, 2.0, 6.0], [4.0, 0.0, 6.0], [7.0, 2.0, 3.0]]
    expected = HOSTED[name](calque.tensor(values))
    got = HOSTED[name](calque.tensor(values, device="cpu:1"))
    for ours, theirs in zip(*[x if isinstance(x, tuple) else (x,) for x in (got, expected)], strict=True):
        assert str(ours.device) == "cpu:1" and ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours.cpu().numpy(), theirs.numpy())
        assert str((ours + ours).device) == "cpu:1"


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.masked_select(x > 3), lambda x: x[x > 3] ** 2, lambda x: calque.linalg.inv(regular(x)), lambda x: x.cummax(1).values * 2,
        lambda x: calque.linalg.solve(regular(x), x), lambda x: calque.linalg.qr(x).Q, lambda x: x[calque.tensor([2, 2, 0])] * x,
        lambda x: calque.linalg.eigh(regular(x)).eigenvectors ** 2, lambda x: calque.slogdet(regular(x)).logabsdet, lambda x: x.mode(0).values,
        lambda x: x.masked_scatter(x > 3, x * 3), lambda x: calque.linalg.cholesky(regular(x)), lambda x: calque.linalg.svdvals(x),
    ],
)  # fmt: skip
def test_gradients_of_what_the_host_computes(call: Any) -> None:
    grads = []
    for device in ("cpu", "cpu:1"):
        x = calque.tensor([[1.0, 2.0, 6.0], [4.0, 0.5, 6.0], [7.0, 2.0, 3.0]], device=device, requires_grad=True)
        out = call(x)
        (out * calque.arange(1.0, out.numel() + 1, device=device).reshape(out.shape)).sum().backward()
        assert x.grad is not None and x.grad.device == x.device
        grads.append(x.grad.cpu().numpy())
    np.testing.assert_array_equal(*grads)


def test_positions_on_another_device_are_refused() -> None:
    i = calque.tensor([0, 2], device="cpu:1")  # first: what was recorded before any device was named goes where it is used
    x = calque.arange(12.0).reshape(3, 4)
    for wrong in (lambda: x[i], lambda: x.to("cpu:0")[i], lambda: written(x, i, 1.0), lambda: x[x.to("cpu:1")[:, 0] > 3]):
        with pytest.raises(DeviceError, match="same device"):
            wrong()


def test_work_of_two_devices_in_one_trace() -> None:
    """One flush, one program per device; state of both is updated."""
    a, b = calque.zeros(4, device="cpu:0"), calque.zeros(4, device="cpu:1")
    calque.synchronize()
    for k in range(4):
        a.add_(1.0)
        b.add_(2.0 * k)
        c, d = a * 10.0, b + 0.5
        before = calque.stats()["flushes"]
        assert c.tolist() == [10.0 * (k + 1)] * 4
        assert d.tolist() == [k * (k + 1) + 0.5] * 4
        assert calque.stats()["flushes"] == before + 1


def test_a_value_that_another_device_reads_is_not_overwritten() -> None:
    scale = calque.tensor(3.0)
    calque.synchronize()
    b = calque.ones(4, device="cpu:1")
    first = b * scale  # reads the CPU's scalar...
    scale.add_(1.0)  # ... that the CPU's program replaces, in the same trace
    assert first.tolist() == [3.0] * 4 and scale.item() == 4.0
    assert (b * scale).tolist() == [4.0] * 4


def test_errors_name_what_exists() -> None:
    with pytest.raises(DeviceError, match=r"'cpu:7': there are cpu, cpu:0, cpu:1"):
        calque.ones(2, device="cpu:7")
    with pytest.raises(DeviceError, match="CUDA|cuda"):
        calque.ones(2, device="cpu:1").cuda()
    calque.set_logical_devices(1)
    assert calque.ones(2, device="cpu:0").device == calque.device("cpu")
    with pytest.raises(DeviceError, match="which are the same"):
        calque.ones(2, device="cpu:1")
    assert calque.device_count() == 1
    for wrong in (0, -1, True, 2.0, 10_000):
        with pytest.raises(ValueError, match="positive integer"):
            calque.set_logical_devices(wrong)


def test_modules_move() -> None:
    calque.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    x = calque.randn(6, 4)
    expected = model.eval()(x)
    model.to("cpu:1")
    assert {str(t.device) for t in model.state_dict().values()} == {"cpu:1"}
    assert calque.equal(model(x.to("cpu:1")).cpu(), expected)
    optimizer = calque.optim.Adam(model.train().parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(x.to("cpu:1")).square().mean().backward()
        optimizer.step()
    assert all(p.grad is not None and str(p.grad.device) == "cpu:1" for p in model.parameters())
    assert {str(p.device) for p in model.cpu().parameters()} == {"cpu"}


def test_layers_with_state_made_inside_run_on_a_device() -> None:
    x = calque.randn(3, 5, 4, device="cpu:1")
    for layer in (nn.LSTM(4, 6, batch_first=True), nn.GRU(4, 6), nn.RNN(4, 6), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)):
        layer = layer.to("cpu:1")
        made = layer(x)
        out = made[0] if isinstance(made, tuple) else made
        out.sum().backward()
        assert str(out.device) == "cpu:1"


def test_meta_has_shapes_only() -> None:
    big = calque.empty(1 << 40, 1 << 10, device="meta")
    out = F.relu(big @ calque.empty(1 << 10, 3, device="meta"))
    assert out.shape == (1 << 40, 3) and out.is_meta and "device='meta'" in repr(out)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10)).to("meta")
    assert model(calque.empty(5, 3, 32, 32, device="meta")).shape == (5, 10)
    for read in (out.tolist, lambda: out[0, 0].item(), out.numpy, out.cpu, lambda: bool(out[0, 0] > 0)):
        with pytest.raises(DeviceError, match="meta"):
            read()
    loss = model(calque.empty(5, 3, 32, 32, device="meta")).sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.is_meta and p.grad.shape == p.shape for p in model.parameters())
    in_use = calque.stats()["memory"]["in_use"]
    nn.Linear(1 << 20, 1 << 20, device="meta")
    assert calque.stats()["memory"]["in_use"] <= in_use + (1 << 16)
    moved = nn.Linear(4, 2, device="meta").to_empty(device="cpu:1")
    assert str(moved.weight.device) == "cpu:1" and moved(calque.ones(1, 4, device="cpu:1")).shape == (1, 2)


def test_copies_are_counted_and_memory_is_told_apart() -> None:
    before, count = CopyCounters.nbytes, CopyCounters.copies
    held = calque.memory_stats("cpu:1")["in_use"]
    x = calque.ones(1 << 18).to("cpu:0")
    y = x.to("cpu:1")
    calque.synchronize()
    assert CopyCounters.copies - count >= 1 and CopyCounters.nbytes - before >= 1 << 20
    assert calque.memory_stats("cpu:1")["in_use"] - held >= 1 << 20
    del x, y


def test_threads_are_shared_out() -> None:
    from calque.backend.cpu.team.team import share, team

    threads = settings.threads
    settings.threads = 5
    try:
        assert [share(0), share(1)] == [3, 2]
        calque.set_logical_devices(7)
        assert [share(k) for k in range(7)] == [1] * 7
        assert calque.device_count() == 7
    finally:
        calque.set_logical_devices(2)
        settings.threads = threads
    assert team(0) is not team(1)


@pytest.mark.parametrize("name", ["vmap", "jvp", "export"])
def test_values_of_a_transform_stay_on_their_device(name: str) -> None:
    x = calque.ones(4, 3)
    transforms = {
        "vmap": lambda f: calque.func.vmap(f)(x),
        "jvp": lambda f: calque.func.jvp(f, (x,), (x,)),
        "export": lambda f: calque.export(f, x),
    }
    with pytest.raises(DeviceError, match=rf"inside {name} to stay on their device.*from cpu to cpu:1; move what goes into the function"):
        transforms[name](lambda a: (a.to("cpu:1") * 2).sum())
    assert calque.func.vmap(lambda a: a + x.to("cpu:1").to("cpu")[0])(x).shape == (4, 3)
