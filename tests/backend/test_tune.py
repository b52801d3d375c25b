"""The opt-in tuner: off unless asked for, measured once, kept on disk, and distrustful of what it finds there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.cpu import contract
from calque.backend.cpu.code import library
from calque.backend.cpu.contract import Conv2d, Conv2dInputGrad, Conv2dWeightGrad, Matmul
from calque.backend.cpu.program import tune
from calque.base import config
from calque.base.cache import TABLES, Cache
from calque.ops.routines import ContractSpec
from tests.backend.test_contract import check, naive, strides_of

SHAPE = ((2, 16, 12, 12), (16, 16, 3, 3), (2, 16, 12, 12))


def spec_of(x: tuple[int, ...] = SHAPE[0], w: tuple[int, ...] = SHAPE[1], y: tuple[int, ...] = SHAPE[2]) -> ContractSpec:
    steps = [tuple(int(np.prod(shape[k + 1 :])) for k in range(4)) for shape in (x, w)]
    return ContractSpec(x, steps[0], w, steps[1], y, padding=(1, 1))


def nothing_chosen(monkeypatch) -> None:
    """As in a new process."""
    name = "tuned schedules"
    monkeypatch.delitem(TABLES, name)
    monkeypatch.setattr(tune, "_chosen", Cache(name, tune._chosen.entry, 1 / 128))


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """Tuning with an empty memory and an empty folder; compiled code is shared with the other tests."""
    monkeypatch.setattr(config.settings, "tune", True)
    nothing_chosen(monkeypatch)
    cache = library.ObjectCache(tmp_path / "schedules", 1 << 20)
    monkeypatch.setattr(tune, "_cache", lambda: cache)
    return cache


def clock_of(monkeypatch, *durations: float) -> None:
    """A clock by which the timed calls of successive candidates take so long."""
    ticks: list[float] = []
    now = 0.0
    for _ in range(1 + tune.REPEATS):
        for duration in durations:
            ticks += [now, now + duration]
            now += 1 + duration
    readings = iter(ticks)
    monkeypatch.setattr(tune, "_clock", lambda: next(readings))


def no_clock(monkeypatch) -> None:
    def refuse() -> float:
        raise AssertionError("measured again")

    monkeypatch.setattr(tune, "_clock", refuse)


def test_off_unless_asked_for(monkeypatch):
    nothing_chosen(monkeypatch)
    no_clock(monkeypatch)
    assert not config.Settings().tune
    assert tune.contraction("conv2d", spec_of(), "float32") == contract.contraction("conv2d", spec_of())


def test_the_environment_turns_it_on(monkeypatch):
    monkeypatch.setenv("CALQUE_TUNE", "1")
    assert config.Settings().tune


def test_the_fastest_candidate_is_kept_in_memory_and_on_disk(tuned, monkeypatch):
    model = contract.contraction("conv2d", spec_of())
    assert list(contract.candidates(model)) == ["model", "direct", "patches"]
    clock_of(monkeypatch, 5.0, 2.0, 3.0)
    expected = replace(model, direct=True)
    assert tune.contraction("conv2d", spec_of(), "float32") == expected
    no_clock(monkeypatch)
    assert tune.contraction("conv2d", spec_of(), "float32") == expected
    tune._chosen.clear()
    assert tune.contraction("conv2d", spec_of(), "float32") == expected


def test_a_candidate_that_is_hardly_faster_does_not_win(tuned, monkeypatch):
    clock_of(monkeypatch, 5.0, 4.9, 4.95)
    assert tune.contraction("conv2d", spec_of(), "float32") == contract.contraction("conv2d", spec_of())


def test_every_thread_count_is_measured_by_itself(tuned, monkeypatch):
    clock_of(monkeypatch, 5.0, 2.0, 3.0)
    first = tune.contraction("conv2d", spec_of(), "float32")
    monkeypatch.setattr(config.settings, "threads", 1 if config.settings.threads > 1 else 2)
    clock_of(monkeypatch, 2.0, 5.0, 3.0)
    assert tune.contraction("conv2d", spec_of(), "float32") != first


@pytest.mark.parametrize("spoil", [lambda data: b"", lambda data: data[:-1], lambda data: b"x" + data[1:], lambda data: data + b"more"])
def test_spoilt_entries_are_measured_again(tuned, monkeypatch, spoil):
    clock_of(monkeypatch, 5.0, 2.0, 3.0)
    tune.contraction("conv2d", spec_of(), "float32")
    (entry,) = tuned.directory.glob("*.o")
    entry.write_bytes(spoil(entry.read_bytes()))
    tune._chosen.clear()
    clock_of(monkeypatch, 2.0, 5.0, 3.0)
    assert tune.contraction("conv2d", spec_of(), "float32") == contract.contraction("conv2d", spec_of())


@pytest.mark.parametrize("content", [b"direct", b"calque schedule 1\nfaster", b"calque schedule 2\ndirect", b"\xff\xfe", b""])
def test_foreign_entries_are_measured_again(tuned, monkeypatch, content):
    clock_of(monkeypatch, 5.0, 2.0, 3.0)
    tune.contraction("conv2d", spec_of(), "float32")
    (entry,) = tuned.directory.glob("*.o")
    tuned.put(entry.name.removesuffix(".o"), content)
    tune._chosen.clear()
    clock_of(monkeypatch, 2.0, 5.0, 3.0)
    assert tune.contraction("conv2d", spec_of(), "float32") == contract.contraction("conv2d", spec_of())


def product(rows: int, depth: int, columns: int, steps: tuple[int, int] | None = None) -> ContractSpec:
    return ContractSpec((rows, depth), (depth, 1), (depth, columns), steps or (columns, 1), (rows, columns))


def test_products_of_few_rows_have_one_schedule_and_are_not_measured(tuned, monkeypatch):
    no_clock(monkeypatch)
    assert isinstance(tune.contraction("matmul", product(8, 900, 64), "float32"), Matmul)


def test_the_fastest_schedule_of_a_product_is_kept_in_memory_and_on_disk(tuned, monkeypatch):
    spec = product(32, 300, 48)
    model = contract.contraction("matmul", spec)
    found = contract.candidates(model)
    assert list(found) == ["model", "rows", "columns", "blocks of 256", "blocks of 800", "packed", "in place", "columns in place"]
    clock_of(monkeypatch, 5.0, 4.0, 3.0, 4.0, 4.0, 2.0, 4.0, 4.0)
    assert tune.contraction("matmul", spec, "float32") == found["packed"] != model
    no_clock(monkeypatch)
    tune._chosen.clear()
    assert tune.contraction("matmul", spec, "float32") == found["packed"]
    monkeypatch.setattr(config.settings, "tune", False)
    tune._chosen.clear()
    assert tune.contraction("matmul", spec, "float32") == model


def test_candidates_of_products_follow_from_their_sizes():
    def labels(spec: ContractSpec) -> set[str]:
        return set(contract.candidates(contract.contraction("matmul", spec)))

    transposed = labels(product(128, 900, 64, (1, 900)))
    assert transposed == {"model", "rows", "columns", *(f"blocks of {block}" for block in (256, 384, 512, 800))} - {"blocks of 512"}
    assert labels(product(64, 100, 64)) == {"model", "rows", "columns", "packed", "in place", "columns in place"}
    assert labels(product(2000, 200, 4000)) == {"model", "rows", "columns"}
    batch = ContractSpec((5, 40, 20), (800, 20, 1), (5, 20, 40), (800, 40, 1), (5, 40, 40))
    assert labels(batch) == {"model", "packed", "in place"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("shape", [(70, 900, 50), (300, 130, 33), (17, 385, 17), (17, 9000, 17)])
def test_every_candidate_of_a_product_computes_the_same(dtype, layout, shape):
    m, k, n = shape
    rng = np.random.default_rng(2)
    a = rng.standard_normal((m, k)).astype(dtype) if layout[0] == "n" else rng.standard_normal((k, m)).astype(dtype).T
    b = rng.standard_normal((k, n)).astype(dtype) if layout[1] == "n" else rng.standard_normal((n, k)).astype(dtype).T
    expected = a.astype(np.float64) @ b.astype(np.float64)
    found = contract.candidates(Matmul(m, n, k, strides_of(a), strides_of(b)))
    assert len(found) >= 3
    for native in found.values():
        check("matmul", native, a, b, expected, k)


@pytest.mark.parametrize(("depth", "label"), [(900, "blocks of 256"), (9000, "in place")])
def test_a_tuned_product_of_bfloat16_has_room_for_its_sums(tuned, monkeypatch, depth, label):
    rng = np.random.default_rng(3)
    a, b = (calque.tensor(rng.standard_normal(shape).astype("f")).bfloat16() for shape in ((40, depth), (depth, 48)))
    monkeypatch.setattr(tune, "fastest", lambda times: label)
    found = (a @ b).float().numpy()
    monkeypatch.setattr(config.settings, "tune", False)
    nothing_chosen(monkeypatch)
    expected = (a @ b).float().numpy()
    np.testing.assert_allclose(found, expected, rtol=2.0**-7, atol=2.0**-7 * np.abs(expected).max())


def test_a_tuned_program_computes_the_same(tuned, monkeypatch):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 20, 11, 11)).astype("f"), rng.standard_normal((24, 20, 3, 3)).astype("f")

    def gradients() -> list[Any]:
        a, b = calque.tensor(x).requires_grad_(), calque.tensor(w).requires_grad_()
        y = calque.nn.functional.conv2d(a, b, padding=1)
        (y * y).sum().backward()
        return [y.detach().numpy(), a.grad.numpy(), b.grad.numpy()]

    monkeypatch.setattr(tune, "fastest", lambda times: next(label for label in times if label != "model"))
    found = gradients()
    assert len(tune._chosen) == 3
    monkeypatch.setattr(config.settings, "tune", False)
    nothing_chosen(monkeypatch)
    for one, other in zip(found, gradients(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * np.abs(other).max())


LAYERS = {
    "winograd": ((2, 16, 12, 12), (16, 16, 3, 3), 1, 1, 1),
    "tiled": ((5, 32, 17, 17), (64, 32, 3, 3), 2, 1, 1),
    "few channels": ((2, 12, 9, 9), (12, 1, 3, 3), 1, 1, 12),
    "depthwise stride 2": ((2, 20, 15, 15), (20, 1, 3, 3), 2, 1, 20),
    "1x1": ((4, 40, 14, 14), (64, 40, 1, 1), 1, 0, 1),
}


@pytest.mark.parametrize("kind", ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_candidate_computes_the_same(kind, layer):
    x_shape, w_shape, stride, padding, groups = LAYERS[layer]
    extent = (x_shape[2] + 2 * padding - w_shape[2]) // stride + 1
    y_shape = (x_shape[0], w_shape[0], extent, extent)
    rng = np.random.default_rng(1)
    x, w, g = (rng.standard_normal(shape).astype("f") for shape in (x_shape, w_shape, y_shape))
    sizes: dict[str, Any] = {"images": x_shape[0], "channels": x_shape[1], "size": x_shape[2:], "out_channels": w_shape[0],
                             "kernel": w_shape[2:], "out_size": (extent, extent), "stride": (stride, stride),
                             "padding": (padding, padding), "groups": groups}
    models = {"conv2d": (Conv2d(**sizes, x_strides=strides_of(x), w_strides=strides_of(w)), (x, w)),
              "conv2d_input_grad": (Conv2dInputGrad(**sizes, g_strides=strides_of(g), w_strides=strides_of(w)), (g, w)),
              "conv2d_weight_grad": (Conv2dWeightGrad(**sizes, x_strides=strides_of(x), g_strides=strides_of(g)), (x, g))}
    model, operands = models[kind]
    expected = naive(kind, *operands, Conv2d(**sizes), x.shape)
    found = contract.candidates(model)
    assert len(found) >= 2
    for native in found.values():
        check(kind, native, *operands, expected, g.size if kind == "conv2d_weight_grad" else w.size)
