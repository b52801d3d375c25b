"""Autocast beside PyTorch's on the CPU: dtypes of many operations, values, gradients, modes; and `GradScaler`."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import ArgumentError, AutogradError, DTypeError

torch = pytest.importorskip("torch")

PAIR = (calque, torch)


def values(*shape: int) -> Any:
    """Reproducible values in 0..1."""
    return np.random.default_rng(sum(shape)).random(shape).astype(np.float32)


def operands(module: Any, kind: str) -> dict[str, Any]:
    """Named operands of one dtype."""
    shapes = {
        "x": (4, 4), "v": (4,), "b": (2, 4, 4), "image": (2, 3, 8, 8), "line": (2, 3, 8), "w1": (4, 3, 3), "w2": (4, 3, 3, 3), "t1": (3, 4, 3),
        "t2": (3, 4, 3, 3), "w4": (2, 4, 4), "q": (2, 2, 4, 4), "volume": (1, 2, 5, 5, 5), "w3": (4, 2, 3, 3, 3),
    }  # fmt: skip
    made = {name: module.tensor(values(*shape)).to(getattr(module, kind)) for name, shape in shapes.items()}
    made["x"] = made["x"] + module.eye(4).to(getattr(module, kind))
    return {**made, "labels": module.tensor([0, 1, 2, 3]), "one": module.ones(4).to(getattr(module, kind)), "m": module, "F": module.nn.functional}


OPERATIONS = """
x @ x; m.matmul(x, v); m.mm(x, x); m.bmm(b, b); m.mv(x, v); m.dot(v, v); m.inner(x, x); m.outer(v, v); m.addmm(x, x, x); m.addmv(v, x, v)
m.addr(x, v, v); m.baddbmm(b, b, b); m.addbmm(x, b, b); m.tensordot(x, x, 1); m.einsum('ij,jk->ik', x, x); m.linalg.multi_dot([x, x, x])
m.kron(x, x); m.matrix_power(x, 3); m.trace(x); m.linalg.vecdot(x, x); x.matmul(x); x.mm(x)
F.linear(x, x, v); F.conv1d(line, w1); F.conv2d(image, w2); F.conv3d(volume, w3); F.conv_transpose1d(line, t1)
F.conv_transpose2d(image, t2); F.scaled_dot_product_attention(q, q, q); F.prelu(x, v[:1])
F.softmax(x, -1); F.log_softmax(x, -1); F.layer_norm(x, (4,)); F.group_norm(line, 3); F.normalize(x); F.gelu(x); F.relu(x); F.dropout(x, 0.5)
F.cross_entropy(x, labels); F.nll_loss(x, labels); F.mse_loss(x, x); F.l1_loss(x, x); F.smooth_l1_loss(x, x); F.huber_loss(x, x)
F.binary_cross_entropy_with_logits(v, one); F.binary_cross_entropy(v, one)
F.kl_div(x, x, reduction='batchmean'); F.poisson_nll_loss(x, x); F.gaussian_nll_loss(x, x, x)
F.cosine_embedding_loss(x, x, one); F.hinge_embedding_loss(v, one); F.margin_ranking_loss(v, v, one); F.soft_margin_loss(v, one)
F.triplet_margin_loss(x, x, x + 1); F.multi_margin_loss(x, labels)
x.sum(); x.prod(); x.prod(0); x.mean(); x.var(); x.norm(); x.cumsum(0); x.exp(); x.pow(2); x.logsumexp(0); m.cdist(x, x)
F.pairwise_distance(x, x + 1); m.dist(x, x + 1); m.quantile(x, 0.5); m.nanquantile(x, 0.5)
F.avg_pool2d(image, 2); F.max_pool2d(image, 2); F.adaptive_avg_pool2d(image, 2); F.adaptive_avg_pool2d(image, 3); F.bilinear(x, x, w4)
F.interpolate(image, scale_factor=2, mode='bilinear'); F.pad(image, (1, 1, 1, 1), mode='reflect'); F.pad(image, (1, 1, 1, 1), mode='replicate')
F.pad(image, (1, 1, 1, 1), mode='circular'); F.pad(image, (1, 1)); F.embedding(labels, x); m.inverse(x); m.linalg.solve(x, x)
m.linalg.svdvals(x); m.linalg.qr(x)[0]; m.cat([x, x.float()]); m.stack([x, x.float()]); x + x.float(); x @ x.float(); F.linear(x.float(), x)
F.mse_loss(x.double(), x.double()); x.double() @ x.double(); x.half() @ x.half(); F.mse_loss(x.half(), x.half())
"""
CALLS = [text.strip() for line in OPERATIONS.strip().splitlines() for text in line.split(";")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("lower", ["bfloat16", "float16"])
@pytest.mark.parametrize("call", CALLS)
def test_dtype_and_value(call: str, kind: str, lower: str) -> None:
    """The same result type as PyTorch's, and values within the rounding of the lower type."""
    results = []
    for module in reversed(PAIR):
        named = operands(module, kind)
        try:
            with module.autocast("cpu", dtype=getattr(module, lower)):
                results.append(eval(call, named))
        except RuntimeError as error:
            if module is calque:
                raise
            pytest.skip(f"PyTorch refuses: {error}")
    theirs, ours = results
    assert str(ours.dtype) == str(theirs.dtype)
    if "dropout" not in call:
        expected = theirs.double().numpy()
        np.testing.assert_allclose(ours.double().numpy(), expected, rtol=0.04, atol=0.04 * max(1.0, float(np.abs(expected).max())))


def model(module: Any) -> Any:
    """A small network with the same parameters in both."""
    net = module.nn.Sequential(
        module.nn.Conv2d(3, 4, 3, padding=1), module.nn.ReLU(), module.nn.Flatten(), module.nn.Linear(256, 16), module.nn.LayerNorm(16),
        module.nn.Linear(16, 4),
    )  # fmt: skip
    with module.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_(module.tensor(values(*parameter.shape) * 0.2 - 0.1 + 0.01 * number))
    return net


def test_training_step_gives_float32_gradients() -> None:
    """Loss and gradients of a network under autocast, beside PyTorch's."""
    found = []
    for module in PAIR:
        net, x = model(module), module.tensor(values(4, 3, 8, 8))
        with module.autocast("cpu", dtype=module.bfloat16):
            out = net(x)
            loss = module.nn.functional.cross_entropy(out, module.tensor([0, 1, 2, 3]))
        loss.backward()
        assert out.dtype is module.bfloat16 and loss.dtype is module.float32
        grads = [p.grad for p in net.parameters()]
        assert all(g.dtype is module.float32 for g in grads)
        found.append([loss.detach().numpy(), *[g.numpy() for g in grads]])
    for ours, theirs in zip(*found, strict=True):
        assert np.linalg.norm(ours - theirs) <= 0.08 * np.linalg.norm(theirs)


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN", "LSTMCell", "MultiheadAttention"])
def test_layers(layer: str) -> None:
    """Result types of composite layers, and float32 gradients."""
    kinds = []
    for module in PAIR:
        net = module.nn.MultiheadAttention(4, 2) if layer == "MultiheadAttention" else getattr(module.nn, layer)(4, 4)
        x = module.tensor(values(*((2, 4) if layer == "LSTMCell" else (3, 2, 4))))
        with module.autocast("cpu"):
            out = (net(x, x, x) if layer == "MultiheadAttention" else net(x))[0]
        out.float().sum().backward()
        kinds.append(str(out.dtype))
        assert all(p.grad is None or p.grad.dtype is module.float32 for p in net.parameters())
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("module", PAIR)
def test_nesting_decorator_and_switching_off(module: Any) -> None:
    """Context managers nest, exceptions restore, decorators act per call, enabled=False returns to the operands' types."""
    x = module.ones(2, 2)
    with module.autocast("cpu", dtype=module.bfloat16):
        with module.autocast("cpu", dtype=module.float16):
            assert (x @ x).dtype is module.float16
            with module.autocast("cpu", enabled=False):
                assert (x @ x).dtype is module.float32
        assert (x @ x).dtype is module.bfloat16
        with pytest.raises(KeyError), module.autocast("cpu", enabled=False):
            raise KeyError
        assert module.is_autocast_enabled("cpu") and module.get_autocast_dtype("cpu") is module.bfloat16
    assert (x @ x).dtype is module.float32 and not module.is_autocast_enabled("cpu")

    @module.autocast("cpu")  # type: ignore[untyped-decorator]
    def product(a: Any) -> Any:
        return a @ a

    assert product(x).dtype is module.bfloat16 and (x @ x).dtype is module.float32


def test_one_object_may_be_entered_twice() -> None:
    """PyTorch's forgets the outer state here."""
    mode, x = calque.autocast("cpu"), calque.ones(1, 1)
    with mode, mode:
        assert (x @ x).dtype is calque.bfloat16
    assert not calque.is_autocast_enabled("cpu")


@pytest.mark.parametrize("module", PAIR)
def test_other_devices_and_dtypes_warn_and_switch_off(module: Any) -> None:
    """What the CPU cannot do is refused with a warning."""
    for arguments in ({"device_type": "cpu", "dtype": module.float32}, {"device_type": "cuda"}):
        with pytest.warns(UserWarning, match="Disabling"):
            mode = module.autocast(**arguments)
        with mode:
            assert (module.ones(1, 1) @ module.ones(1, 1)).dtype is module.float32
    with pytest.raises((ValueError, RuntimeError)):
        module.autocast("gpu")
    with pytest.raises((ValueError, RuntimeError)):
        module.autocast(3)


def test_mode_belongs_to_the_thread() -> None:
    """Another thread does not inherit autocast; backward inside the block computes in the types of the forward pass."""
    seen = []
    x = calque.ones(2, 2, requires_grad=True)
    with calque.autocast("cpu"):
        thread = threading.Thread(target=lambda: seen.append(calque.is_autocast_enabled("cpu")))
        thread.start()
        thread.join()
        with calque.autocast("cpu", enabled=False):
            plain = (x @ x).sum()
        plain.backward()
    assert seen == [False] and x.grad is not None and x.grad.dtype is calque.float32


def test_default_dtype_can_be_set() -> None:
    """`set_autocast_dtype` and `set_autocast_enabled` outside of any block."""
    x = calque.ones(1, 1)
    calque.set_autocast_dtype("cpu", calque.float16)
    calque.set_autocast_enabled("cpu", True)
    try:
        assert (x @ x).dtype is calque.float16
    finally:
        calque.set_autocast_enabled("cpu", False)
        calque.set_autocast_dtype("cpu", calque.bfloat16)
    assert (x @ x).dtype is calque.float32
    with pytest.raises(DTypeError, match="expected bfloat16 or float16"):
        calque.set_autocast_dtype("cpu", calque.float32)


def test_checkpoint_runs_again_in_the_same_precision() -> None:
    """Rematerialisation outside of the block sees the autocast of the first run."""
    w = calque.tensor(values(4, 4), requires_grad=True)
    kinds = []

    def part(a: Any) -> Any:
        out = a @ w
        kinds.append(out.dtype)
        return out

    with calque.autocast("cpu"):
        out = calque.autograd.checkpoint(part, calque.ones(2, 4, requires_grad=True))
    out.float().sum().backward()
    assert kinds == [calque.bfloat16] * 2 and w.grad is not None and w.grad.dtype is calque.float32


def test_compiled_function_tells_modes_apart() -> None:
    """A compiled function is recorded anew under autocast."""
    function = calque.compile(lambda a: a @ a)
    x = calque.ones(3, 3)
    kinds = [function(x).dtype for _ in range(3)]
    with calque.autocast("cpu"):
        kinds += [function(x).dtype for _ in range(3)]
    assert kinds == [calque.float32] * 3 + [calque.bfloat16] * 3


def scaled_steps(module: Any, factors: list[float], **settings: Any) -> list[Any]:
    """Scale, skipped steps and parameter after every step; a factor of infinity makes the gradient infinite."""
    w = module.ones(2, requires_grad=True)
    optimizer = module.optim.SGD([w], lr=0.1)
    scaler = module.amp.GradScaler("cpu", **settings)
    seen = []
    for factor in factors:
        optimizer.zero_grad()
        w.register_hook(lambda g, factor=factor: g * factor)
        scaler.scale((w * w).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        seen.append((scaler.get_scale(), w.detach().numpy().tolist()))
        w = w.detach().requires_grad_()
        optimizer.param_groups[0]["params"] = [w]
    return [seen, scaler.state_dict()]


def test_grad_scaler_follows_pytorch() -> None:
    """Growth, backoff and skipped steps over a mixed sequence."""
    factors = [1.0, 1.0, float("inf"), 1.0, 1.0, 1.0, float("nan"), 1.0]
    settings = {"init_scale": 16.0, "growth_interval": 2, "growth_factor": 4.0, "backoff_factor": 0.25}
    (ours, state), (theirs, reference) = (scaled_steps(module, factors, **settings) for module in PAIR)
    for (scale, w), (expected, v) in zip(ours, theirs, strict=True):
        assert scale == expected
        np.testing.assert_allclose(w, v, rtol=1e-6)
    assert state == reference
    other = calque.amp.GradScaler("cpu")
    other.load_state_dict(reference)
    assert other.state_dict() == reference


@pytest.mark.parametrize("module", PAIR)
def test_grad_scaler_refuses_wrong_order(module: Any) -> None:
    """PyTorch's protocol of unscale_, step and update."""
    w = module.ones(1, requires_grad=True)
    optimizer, scaler = module.optim.SGD([w], lr=0.1), module.amp.GradScaler("cpu")
    with pytest.raises((RuntimeError, AssertionError), match="No inf checks"):
        if module is torch:
            scaler.scale(w)  # creates the scale lazily there
        scaler.step(optimizer)
    scaler = module.amp.GradScaler("cpu")
    scaler.scale((w * 2).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called on this optimizer"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="being called after step"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called since the last update"):
        scaler.step(optimizer)
    scaler.update()
    with pytest.raises((RuntimeError, AssertionError), match="No inf checks were recorded prior to update"):
        scaler.update()


def test_grad_scaler_settings_and_pass_through() -> None:
    """Accessors, nested outputs, new scale, disabled scalers and refused arguments."""
    scaler = calque.amp.GradScaler("cpu", init_scale=4.0)
    first, (second,) = scaler.scale((calque.ones(1), [calque.ones(1) * 2]))
    assert first.tolist() == [4.0] and second.tolist() == [8.0]
    scaler.set_growth_factor(3), scaler.set_backoff_factor(0.1), scaler.set_growth_interval(7)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (3.0, 0.1, 7)
    scaler.update(calque.tensor(32.0))
    assert scaler.get_scale() == 32.0 and scaler.is_enabled()
    off = calque.amp.GradScaler("cpu", enabled=False)
    w = calque.ones(1, requires_grad=True)
    optimizer = calque.optim.SGD([w], lr=1.0)
    off.scale((w * 1.0).sum()).backward()
    off.unscale_(optimizer)
    off.step(optimizer)
    off.update()
    off.load_state_dict({})
    assert w.tolist() == [0.0] and off.state_dict() == {} and off.get_scale() == 1.0
    with pytest.warns(UserWarning, match="is not available"):
        assert not calque.amp.GradScaler("cuda").is_enabled()
    for settings, message in (({"growth_factor": 1.0}, "growth factor must be"), ({"backoff_factor": 1.0}, "backoff factor must be")):
        with pytest.raises(ArgumentError, match=message):
            calque.amp.GradScaler("cpu", **settings)
    with pytest.raises(ArgumentError, match="iterable of Tensors"):
        scaler.scale(3)
    with pytest.raises(ArgumentError, match="Closure use"):
        scaler.step(optimizer, closure=lambda: None)
    with pytest.raises(AutogradError, match="source state dict is empty"):
        scaler.load_state_dict({})
    half = calque.ones(1).half().requires_grad_()
    (half * 1.0).sum().backward()
    with pytest.raises(ArgumentError, match="unscale FP16"):
        scaler.unscale_(calque.optim.SGD([half], lr=1.0))


def test_custom_function_keeps_the_mode_in_backward() -> None:
    """`custom_fwd` and `custom_bwd` with and without `cast_inputs`."""
    seen: list[Any] = []

    def make(**settings: Any) -> Callable[..., Any]:
        class Product(calque.autograd.Function):
            @staticmethod
            @calque.amp.custom_fwd(device_type="cpu", **settings)
            def forward(ctx: Any, a: Any) -> Any:
                ctx.save_for_backward(a)
                out = a @ a
                seen.append(out.dtype)
                return out

            @staticmethod
            @calque.amp.custom_bwd(device_type="cpu")
            def backward(ctx: Any, g: Any) -> Any:
                (a,) = ctx.saved_tensors
                out = a @ a
                seen.append(out.dtype)
                return (g @ a).to(a.dtype)

        return Product.apply  # type: ignore[no-any-return]

    for settings, kind in (({}, calque.bfloat16), ({"cast_inputs": calque.float32}, calque.float32)):
        x = calque.ones(2, 2, requires_grad=True)
        seen.clear()
        with calque.autocast("cpu"):
            out = make(**settings)(x)
        out.float().sum().backward()
        assert seen == [kind, kind]


def test_names_of_pytorch() -> None:
    """What programs import."""
    for name in ("autocast", "GradScaler", "custom_fwd", "custom_bwd", "is_autocast_available"):
        assert hasattr(torch.amp, name) and hasattr(calque.amp, name)
    for name in ("autocast", "is_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype", "set_autocast_enabled"):
        assert hasattr(torch, name) and hasattr(calque, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(itertools.islice(iter([calque.amp.is_autocast_available("cpu")]), 1)) == [True]
