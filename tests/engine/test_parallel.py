"""Data parallel, model parallel, pipelines, key-value stores: same numbers as on one device, in float64 to 1e-12."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import calque as torch  # the programs of the sources as printed
from calque import nn
from calque.base.errors import ArgumentError, DeviceError
from calque.record import recorder
from calque.run.engine import Task
from calque.run.queues import queue_of
from calque.vision.models.resnet import Bottleneck, ResNet

F = nn.functional
DEVICES = ["cpu:0", "cpu:1"]
pytestmark = pytest.mark.usefixtures("two_devices")


def data_parallel(module: Any, input: Any, device_ids: Any, output_device: Any = None) -> Any:
    """The function of the sources, as printed."""
    if not device_ids:
        return module(input)

    if output_device is None:
        output_device = device_ids[0]

    replicas = nn.parallel.replicate(module, device_ids)
    inputs = nn.parallel.scatter(input, device_ids)
    replicas = replicas[:len(inputs)]  # fmt: skip
    outputs = nn.parallel.parallel_apply(replicas, inputs)
    return nn.parallel.gather(outputs, output_device)


def _mlp() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def _gradients(model: Any) -> list[np.ndarray[Any, Any]]:
    return [p.grad.cpu().numpy().copy() for p in model.parameters()]


def _agree(found: list[Any], expected: list[Any], tolerance: float = 1e-12) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("batch", [8, 7, 5, 1])
@pytest.mark.parametrize("call", ["printed", "function", "module"])
def test_data_parallel_equals_one_device(batch: int, call: str) -> None:
    model = _mlp()
    x = torch.randn(batch, 7, dtype=torch.float64)
    y = torch.randn(batch, 3, dtype=torch.float64)
    expected_out = model(x)
    F.mse_loss(expected_out, y).backward()
    expected = _gradients(model)
    model.zero_grad()
    calls: dict[str, Callable[[], Any]] = {
        "printed": lambda: data_parallel(model, x, DEVICES, "cpu"),
        "function": lambda: nn.parallel.data_parallel(model, x),
        "module": lambda: nn.DataParallel(model)(x),
    }
    out = calls[call]()
    assert out.device == torch.device("cpu") and out.shape == expected_out.shape
    F.mse_loss(out, y).backward()
    _agree([out.detach().numpy()], [expected_out.detach().numpy()])
    _agree(_gradients(model), expected)


def test_training_follows_one_device() -> None:
    def train(wrap: Callable[[Any], Any]) -> list[float]:
        model = _mlp()
        parallel = wrap(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        torch.manual_seed(1)
        losses = []
        for step in range(12):
            x = torch.randn(6 + step % 3, 7, dtype=torch.float64)
            optimizer.zero_grad()
            loss = parallel(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    _agree(train(nn.DataParallel), train(lambda m: m), 1e-11)


class DataParallelModel(nn.Module):
    """As printed."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Linear(10, 20)

        # wrap block2 in DataParallel
        self.block2 = nn.Linear(20, 20)
        self.block2 = nn.DataParallel(self.block2)

        self.block3 = nn.Linear(20, 20)

    def forward(self, x: Any) -> Any:
        x = self.block1(x)
        x = self.block2(x)
        x = self.block3(x)
        return x  # noqa: RET504 - as printed


@pytest.mark.parametrize("devices", [1, 2])
def test_data_parallel_on_a_submodule(devices: int) -> None:
    torch.set_logical_devices(devices)
    torch.manual_seed(0)
    model = DataParallelModel().double()
    x = torch.randn(9, 10, dtype=torch.float64)
    out = model(x)
    out.square().sum().backward()
    found = _gradients(model)
    model.zero_grad()
    plain = model.block3(model.block2.module(model.block1(x)))
    plain.square().sum().backward()
    _agree([out.detach().numpy()], [plain.detach().numpy()])
    _agree(found, _gradients(model))
    assert "block2.module.weight" in model.state_dict()


def test_a_loss_per_replica() -> None:
    class WithLoss(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__(model=model)

        def forward(self, x: Any, y: Any) -> Any:
            return F.mse_loss(self.model(x), y)

    model = _mlp()
    x, y = torch.randn(8, 7, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    losses = nn.DataParallel(WithLoss(model))(x, y)
    assert losses.shape == (2,)
    losses.mean().backward()
    found = _gradients(model)
    model.zero_grad()
    F.mse_loss(model(x), y).backward()
    _agree(found, _gradients(model))


def test_structures_are_split_and_put_together() -> None:
    class Net(nn.Module):
        def forward(self, pair: Any, scale: float, *, more: Any) -> Any:
            return {"sum": pair[0] + pair[1] * scale, "rest": [more["m"] * 2, (pair[0].sum(),)]}

    a, b, m = torch.arange(5.0), torch.ones(5), torch.arange(10.0).reshape(5, 2)
    out = nn.parallel.data_parallel(Net(), ((a, b), 3.0), DEVICES, "cpu", module_kwargs={"more": {"m": m}})
    assert out["sum"].tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert torch.equal(out["rest"][0], m * 2) and out["rest"][1][0].tolist() == [3.0, 7.0]
    parts = nn.parallel.scatter([a, {"x": b, "name": "n"}], DEVICES)
    assert [p[0].tolist() for p in parts] == [[0.0, 1.0, 2.0], [3.0, 4.0]] and parts[1][1]["name"] == "n"
    assert [str(p[1]["x"].device) for p in parts] == DEVICES


@pytest.mark.parametrize("home", ["cpu", "cpu:0", "cpu:1"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_buffers_of_the_first_replica_are_kept(home: str, hybrid: bool) -> None:
    norm = nn.BatchNorm1d(3).to(home)
    parallel = nn.DataParallel(norm, DEVICES)
    if hybrid:
        parallel.hybridize()
    expected = torch.zeros(3)
    for k in range(6):
        x = torch.randn(8, 3)
        parallel(x.to(home))
        expected = 0.9 * expected + 0.1 * x[:4].mean(0)
        np.testing.assert_allclose(norm.running_mean.cpu().numpy(), expected.numpy(), rtol=1e-4, atol=1e-6)
        assert norm.num_batches_tracked.item() == k + 1
        assert str(norm.running_mean.device) == home


def test_wrong_uses_are_named() -> None:
    model = _mlp()
    with pytest.raises(ArgumentError, match="as many inputs as modules"):
        nn.parallel.parallel_apply([model], [1, 2])
    with pytest.raises(ArgumentError, match="name each device once"):
        nn.parallel.replicate(model, ["cpu:0", "cpu:0"])
    with pytest.raises(DeviceError, match="there are cpu, cpu:0, cpu:1"):
        nn.DataParallel(model, [0, 5])
    model[0].to("cpu:1")
    with pytest.raises(DeviceError, match="all parameters on one device"):
        nn.DataParallel(model)(torch.randn(4, 7, dtype=torch.float64))

    class Broken(nn.Module):
        def forward(self, x: Any) -> Any:
            return x @ x if x.device == torch.device("cpu:1") else x

    with pytest.raises(RuntimeError) as caught:
        nn.DataParallel(Broken())(torch.randn(4, 7))
    assert any("replica 1 on device cpu:1" in note for note in caught.value.__notes__)


def test_bytes_are_balanced(nothing_kept: None) -> None:
    """P24: no device is full while the others idle."""
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())])
    parallel = nn.DataParallel(model)
    x = torch.randn(4096, 64)
    torch.waitall()
    torch.stats(reset=True)  # peaks begin here
    loss = parallel(x).square().mean()  # the graph and its saved activations are alive
    torch.waitall()
    bytes_ = [torch.memory_stats(d)["in_use"] for d in DEVICES]
    assert min(bytes_) > 1 << 20 and max(bytes_) / min(bytes_) < 1.1, bytes_
    loss.backward()
    torch.waitall()
    peaks = [torch.memory_stats(d)["peak"] for d in DEVICES]
    assert max(peaks) / min(peaks) < 1.1, peaks


class ModelParallelResNet50(ResNet):
    """As printed, with the device names and the misprints (`**args`, the unknown `num_classes`) corrected, and fewer blocks for the fast test."""

    def __init__(self, layers: Any, num_classes: int) -> None:
        super().__init__(Bottleneck, layers, num_classes=num_classes)

        self.seq1 = nn.Sequential(
            self.conv1, self.bn1, self.relu, self.maxpool, self.layer1, self.layer2
            ).to('cpu:0')  # fmt: skip

        self.seq2 = nn.Sequential(
            self.layer3, self.layer4, self.avgpool,
            ).to('cpu:1')  # fmt: skip

        self.fc.to('cpu:1')  # fmt: skip

    def forward(self, x: Any) -> Any:
        x = self.seq2(self.seq1(x).to('cpu:1'))  # fmt: skip
        return self.fc(x.view(x.size(0), -1))


@pytest.mark.parametrize(("layers", "size"), [((1, 1, 1, 1), 32), pytest.param((3, 4, 6, 3), 64, marks=pytest.mark.slow)])
def test_model_parallel_resnet(layers: Any, size: int) -> None:
    torch.manual_seed(0)
    plain = ResNet(Bottleneck, layers, num_classes=5).double()
    state = {k: v.clone() for k, v in plain.state_dict().items()}
    model = ModelParallelResNet50(layers, 5).double()
    model.load_state_dict(state, strict=False)
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    out = model(x.to("cpu:0"))
    assert str(out.device) == "cpu:1" and str(model.conv1.weight.device) == "cpu:0"
    expected = plain(x)
    _agree([out.detach().cpu().numpy()], [expected.detach().numpy()], 1e-9)
    out.sum().backward()
    expected.sum().backward()
    _agree([model.conv1.weight.grad.cpu().numpy()], [plain.conv1.weight.grad.numpy()], 1e-7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    assert {str(p.device) for p in model.parameters()} == set(DEVICES)


def test_embedding_on_the_cpu_rest_on_a_device() -> None:
    device = torch.device("cpu:0")

    class DistributedModel(nn.Module):
        def __init__(self) -> None:
            super().__init__(
                embedding=nn.Embedding(1000, 10),
                rnn=nn.Linear(10, 10).to(device),
            )

        def forward(self, x: Any) -> Any:
            # Compute embedding on CPU
            x = self.embedding(x)

            # Transfer to GPU
            x = x.to(device)

            # Compute RNN on GPU
            x = self.rnn(x)
            return x  # noqa: RET504 - as printed

    model = DistributedModel()
    out = model(torch.tensor([[1, 2], [3, 999]]))
    assert out.device == device and out.shape == (2, 2, 10)
    out.sum().backward()
    assert model.embedding.weight.grad.device == torch.device("cpu") and model.rnn.weight.grad.device == device
    assert float(model.embedding.weight.grad.abs().sum(1).gt(0).sum()) == 4.0


def test_hand_written_two_device_program() -> None:
    """The two-device MLP of the sources, written serially with copies; same weights as on one device."""
    rng = np.random.default_rng(0)
    data, label = rng.standard_normal((100, 6)), rng.standard_normal((100, 2))
    start = [rng.standard_normal((6, 8)), rng.standard_normal((8, 2))]
    weights = [torch.tensor(w) for w in start]
    here: dict[str, Any] = {}
    for name, part in (("cpu:0", slice(0, 50)), ("cpu:1", slice(50, 100))):
        here[name] = {"w": [w.to(name) for w in weights], "x": torch.zeros(50, 6, dtype=torch.float64, device=name)}
        here[name]["x"].copyfrom(torch.tensor(data[part]))
        here[name]["y"] = torch.tensor(label[part], device=name)
    for _ in range(5):
        for d in here.values():
            h = (d["x"] @ d["w"][0]).tanh()
            g = 2 * (h @ d["w"][1] - d["y"]) / 100
            d["g"] = [d["x"].t() @ ((g @ d["w"][1].t()) * (1 - h * h)), h.t() @ g]
        for k in (0, 1):
            grad = here["cpu:0"]["g"][k].to("cpu") + here["cpu:1"]["g"][k].to("cpu")
            weights[k] -= 0.1 * grad
            weights[k].copyto(here["cpu:0"]["w"][k], here["cpu:1"]["w"][k])
    w0, w1 = start[0].copy(), start[1].copy()
    for _ in range(5):
        h = np.tanh(data @ w0)
        g = 2 * (h @ w1 - label) / 100
        w0, w1 = w0 - 0.1 * data.T @ ((g @ w1.T) * (1 - h * h)), w1 - 0.1 * h.T @ g
    _agree([w.numpy() for w in weights], [w0, w1], 1e-11)


class Halves(nn.Module):
    """Two parts on two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(7, 32), nn.Tanh(), nn.Linear(32, 32)).to("cpu:0")
        self.second = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3)).to("cpu:1")

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).to("cpu:1"))


@pytest.mark.parametrize("pieces", [1, 3, 4, 50])
def test_a_pipeline_has_the_same_gradients(pieces: int) -> None:
    torch.manual_seed(0)
    model = Halves().double()
    x = torch.randn(10, 7, dtype=torch.float64, device="cpu:0")
    y = torch.randn(10, 3, dtype=torch.float64, device="cpu:1")
    F.mse_loss(model(x), y).backward()
    expected = _gradients(model)
    piped = torch.parallel.pipeline(model, pieces)
    for _ in range(3):
        model.zero_grad()
        out = piped(x)
        F.mse_loss(out, y).backward()
        assert out.shape == (10, 3)
        _agree(_gradients(model), expected)
    with pytest.raises(ArgumentError, match="positive number of micro-batches"):
        torch.parallel.pipeline(model, 0)


@pytest.mark.parametrize("kind", ["local", "device"])
def test_key_value_store(kind: str) -> None:
    kv = torch.kvstore.create(kind)
    assert kv.type == kind and kv.rank == 0 and kv.num_workers == 1
    kv.init([3, "b"], [torch.ones(2, 3), torch.zeros(2, device="cpu:1")])
    out = torch.empty(2, 3, device="cpu:1")
    kv.pull(3, out=out)
    assert out.tolist() == [[1.0] * 3] * 2
    kv.push(3, [torch.ones(2, 3, device=d) * (k + 1) for k, d in enumerate(["cpu", *DEVICES])])
    outs = [torch.empty(2, 3, device=d) for d in DEVICES]
    kv.pull(3, out=outs)
    assert all(o.tolist() == [[6.0] * 3] * 2 for o in outs)
    seen = []

    def update(key: Any, given: Any, stored: Any) -> None:
        seen.append(key)
        stored += given * 2

    kv.set_updater(update)
    kv.pushpull([3, "b"], [torch.ones(2, 3), torch.ones(2)], out=[out, torch.empty(2)])
    assert out.tolist() == [[8.0] * 3] * 2 and seen == [3, "b"]
    with pytest.raises(ArgumentError, match="initialised key, got 'c'"):
        kv.push("c", torch.ones(1))
    with pytest.raises(ArgumentError, match="a new key, got 3"):
        kv.init(3, torch.ones(1))
    with pytest.raises(ArgumentError, match="as many values as keys"):
        kv.push([3, "b"], torch.ones(1))
    with pytest.raises(ArgumentError, match="expected tensors"):
        kv.push(3, 1.0)
    with pytest.raises(ArgumentError, match="one of local, device"):
        torch.kvstore.create("devices")


def test_priorities_of_a_store_order_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the copies that wait for a device the most urgent run first; all of them before the computations that wait there."""
    kv = torch.kvstore.create("device")
    values = [torch.full((100 + key,), float(key), device="cpu:0") for key in range(5)]
    kv.init(list(range(5)), values)
    outs = [torch.zeros(100 + key, device="cpu:1") for key in range(5)]
    busy = torch.ones(3, device="cpu:1")
    torch.synchronize()
    gate, begun, queue = threading.Event(), threading.Event(), queue_of(torch.device("cpu:1"))
    queue.submit(Task(lambda: None))
    queue.drain()  # its worker goes to its place at its start, and only then
    monkeypatch.setattr(queue, "move", None)  # nobody else has time for them: copies that somebody takes at once do not wait

    def hold() -> None:
        begun.set()
        gate.wait()

    with torch.profiler.profile() as p:
        queue.submit(Task(hold))
        begun.wait()  # before that a copy would be taken first
        busy = busy + 1.0
        recorder.flush("test")
        for key, priority in enumerate((-3, -1, -2, 7, 0)):
            kv.pull(key, outs[key], priority=priority)
        queue_of(torch.device("cpu:0")).drain()  # before that not all copies are ready, and one that is would be taken
        gate.set()
        torch.synchronize()
    copies = sorted((e for e in p.events() if e.name == "copy to cpu:1"), key=lambda e: e.start)
    assert [e.facts["bytes"] // 4 - 100 for e in copies] == [3, 4, 1, 2, 0]
    assert [out.tolist() for out in outs] == [value.tolist() for value in values] and busy.tolist() == [2.0] * 3


@pytest.mark.parametrize("give", ["partial", "instance"])
def test_a_store_with_an_optimizer(give: str) -> None:
    kv = torch.kvstore.create("device")
    start = torch.tensor([1.0, -2.0], dtype=torch.float64)
    kv.init("w", start)
    twin = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([twin], lr=0.1)
    kv.set_optimizer(functools.partial(torch.optim.Adam, lr=0.1) if give == "partial" else torch.optim.Adam([torch.zeros(1)], lr=0.1))
    out = torch.zeros(2, dtype=torch.float64, device="cpu:1")
    for step in range(4):
        parts = [torch.full((2,), float(step + k), dtype=torch.float64, device=d) for k, d in enumerate(DEVICES)]
        kv.push("w", parts)
        kv.pull("w", out=out)
        twin.grad = parts[0].cpu() + parts[1].cpu()
        optimizer.step()
        _agree([out.cpu().numpy()], [twin.detach().numpy()])


@pytest.mark.parametrize("kind", ["local", "device"])
def test_trainer_in_gluon_style(kind: str) -> None:
    def net(device: str) -> Any:
        return _mlp().to(device)

    x, y = torch.randn(10, 7, dtype=torch.float64), torch.randn(10, 3, dtype=torch.float64)
    nets = [net(d) for d in DEVICES]
    trainer = torch.parallel.Trainer(nets, "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=kind)
    plain = net("cpu")
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        if step == 2:
            trainer.set_learning_rate(0.05)
            optimizer.param_groups[0]["lr"] = 0.05
        xs, ys = (torch.parallel.split_and_load(t, DEVICES) for t in (x, y))
        for n, a, b in zip(nets, xs, ys, strict=True):
            (n(a) - b).square().sum().backward()
        trainer.step(batch_size=10)
        optimizer.zero_grad()
        ((plain(x) - y).square().sum() / 10).backward()
        optimizer.step()
        for n in nets:
            _agree([p.detach().cpu().numpy() for p in n.parameters()], [p.detach().numpy() for p in plain.parameters()], 1e-11)
    assert trainer.learning_rate == 0.05
    with pytest.raises(ArgumentError, match="a gradient for every parameter"):
        trainer.step(10)
    with pytest.raises(ArgumentError, match="name of an optimizer"):
        torch.parallel.Trainer(plain, "sgdd")


class _Named(NamedTuple):
    x: Any
    scale: Any


def test_a_pipeline_splits_named_tuples() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__(first=nn.Linear(4, 3), second=nn.Linear(3, 2).to("cpu:1"))

        def forward(self, pair: Any) -> Any:
            return _Named(self.second(self.first(pair.x).to("cpu:1")), pair.scale * 2.0)

    net, given = Net(), _Named(torch.randn(5, 4), torch.ones(5, 1))
    out, whole = torch.parallel.pipeline(net, 3)(given), net(given)
    assert type(out) is _Named
    _agree([out.x.detach().cpu().numpy(), out.scale.cpu().numpy()], [whole.x.detach().cpu().numpy(), whole.scale.numpy()], 1e-6)


def test_options_that_an_optimizer_does_not_have() -> None:
    with pytest.raises(ArgumentError, match=r"\[Trainer\] expected options of SGD, got 'gamma'; there are lr, momentum"):
        torch.parallel.Trainer(nn.Linear(2, 1), "sgd", {"learning_rate": 0.1, "gamma": 1.0})


@pytest.mark.parametrize("order", [2.0, 1.0, float("inf")])
def test_gradients_on_several_devices_are_clipped_together(order: float) -> None:
    weights = [torch.tensor(values, requires_grad=True, device=d) for values, d in (([3.0, -4.0], "cpu:0"), ([12.0], "cpu:1"))]
    for w in weights:
        w.grad = w.detach().clone()
    total = nn.utils.clip_grad_norm_(weights, 1.0, norm_type=order).item()
    assert total == pytest.approx(np.linalg.norm([3.0, 4.0, 12.0], order))
    for w in weights:
        assert w.grad.device == w.device
        np.testing.assert_allclose(w.grad.numpy(), w.detach().numpy() / total, rtol=1e-5)
