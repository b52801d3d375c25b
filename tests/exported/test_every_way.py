"""Operations that look at values, or that NumPy computes in Python: exported, as a file, as a native library, as ONNX and back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.extras import there
from calque.nn.utils.rnn import pack_padded_sequence
from tests.exported.models import apart, tensors
from tests.exported.native import Library

CORNERS = [0.0, -0.0, 1.0, -2.0, inf, -inf, nan]
KEYS = [3.0, nan, 1.0, -inf, 1.0, inf, -0.0, 0.0, nan, 2.0, 1.0]


def keys(rows: int = 2) -> Any:
    x = calque.tensor(KEYS).repeat(rows, 1)
    x[1] = x[1].flip(0)
    return x


def numbers_at(side: int) -> Any:
    """All pairs of corner cases."""
    x = calque.tensor(CORNERS)
    return x.repeat(7) if side else x.repeat_interleave(7)


def numbers(*shape: int) -> Any:
    return calque.randn(*shape, generator=calque.Generator().manual_seed(7))


def whole(*shape: int) -> Any:
    return calque.randint(-4, 9, shape, generator=calque.Generator().manual_seed(8))


def scattered(kind: str, columns: int) -> Any:
    """Among them zeros, NaN, and what comes twice."""
    x = calque.tensor([[2.0, -1.0, nan, 0.5, 2.0, 3.0], [0.0, 1.5, 2.0, -inf, 3.0, nan]])[:, :columns]
    return x.to(getattr(calque, kind)) if "float" in kind else x.nan_to_num(4, 5, -5).to(getattr(calque, kind))


def written_bits(x: Any) -> Any:
    """In place through a view of another type, and through a part of one."""
    y = x.clone()
    y.view(calque.int32).bitwise_and_(0x7FFFFFFF)
    y.view(calque.uint8)[1:, ::4] = 7
    y.view(calque.int64)[0, 1] = 3
    return y, y.sum()


def pairs(seed: int) -> Any:
    return calque.randn(3, 4, dtype=calque.complex64, generator=calque.Generator().manual_seed(seed))


def written_complex(x: Any) -> Any:
    """In place, through parts and as real numbers."""
    y = calque.complex(x, x * 2)
    y.real.add_(1)
    y[0] = y[1] * 2j
    calque.view_as_real(y)[..., 1].mul_(3)
    z = calque.zeros(2, 6)
    z.view(calque.complex64)[1] = y[0]
    return y, z


F = calque.fft
PLACES = calque.tensor([[0, 0, 3, 0, 1], [1, 1, 3, 2, 0]])
EDGES = [-1.0, 0.0, 0.5, 0.5, 2.0]
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sort": (lambda x: x.sort(1), (numbers(3, 7),)),
    "sort of integers": (lambda x: x.sort(0, descending=True, stable=True), (whole(5, 4),)),
    "argsort in the middle": (lambda x: x.argsort(1), (numbers(2, 5, 3),)),
    "sort of bools": (lambda x: (x > 0).argsort(1, stable=True), (numbers(3, 7),)),
    "topk": (lambda x: x.topk(3, 1), (numbers(3, 7),)),
    "smallest": (lambda x: x.topk(2, 0, largest=False), (numbers(3, 7),)),
    "kthvalue": (lambda x: x.kthvalue(2, 1), (numbers(3, 7),)),
    "median": (lambda x: (x.median(1), x.median(), x.nanmedian(1)), (keys(),)),
    "quantile": (lambda x: calque.quantile(x, calque.tensor([0.2, 0.7]), dim=1), (numbers(3, 7),)),
    "bucketize": (lambda x: (calque.bucketize(x, calque.tensor(EDGES)), calque.bucketize(x, calque.tensor(EDGES), right=True)), (keys(),)),
    "searchsorted": (lambda x, v: calque.searchsorted(x.sort(1).values, v, side="right", out_int32=True), (numbers(3, 7), numbers(3, 4))),
    "searchsorted with NaN": (lambda x: calque.searchsorted(calque.tensor([0.0, 1.0, nan]), x), (keys(),)),
    "isin": (lambda x: (calque.isin(x, calque.tensor([1, 3, 4])), calque.isin(x, 2, invert=True)), (whole(3, 7),)),
    "masked_scatter": (lambda x, y: x.masked_scatter(x > 0, y), (numbers(3, 7), numbers(3, 7))),
    **{
        f"scatter {how} of {kind}{'' if own else ', without the base'}": (
            lambda x, s, how=how, own=own: x.scatter_reduce(1, PLACES, s, how, include_self=own), (scattered(kind, 4), scattered(kind, 6)))
        for how in ("prod", "amax", "amin") for kind in ("float32", "float16", "int64", "int8", "bool") for own in (True, False)
    },
    "scatter of lines": (lambda x, s: x.scatter_reduce(0, calque.tensor([2, 0, 2]), s, "amax"), (numbers(3), numbers(3))),
    "bits": (lambda x: (x.view(calque.int32) >> 23, x.view(calque.int32)[:, 1:4], x.T.contiguous().view(calque.int32)), (keys(),)),
    "bytes": (lambda x: (x.view(calque.uint8), x[:, 1:3].clone().view(calque.int64), x.double().view(calque.int16)), (numbers(3, 4),)),
    "bits of halves": (
        lambda x, y: (x.half().view(calque.int16), x.bfloat16().view(calque.int16), y.to(calque.int16).view(calque.float16)), (keys(), whole(4) * 7)),
    "numbers of bytes": (lambda x: (x.view(calque.float32), x[0].view(calque.int16), x.view(calque.float64)), (whole(3, 8).to(calque.uint8) * 31,)),
    "bits of one": (lambda x: (x.view(calque.int32), x[None].view(calque.uint8)), (numbers(1)[0],)),
    "bits of none": (lambda x: x.view(calque.int32), (numbers(0, 3),)),
    "written bits": (written_bits, (numbers(3, 4),)),
    "spectra": (
        lambda x: (F.rfft(x), F.irfft(F.rfft(x) * 2), F.irfft(F.rfft(x), n=5), F.fft2(x).real, F.rfft(x, dim=0, norm="ortho")), (numbers(4, 12),)),
    "long spectra": (lambda x: (F.fft(x.repeat(1, 25)) / 300, F.ifft(x.repeat(1, 8)[:, :97]), F.fft(x.double())), (numbers(2, 12),)),
    "short spectra": (lambda x: calque.stft(x, 4, window=calque.hann_window(4), return_complex=True).abs(), (numbers(2, 12),)),
    "complex numbers": (
        lambda z, w: (z / w, z * w - z, 1 / z, 2j * z + 1, z.abs(), z.angle(), calque.sgn(z), z.conj(), z.exp(), z.log(), z == w, z != z,
                      z @ w.mH, z[0] @ w[0]),
        (pairs(0), pairs(1))),
    "complex views": (
        lambda z, w: (z.T, z[1:, ::2], calque.cat([z, w]), z.sum(), z.mean(0), z.flip(0), calque.where(z.real > 0, z, w), z.cumsum(1),
                      z.view(calque.float32), z.view(calque.int32) + 1, z.real.to(calque.complex64), z.index_select(1, calque.tensor([2, 0]))),
        (pairs(0), pairs(1))),
    "turned": (lambda x: calque.view_as_real(calque.view_as_complex(x) * calque.polar(calque.ones(4), calque.arange(4.0))), (numbers(3, 4, 2),)),
    "complex in place": (written_complex, (numbers(2, 3),)),
    "products of integers": (lambda x, y: (x @ y, x[0] @ y, x[0] @ x[1]), (whole(3, 7), whole(7, 2))),
    "batched products of integers": (lambda x, y: x @ y, (whole(2, 1, 3, 4), whole(5, 4, 2))),
    "running sums": (lambda x: (x.cumsum(1), x.to(calque.int32).cumsum(0)), (whole(3, 7),)),
    "running sums of halves": (lambda x: x.half().cumsum(1), (numbers(3, 7),)),
    "shifts": (lambda x: (x << 2, x >> 1, (x.to(calque.int32) << 30) >> 29, x.to(calque.uint8) >> 3, x << 63 >> 63, x >> 40), (whole(3, 7),)),
    "angles": (lambda x, y: (calque.atan2(x, y), calque.atan2(y, x)), (numbers_at(0), numbers_at(1))),
    "packed": (lambda x: LSTM(pack_padded_sequence(x, [5, 3, 1], batch_first=True))[1], (numbers(3, 5, 4),)),
    "packed, other layers": (lambda x: [layer(pack_padded_sequence(x, [5, 3, 1], batch_first=True))[1] for layer in (GRU, RNN)], (numbers(3, 5, 4),)),
}  # fmt: skip
LSTM, GRU, RNN = nn.LSTM(4, 5, batch_first=True, bidirectional=True), nn.GRU(4, 3, batch_first=True), nn.RNN(4, 3, batch_first=True)


@pytest.fixture(scope="module", params=CASES)
def case(request: Any) -> Any:
    function, inputs = CASES[request.param]
    with calque.no_grad():
        return request.param, calque.export(lambda *x: function(*x), inputs), inputs, function(*inputs)


def test_file(case: Any, tmp_path: Any) -> None:
    _, exported, inputs, wanted = case
    exported.save(tmp_path / "m.calque")
    for model in (exported, calque.load_exported(tmp_path / "m.calque")):
        assert same(tensors(model(*inputs)), tensors(wanted))


def test_native_library(case: Any, tmp_path: Any) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no linker")
    _, exported, inputs, wanted = case
    exported.compile(str(tmp_path), name="lib")
    library = Library(tmp_path, "lib")
    wanted = [real(t) for t in tensors(wanted)]
    outputs = [np.zeros(t.shape, t.detach().numpy().dtype) for t in wanted]
    instance = library.create()
    code = library.run(instance, 0, [np.array(real(t).numpy(), order="C") for t in inputs], outputs)
    assert code == 0, library.error(instance)
    assert same([calque.from_numpy(a) for a in outputs], wanted)


def test_onnx(case: Any, tmp_path: Any) -> None:
    name, exported, inputs, wanted = case
    runtime = pytest.importorskip("onnxruntime")
    if not there("onnx"):
        pytest.skip("no package onnx")
    exported.onnx(tmp_path / "m.onnx", opset=26 if any(word in name for word in ("bits", "bytes", "views")) else 18)
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    inputs, wanted = [real(t) for t in inputs], [real(t) for t in tensors(wanted)]
    found = session.run(None, {spec.name: t.numpy() for spec, t in zip(session.get_inputs(), inputs, strict=True)})
    if name not in ("median",):  # ONNX says nothing of the order of NaN
        assert same([calque.from_numpy(a) for a in found], tensors(wanted))
    assert same(tensors(calque.load_onnx(tmp_path / "m.onnx")(*inputs)), tensors(wanted))


def real(t: Any) -> Any:
    """As what knows real numbers alone has it."""
    return calque.view_as_real(t.resolve_conj()).contiguous() if t.dtype.is_complex else t


def same(found: list[Any], wanted: list[Any]) -> bool:
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype is b.dtype and a.shape == b.shape
        inexact = a.dtype.is_floating_point or a.dtype.is_complex
        close = inexact and calque.allclose(a, b, 1e-3 if a.dtype is calque.float16 else 1e-5, 1e-6, equal_nan=True)
        assert close if inexact else calque.equal(a, b), (a, b)
    return True


def test_gradients_of_masked_scatter() -> None:
    def step(x: Any, y: Any) -> Any:
        return calque.autograd.grad((x.masked_scatter(x > 0, y) ** 2).sum(), (x, y))

    x, y = numbers(3, 7).requires_grad_(), (numbers(3, 7) * 2).requires_grad_()
    assert apart(list(calque.export(step, (x, y))(x, y)), list(step(x, y))) < 1e-6


@pytest.mark.parametrize("how", ["prod", "amax", "amin"])
def test_gradients_of_scatter_reduce(how: str) -> None:
    base, source = calque.tensor([1.0, 2.0, -3.0, 0.5]).requires_grad_(), calque.tensor([2.0, 2.0, 0.0, -3.0, 1.0]).requires_grad_()
    index, weight = calque.tensor([1, 1, 0, 2, 0]), calque.tensor([1.0, 2.0, 3.0, 4.0])
    exported = calque.export(lambda x, s: x.scatter_reduce(0, index, s, how), (base, source))
    found = [calque.autograd.grad((f(base, source) * weight).sum(), (base, source)) for f in (exported, exported.entry("forward"))]
    wanted = calque.autograd.grad((base.scatter_reduce(0, index, source, how) * weight).sum(), (base, source))
    for both in found:
        assert apart(list(both), list(wanted)) < 1e-6
    without = calque.export(lambda x, s: x.scatter_reduce(0, index, s, how, include_self=False), (base, source))
    if how == "prod":
        (without(base, source) * weight).sum().backward()
    else:
        with pytest.raises(RuntimeError, match="lets gradients pass where they are not those of its operations"):
            (without(base, source) * weight).sum().backward()


def test_too_few_elements() -> None:
    exported = calque.export(lambda x, y: x.masked_scatter(x > 0, y), (numbers(4), numbers(2)))
    with pytest.raises(IndexError):
        exported(calque.ones(4), calque.ones(2)).tolist()


def test_complex_parameters_and_free_sizes(tmp_path: Any) -> None:
    """A Fourier layer: its weights are complex, what it has seen is state, the batch is free."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(calque.randn(7, dtype=calque.complex64))
            self.register_buffer("seen", calque.zeros(7, dtype=calque.complex64))

        def forward(self, x: Any) -> Any:
            spectrum = F.rfft(x) * self.weight
            self.seen.add_(spectrum.sum(0))
            return F.irfft(spectrum, n=12) + self.seen.abs().sum()

    layer = Layer()
    with calque.no_grad():
        exported = calque.export(layer, numbers(4, 12), {"x": {0: calque.Dim("n", 2, 9)}})
        x = numbers(3, 12)
        wanted = [layer(x), layer(x)]
    if shutil.which("cc") is not None:
        exported.compile(str(tmp_path), name="lib", sizes={"n": 3})
        library = Library(tmp_path, "lib")
        instance = library.create()
        for one in wanted:
            out = np.zeros((3, 12), np.float32)
            assert library.run(instance, 0, [x.numpy()], [out]) == 0 and same([calque.from_numpy(out)], [one])
    runtime = pytest.importorskip("onnxruntime")
    if there("onnx"):
        exported.onnx(tmp_path / "m.onnx")
        session, seen = runtime.InferenceSession(str(tmp_path / "m.onnx")), np.zeros((7, 2), np.float32)
        for one in wanted:
            out, seen = session.run(None, {"x": x.numpy(), "seen": seen})
            assert same([calque.from_numpy(out)], [one])


def test_what_has_no_pairs_is_refused(tmp_path: Any) -> None:
    spectrum = calque.export(lambda x: F.rfft(x).tanh().abs(), numbers(2, 4))
    with pytest.raises(RuntimeError, match=r"got tanh, which NumPy computes \(recorded at .*test_every_way.py:\d+\)"):
        spectrum.compile(str(tmp_path), linker=False)
    if there("onnx"):
        with pytest.raises(RuntimeError, match=r"operations that ONNX has, but tanh \(.*test_every_way.py:\d+\) has no counterpart"):
            spectrum.onnx(tmp_path / "m.onnx")
        free = calque.export(lambda x: F.rfft(x).abs(), numbers(2, 4), {"x": {1: calque.Dim("n", 2, 99)}})
        with pytest.raises(RuntimeError, match=r"complex values whose sizes say what is done with them, but it depends on .*n"):
            free.onnx(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_writing_an_onnx_model_changes_no_export(tmp_path: Any) -> None:
    """Its questions about sizes became guards of files that were saved afterwards."""
    from tests.exported.models import CASES as MODELS

    if not there("onnx"):
        pytest.skip("no package onnx")
    for case in (c for c in MODELS if c.name in ("cnn", "lstm", "gru")):
        exported = calque.export(case.make().eval(), case.inputs(*case.example), case.dynamic)
        exported.save(tmp_path / "before.calque")
        exported.onnx(tmp_path / "m.onnx")
        exported.save(tmp_path / "after.calque")
        files = [calque.load(tmp_path / f"{name}.calque")["entries"] for name in ("before", "after")]
        assert files[0] == files[1]
