"""Mistakes that PyTorch refuses are refused under a class that catches PyTorch's, and what it would compute is not cut down to whole numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore::UserWarning")]
CLASSES = (NotImplementedError, AssertionError, IndexError, TypeError, ValueError, RuntimeError)


def kind_of(error: Exception) -> type:
    return next(kind for kind in CLASSES if isinstance(error, kind))


def whole(t: Any, *shape: int) -> Any:
    return t.arange(int(np.prod(shape))).reshape(shape) % 7


FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "selu": lambda t, F: F.selu(whole(t, 4, 6)), "celu": lambda t, F: F.celu(whole(t, 4, 6)), "gelu": lambda t, F: F.gelu(whole(t, 4, 6)),
    "gelu tanh": lambda t, F: F.gelu(whole(t, 4, 6), approximate="tanh"), "silu": lambda t, F: F.silu(whole(t, 4, 6)),
    "silu_": lambda t, F: F.silu(whole(t, 4, 6), inplace=True), "mish": lambda t, F: F.mish(whole(t, 4, 6)),
    "hardswish": lambda t, F: F.hardswish(whole(t, 4, 6)), "hardsigmoid": lambda t, F: F.hardsigmoid(whole(t, 4, 6)),
    "softshrink": lambda t, F: F.softshrink(whole(t, 4, 6)), "logsigmoid": lambda t, F: F.logsigmoid(whole(t, 4, 6)),
    "glu": lambda t, F: F.glu(whole(t, 4, 6)), "layer_norm": lambda t, F: F.layer_norm(whole(t, 4, 6), (6,)),
    "rms_norm": lambda t, F: F.rms_norm(whole(t, 4, 6), (6,)), "group_norm": lambda t, F: F.group_norm(whole(t, 4, 6), 2),
    "instance_norm": lambda t, F: F.instance_norm(whole(t, 2, 3, 4)), "batch_norm": lambda t, F: F.batch_norm(whole(t, 4, 6), t.ones(6), t.ones(6)),
    "batch_norm training": lambda t, F: F.batch_norm(whole(t, 4, 6), None, None, training=True),
    "bilinear": lambda t, F: F.interpolate(whole(t, 1, 1, 4, 6), size=(3, 3), mode="bilinear"),
    "area": lambda t, F: F.interpolate(whole(t, 1, 1, 4, 6), size=(3, 3), mode="area"),
    "smooth_l1": lambda t, F: F.smooth_l1_loss(whole(t, 4), whole(t, 4) + 1, reduction="none"),
    "huber": lambda t, F: F.huber_loss(whole(t, 4), whole(t, 4) + 1, reduction="none"), "and": lambda t, F: t.ones(2) & t.ones(2),
    "bitwise_not": lambda t, F: t.bitwise_not(t.ones(2)), "shift": lambda t, F: t.ones(2) << 1, "gcd": lambda t, F: t.gcd(t.ones(2), t.ones(2)),
    "hypot": lambda t, F: t.hypot(whole(t, 3), whole(t, 3)), "nextafter": lambda t, F: t.nextafter(whole(t, 3), whole(t, 3)),
    "lerp": lambda t, F: t.lerp(whole(t, 3), whole(t, 3), 0.5), "frac": lambda t, F: t.frac(whole(t, 3)),
    "rand": lambda t, F: t.rand(2, dtype=t.int64),
    "randn": lambda t, F: t.randn(2, dtype=t.int32), "rand_like": lambda t, F: t.rand_like(whole(t, 3)), "abs": lambda t, F: t.abs(t.ones(2) > 0),
    "uniform_": lambda t, F: whole(t, 3).uniform_(), "normal_": lambda t, F: whole(t, 3).normal_(), "histc": lambda t, F: t.histc(whole(t, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_functions_of_floating_numbers_are_not_implemented_for_others(name: str) -> None:
    """Layers and activations gave whole numbers, cut down from what they should have given."""
    for t in (torch, calque):
        with pytest.raises(NotImplementedError):
            FLOATS[name](t, t.nn.functional)


@pytest.mark.parametrize(("mode", "antialias"), [("bilinear", False), ("bicubic", False), ("bilinear", True), ("bicubic", True), ("nearest", False)])
def test_bytes_are_resized_and_rounded(mode: str, antialias: bool) -> None:
    """Images of bytes became black: the weights were cut down to whole numbers, too. PyTorch's weights of bytes have 16 bits."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 9, 13), dtype=np.uint8)
    for size in ((4, 5), (9, 13), (20, 17)):
        found = [t.nn.functional.interpolate(t.from_numpy(pixels), size=size, mode=mode, antialias=antialias) for t in (torch, calque)]
        assert str(found[1].dtype).endswith("uint8")
        difference = np.abs(found[0].numpy().astype(int) - found[1].numpy().astype(int))
        assert difference.max() <= 1 and (difference > 0).mean() < 0.1


MISTAKES: dict[str, Callable[[Any, Any], Any]] = {
    "embed_dim": lambda t, n: n.MultiheadAttention(5, 2), "encoder": lambda t, n: n.TransformerEncoderLayer(5, 2),
    "width": lambda t, n: n.MultiheadAttention(4, 2)(t.ones(2, 3), t.ones(2, 3), t.ones(2, 3)),
    "padding mask": lambda t, n: n.MultiheadAttention(4, 2)(*[t.ones(2, 3, 4)] * 3, key_padding_mask=t.zeros(5, 5) > 0),
    "padding_idx": lambda t, n: n.Embedding(3, 2, padding_idx=3), "from_pretrained": lambda t, n: n.Embedding.from_pretrained(t.ones(3)),
    "TensorDataset": lambda t, n: t.utils.data.TensorDataset(t.ones(2), t.ones(3)), "ConcatDataset": lambda t, n: t.utils.data.ConcatDataset([]),
    "mask of ints": lambda t, n: n.functional.scaled_dot_product_attention(*[t.ones(2, 3, 4)] * 3, attn_mask=t.ones(3, 3, dtype=t.int64)),
    "pad": lambda t, n: n.functional.pad(t.ones(3), (1.5, 1)), "margin": lambda t, n: n.TripletMarginLoss(margin=-1),
    "quantile": lambda t, n: t.quantile(t.ones(3), t.ones(1, dtype=t.float64)), "threads": lambda t, n: t.set_num_threads(0),
    "no inputs": lambda t, n: t.autograd.grad(t.ones(2, requires_grad=True).sum(), []), "seed": lambda t, n: t.manual_seed(2**65),
    "index_select": lambda t, n: t.ones(2).index_select(0, t.ones(1)), "index_fill": lambda t, n: t.ones(2).index_fill(0, t.ones(1), 1.0),
    "two groups": lambda t, n: t.optim.SGD([{"params": [p := n.Parameter(t.ones(2))]}, {"params": [p]}], 0.1),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_raise_what_pytorch_raises(name: str) -> None:
    with pytest.raises(Exception) as theirs:
        MISTAKES[name](torch, torch.nn)
    with pytest.raises(kind_of(theirs.value)):
        MISTAKES[name](calque, calque.nn)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {}, "Adam": {}, "AdamW": {"amsgrad": True}, "RMSprop": {"momentum": 0.5}, "Adagrad": {}, "Adadelta": {}, "Adamax": {}, "NAdam": {},
    "RAdam": {}, "Rprop": {}, "ASGD": {}, "Adafactor": {},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_that_are_listed_twice_are_updated_twice_with_a_warning(name: str) -> None:
    """PyTorch warns of them: programs that chain the parameters of two modules with a tied weight were refused."""

    def run(t: Any) -> Any:
        w, u = t.nn.Parameter(t.linspace(-1, 1, 12).reshape(4, 3)), t.nn.Parameter(t.ones(3))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer = getattr(t.optim, name)([w, u, w], lr=0.05, **OPTIMIZERS[name])
        assert any("duplicate parameters" in str(w.message) for w in caught)
        losses = []
        for k in range(6):
            optimizer.zero_grad()
            loss = (((t.arange(20.0).reshape(5, 4) % 3 - 1 + 0.1 * k) @ w + u) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [*losses, *w.detach().flatten().tolist()]

    assert run(calque) == pytest.approx(run(torch), rel=1e-4, abs=1e-5)
