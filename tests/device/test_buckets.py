"""`calque.xla.buckets`: batches of sizes that vary, padded to a few; what comes of them is what comes of the batches themselves, or is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque import nn
from calque.backend.ref.interpret import interpret
from calque.backend.xla.padding import JUNK, LOW, ONE, VALID, ZERO, Padding, collapsed, whole
from calque.base.errors import ArgumentError, DeviceError, DTypeError
from calque.ir.program import Program
from tests.device.programs import Block, Recurrent
from tests.device.test_contract import Toy, toy

pytestmark = pytest.mark.device
F = nn.functional
__all__ = ["toy"]


class Gpt(nn.Module):
    """Scores of the next of 17 words; `causal=False`: with a mask of keys instead."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block, self.norm, self.head = nn.Embedding(17, 16), Block(16, 2, 0.0), nn.LayerNorm(16), nn.Linear(16, 17)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.block(self.embedding(x))))


class Encoder(nn.Module):
    """Attention to the valid keys alone, then the mean over the valid positions: one score for each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention, self.head = nn.Embedding(17, 16), nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: Any, valid: Any, length: int) -> Any:
        h = self.embedding(x)
        h = h + self.attention(h, h, h, key_padding_mask=~valid, need_weights=False)[0]
        h = h + F.scaled_dot_product_attention(h, h, h, attn_mask=valid[:, None, :])
        return self.head(calque.where(valid[..., None], h, 0.0).sum(1) / length)


def images() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, 2, groups=2), nn.Tanh(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip


class Case:
    """A model with what it is trained on: `shape(n, t)` of a batch, its axes, and the loss of each row from a batch and its `Fit` (None: not
    padded)."""

    def __init__(self, make: Callable[[], Any], shape: Callable[[int, int], Any], axes: tuple[str, ...], losses: Any, words: int = 0) -> None:
        self.make, self.shape, self.axes, self.losses, self.words = make, shape, axes, losses, words

    def data(self, n: int, t: int, dtype: Any) -> tuple[Any, Any]:
        calque.manual_seed(n * 100 + t)
        shape = self.shape(n, t)
        x = calque.randint(0, self.words, shape) if self.words else calque.randn(*shape).to(dtype)
        return x, calque.randint(0, 5, tuple(shape[: len(self.axes)]))


def of_words(model: Any, x: Any, y: Any, fit: Any, t: int) -> Any:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")


def of_sequences(model: Any, x: Any, y: Any, fit: Any, t: int) -> Any:
    valid = calque.ones(x.shape, dtype=calque.bool).to(x.device) if fit is None else fit.mask("batch", "length")
    return F.cross_entropy(model(x, valid, t), y[:, 0], reduction="none")


def of_rows(model: Any, x: Any, y: Any, fit: Any, t: int) -> Any:
    return F.cross_entropy(model(x), y, reduction="none") + (model(x) ** 2).mean(1)


CASES = {
    "gpt": Case(Gpt, lambda n, t: (n, t), ("batch", "length"), of_words, 17),
    "encoder": Case(Encoder, lambda n, t: (n, t), ("batch", "length"), of_sequences, 17),
    "images": Case(images, lambda n, t: (n, 3, 8, 8), ("batch",), of_rows),
    "lstm": Case(Recurrent, lambda n, t: (n, 4, 8), ("batch",), of_rows),
}
SIZES = ((3, 7), (4, 5), (2, 8), (1, 3), (4, 8), (3, 5))


def train(case: Case, device: Any, sizes: Any, dtype: Any) -> Any:
    """Losses, parameters and last gradients."""
    calque.manual_seed(0)
    model = case.make().to(dtype).to(device)
    optimizer, found = calque.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for n, t in SIZES:
        x, y = case.data(n, t, dtype)
        optimizer.zero_grad()
        if sizes is None:
            loss = case.losses(model, x.to(device), y.to(device), None, t).mean()
        else:
            fit = sizes.fit(**{axis: size for axis, size in (("batch", n), ("length", t)) if axis in case.axes})
            x, y = fit.pad(x, *case.axes), fit.pad(y, *case.axes)
            losses = case.losses(model, x, y, fit, t)
            loss = fit.mean(losses) if losses.numel() == y.numel() else fit.mean(losses, "batch")
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    values = [*found, *(p.detach() for p in model.parameters()), *(p.grad for p in model.parameters())]
    return np.concatenate([v.cpu().double().numpy().reshape(-1) for v in values])


@pytest.mark.filterwarnings("ignore:.*expected a loop that repeats")
@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_the_batches_themselves(name: str, device: Any) -> None:
    from calque.backend.xla.backend import XlaProgram

    case = CASES[name]
    sizes = calque.xla.buckets(device, **{axis: {"batch": 4, "length": (4, 8)}[axis] if axis == "length" else (4,) for axis in case.axes})
    wanted = train(case, device, None, calque.float64)
    compiled = XlaProgram.compiled
    found = train(case, device, sizes, calque.float64)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * max(1.0, float(np.abs(wanted).max())))
    assert XlaProgram.compiled - compiled <= 3 * (2 if "length" in case.axes else 1)
    compiled = XlaProgram.compiled
    train(case, device, sizes, calque.float64)
    assert XlaProgram.compiled == compiled


def test_what_padding_would_change_is_refused(device: Any) -> None:
    fit = calque.xla.buckets(device, batch=(4,), length=(8,)).fit(batch=3, length=5)
    x = fit.pad(calque.randn(3, 5, 6), "batch", "length")
    valid = fit.mask("batch", "length")
    norm, model = nn.BatchNorm1d(6).to(device), nn.Linear(6, 6).to(device)

    def masked() -> Any:
        return calque.where(valid[..., None], x, 0.0)

    refused: list[tuple[str, Callable[[], Any]]] = [
        ("sum", lambda: model(x).mean()),
        ("sum", lambda: norm(x.flatten(0, 1))),
        ("div", lambda: masked().mean()),
        ("mul", lambda: masked().sum() * (1 / x.numel())),
        ("amax", lambda: x.max()),
        ("argsort", lambda: x.sort(1)[0]),
        ("argmax", lambda: x.flatten().argmax()),
        ("cumsum", lambda: x.flip(1).cumsum(1)),
        ("sum", lambda: F.scaled_dot_product_attention(x, x, x)),
        ("index_select", lambda: x[:, calque.tensor([0, 4]).to(device)]),
        ("view", lambda: x[3:] * 1),
        ("index_add", lambda: calque.zeros(4, 6, device=device).index_add(0, fit.pad(calque.tensor([0, 1, 2]), "batch"), x[:, 0])),
    ]
    for name, call in refused:
        with pytest.raises(ArgumentError, match=r"\[\w+\] expected .*padding.*recorded at .*test_buckets.py:\d+; mask it first") as caught:
            print(call().sum(0).cpu() if name == "argsort" else call().cpu())
        assert name in str(caught.value) or name in ("sum", "view", "amax"), (name, caught.value)
    squares = fit.pad(calque.eye(6).repeat(3, 1, 1), "batch")
    on_the_host: list[tuple[str, Callable[[], Any]]] = [
        ("inv", lambda: calque.linalg.inv(squares)), ("svd", lambda: calque.linalg.svdvals(x)), ("cholesky", lambda: calque.linalg.cholesky(squares)),
        ("nonzero", lambda: x.nonzero()), ("masked_select", lambda: x.masked_select(x > 0)), ("unique", lambda: x.unique()),
        ("det", lambda: calque.linalg.det(squares * 2)),
    ]
    for name, call in on_the_host:
        with pytest.raises(ArgumentError, match=rf"\[\w*{name}\w*\] expected operands without padding.*test_buckets.py:\d+; compute it"):
            call()
    assert calque.allclose(calque.linalg.inv(squares[:3] * 2).cpu(), calque.eye(6) / 2)  # a view of what is valid
    assert norm.running_mean.tolist() == [0.0] * 6  # state is as it was before
    assert norm.eval()(x.flatten(0, 1)).shape == (32, 6)
    assert fit.sum(x).item() == pytest.approx(float(fit.cut(x, "batch", "length").sum()), rel=1e-5)
    assert fit.cut(x, "batch", "length").shape == (3, 5, 6)


def test_sizes_and_names(device: Any) -> None:
    sizes = calque.xla.buckets(device, batch=6, length=(16, 4))
    assert sizes.axes == {"batch": [1, 2, 4, 6], "length": [4, 16]}
    fit = sizes.fit(batch=5, length=4)
    assert fit.padded == {"batch": 6, "length": 4}
    x = calque.arange(20.0).reshape(5, 4)
    assert fit.cut(fit.pad(x, "batch", "length"), "batch", "length").tolist() == x.tolist()
    assert fit.pad(x, "batch").cpu()[5].tolist() == x[4].tolist()
    assert fit.mean(fit.pad(x, "batch", "length").flatten()).item() == 9.5 and fit.sum(fit.pad(x[:, 0], "batch"), "batch").item() == 40.0
    for kind, text, call in (
        (ArgumentError, "expected an axis with its sizes, got none", lambda: calque.xla.buckets(device)),
        (ArgumentError, "expected positive sizes for batch, got 0", lambda: calque.xla.buckets(device, batch=0)),
        (ArgumentError, "expected positive sizes for batch, got", lambda: calque.xla.buckets(device, batch=(4, -1))),
        (DeviceError, "expected a device that XLA serves, got cpu", lambda: calque.xla.buckets("cpu", batch=4)),
        (ArgumentError, "expected a size for each of batch, length, got batch", lambda: sizes.fit(batch=3)),
        (ArgumentError, "expected at most 16 for length, got 17; add a larger bucket", lambda: sizes.fit(batch=3, length=17)),
        (ArgumentError, "expected a size of at least 1 for batch, got 0", lambda: sizes.fit(batch=0, length=3)),
        (DTypeError, "expected a tensor of data, got list", lambda: fit.pad([1.0], "batch")),
        (DTypeError, "one that needs a gradient", lambda: fit.pad(x.clone().requires_grad_(), "batch")),
        (ArgumentError, "begins with batch 5, got shape", lambda: fit.pad(calque.ones(4, 4), "batch")),
        (ArgumentError, "expected axes of batch, length, got 'time'", lambda: fit.pad(x, "time")),
        (ArgumentError, "expected axes of batch, length, got none", lambda: fit.mask()),
        (ArgumentError, r"expected losses of shape \(6, 4\), or as many in a row, got \(7,\)", lambda: fit.mean(calque.ones(7, device=device))),
    ):
        with pytest.raises(kind, match=text):
            call()


# ------------------------------------------------------------------------------------------------------------------ the look itself

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda x, m: (x * 2 + 1).tanh().softmax(2),
    "masked sum": lambda x, m: calque.where(m[..., None], x, 0.0).sum((0, 1)),
    "product of masks": lambda x, m: (x * m[..., None].to(x.dtype)).sum((0, 1)),
    "masked largest": lambda x, m: x.masked_fill(~m[..., None], float("-inf")).amax((0, 1)),
    "masked softmax": lambda x, m: x.masked_fill(~m[..., None], -1e9).softmax(1),
    "matrix of all": lambda x, m: calque.where(m[..., None], x, 0.0).flatten(0, 1).T @ x.flatten(0, 1),
    "flattened": lambda x, m: x.flatten(0, 1)[:, 1:].reshape(-1, 3, 2).transpose(1, 2) * 3,
    "running": lambda x, m: x.cumsum(1),
    "joined": lambda x, m: calque.cat([x, x * 2], 2),
    "all positions": lambda x, m: x.cumsum(0).amax(2),
    "unmasked sum": lambda x, m: x.sum(1),
    "mean": lambda x, m: calque.where(m[..., None], x, 0.0).mean(),
    "turned": lambda x, m: x.flip(1) + x,
    "shifted": lambda x, m: x[:, 1:] - x[:, :-1],
    "padded with zeros": lambda x, m: F.pad(calque.where(m[..., None], x, 0.0), (0, 0, 1, 1)).sum(1),
    "picked": lambda x, m: x.gather(2, (x > 0).long()),
    "where it is": lambda x, m: x.argmax(2),
    "outer": lambda x, m: x @ x.transpose(1, 2),
    "any": lambda x, m: ((x > 0) & m[..., None]).any(1),
    "all": lambda x, m: ((x > 0) | ~m[..., None]).all(1),
    "counted": lambda x, m: m.sum(),
    "gradient": lambda x, m: calque.autograd.grad(calque.where(m[..., None], x.square().cumsum(1), 0.0).sum(), x)[0],
}


@pytest.fixture
def recorded(toy: Any, monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Programs that a device is given."""
    programs: list[Program] = []
    real = Toy.compile
    monkeypatch.setattr(Toy, "compile", lambda self, program, index: programs.append(program) or real(self, program, index))
    return programs


@pytest.mark.parametrize("name", FUNCTIONS)
def test_valid_elements_do_not_depend_on_padding(name: str, recorded: list[Program], rng: np.random.Generator) -> None:
    """Programs looked through with sizes drawn at random: other numbers in the padding change nothing that is called valid, and what is called known
    is."""
    shape = (4, 5, 7)
    x = calque.tensor(rng.normal(size=shape)).to("toy").requires_grad_(name == "gradient")
    result = FUNCTIONS[name](x, calque.ones(4, 5, dtype=calque.bool).to("toy"))
    result.detach().cpu()
    program = recorded[-1]
    looked = Padding(program)
    scalars = {n.attrs[0]: n for n in program.nodes if n.op.role == "scalar"}

    @given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 1000))
    def holds(n: int, t: int, seed: int) -> None:
        number = {"masked largest": float("-inf"), "masked softmax": -1e9, "mean": 140.0}.get(name, 1.0)
        numbers = [number for _ in scalars]
        draw = np.random.default_rng(seed)
        mask = np.zeros((4, 5), bool)
        mask[:n, :t] = True
        kinds = [_kinds(program.nodes[i], mask) for i in program.inputs]
        try:
            found = looked.outputs(kinds, numbers)
        except ArgumentError:
            assert not mask.all()
            return
        rows = draw.normal(size=shape)
        others = np.where(mask[..., None], rows, draw.normal(size=shape))
        pair = [interpret(program, [_value(program.nodes[i], v, mask) for i in program.inputs], numbers) for v in (rows, others)]
        for kind, one, other in zip(found, *pair, strict=True):
            kind = whole(kind, one.shape)
            np.testing.assert_array_equal(one[kind == VALID], other[kind == VALID])
            assert (one[kind == ZERO] == 0).all() and (one[kind == ONE] == 1).all() and (one[kind == LOW].astype(float) < -1e8).all()

    holds()


def _kinds(leaf: Any, mask: Any) -> Any:
    padding = ~mask
    if leaf.dtype.category == 0:
        return collapsed(np.where(padding, ZERO, VALID).astype(np.uint8).reshape(leaf.shape)) if leaf.numel == mask.size else None
    return collapsed(np.where(padding, JUNK, VALID).astype(np.uint8)[..., None]) if tuple(leaf.shape) == (4, 5, 7) else None


def _value(leaf: Any, rows: Any, mask: Any) -> Any:
    return mask.reshape(leaf.shape) if leaf.dtype.category == 0 else rows


def test_the_page_runs(device: Any) -> None:
    """The block of docs/devices.md."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names = {"calque": calque}
    exec(compile(block.replace('"xla:0"', repr(str(device))), "devices.md", "exec"), names)  # noqa: S102 - our own documentation
    assert 0 < names["loss"].item() < 10
