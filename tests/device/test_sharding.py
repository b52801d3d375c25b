"""Meshes: several devices of XLA's CPU client as one, in a process of their own; the results are those of one device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.device.hosts import ROOT, passes

pytestmark = pytest.mark.device

START = f"""
import math, os, sys
sys.path.insert(0, {str(ROOT)!r})
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
import calque, pytest, warnings
from calque import nn
from calque.base.errors import ArgumentError, DeviceError, DTypeError, OutOfMemoryError, OutOfRangeError, UnsupportedTypeError
from calque.parallel import Mesh, shard
warnings.filterwarnings("ignore", message=".*expected a loop that repeats")


def waves(*shape):
    return calque.tensor([math.sin(k) for k in range(math.prod(shape))], dtype=calque.float64).reshape(shape)


def placed(tensors, mesh, cut):
    return [t.to("xla:0") if mesh is None else mesh.put(t, cut) for t in tensors]


def trained(n, mesh=None, rules=None, cut=None):
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8) if n > 1 else nn.Identity(), nn.Tanh(), nn.Linear(8, 2)).double()
    model.load_state_dict({{name: waves(*p.shape) for name, p in model.named_parameters()}}, strict=False)
    model = model.to("xla:0") if mesh is None else shard(model, mesh, rules)
    x, y = placed([waves(n, 5), waves(n, 2)], mesh, cut)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
    return calque.cat([p.detach().cpu().double().reshape(-1) for p in model.state_dict().values()] + [loss.detach().cpu().reshape(1)])
"""

GPT = """
from tests.device.programs import Block

class Gpt(nn.Module):
    def __init__(self, width=128, blocks=2):
        super().__init__()
        self.embedding = nn.Embedding(40, width)
        self.blocks = nn.Sequential(*[Block(width, 4, 0.0) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 40, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embedding(x)))).flatten(0, 1)

RULES = {
    "*.qkv.*": {0: "model"}, "*.mlp.0.*": {0: "model"}, "*.out.weight": {1: "model"}, "*.mlp.2.weight": {1: "model"},
    "embedding.weight": {1: "model"}, "head.weight": {0: "model"},
}

def losses(move, put, Optimizer, steps=4):
    calque.manual_seed(0)
    model = move(Gpt())
    optimizer = Optimizer(model.parameters())
    found = []
    for k in range(steps):
        x, y = put(calque.randint(0, 40, (2, 8))), put(calque.randint(0, 40, (16,)))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, model, optimizer
"""

PROGRAMS = {
    "data parallel equals one device": """
mesh = Mesh({"data": 4}, "xla")
for n in (12, 10, 3, 1):
    assert float((trained(n, mesh, None, {0: "data"}) - trained(n)).abs().max()) < 1e-12
""",
    "parameters cut over one axis and batches over another": """
mesh = Mesh({"data": 2, "model": 2}, ["xla:3", "xla:1", "xla:0", "xla:2"])
rules = {"0.*": {0: "model"}, "3.weight": {1: "model"}}
for n in (12, 7):
    assert float((trained(n, mesh, rules, {0: "data"}) - trained(n)).abs().max()) < 1e-12
""",
    "a model beyond the memory of one device": GPT + """
sgd = lambda p: calque.optim.SGD(p, lr=0.1, momentum=0.9)
wanted, model, _ = losses(lambda m: m.to("xla:0"), lambda t: t.to("xla:0"), sgd)
size = sum(p.numel() * 4 for p in model.parameters())
del model, _
limit = size - 1
for i in range(4):
    assert calque.memory_stats(f"xla:{i}")["in_use"] < 1000
    calque.xla.memory_limit(limit, f"xla:{i}")
    calque.device("xla:0").backend.reset_peak(i)
with pytest.raises(OutOfMemoryError, match="xla:0"):
    losses(lambda m: m.to("xla:0"), lambda t: t.to("xla:0"), sgd)
mesh = Mesh({"model": 4}, "xla")
found, model, optimizer = losses(lambda m: shard(m, mesh, RULES), mesh.put, sgd)
assert found == pytest.approx(wanted, rel=2e-5), (found, wanted)
for i in range(4):
    stats = calque.memory_stats(f"xla:{i}")
    assert size / 4 < stats["in_use"] < stats["peak"] <= limit, (i, size, stats)
block = model.blocks[0]
assert mesh.cut_of(block.qkv.weight) == {0: "model"} and mesh.cut_of(block.out.weight) == {1: "model"} and mesh.cut_of(block.out.bias) == {}
assert mesh.cut_of(optimizer.state[block.qkv.weight]["momentum_buffer"]) == {0: "model"}
""",
    "adam, accumulated gradients, checkpoints": GPT + """
mesh = Mesh({"data": 2, "model": 2}, "xla")
adam = lambda p: calque.optim.AdamW(p, lr=1e-3)
wanted, _, _ = losses(lambda m: m.to("xla:0"), lambda t: t.to("xla:0"), adam)
found, model, optimizer = losses(lambda m: shard(m, mesh, RULES), lambda t: mesh.put(t, {0: "data"}), adam)
assert found == pytest.approx(wanted, rel=1e-4), (found, wanted)
weight = model.blocks[1].mlp[0].weight
assert mesh.cut_of(weight) == mesh.cut_of(weight.grad) == mesh.cut_of(optimizer.state[weight]["exp_avg"]) == {0: "model"}
import io
file = io.BytesIO()
calque.save(model.state_dict(), file)
file.seek(0)
again = Gpt()
again.load_state_dict(calque.load(file, map_location="cpu"))
x = calque.randint(0, 40, (3, 8))
assert calque.allclose(again(x), model(mesh.put(x)).cpu(), rtol=1e-4, atol=1e-4)
with calque.no_grad():
    weight.copy_(again.blocks[1].mlp[0].weight)  # from the host
    weight.mul_(2)
assert mesh.cut_of(weight) == {0: "model"}
assert calque.equal(weight.detach().cpu(), again.blocks[1].mlp[0].weight.detach() * 2)
""",
    "what is counted is what lies there": """
import jax
mesh = Mesh({"model": 4}, "xla")
model = shard(nn.Linear(400, 800), mesh, {"weight": {0: "model"}})
optimizer = calque.optim.Adam(model.parameters())
for _ in range(5):
    optimizer.zero_grad()
    model(mesh.put(calque.ones(8, 400))).square().mean().backward()
    optimizer.step()
calque.synchronize()
for i in range(4):
    alive = [a for a in jax.live_arrays() if not a.is_deleted() and jax.devices()[i] in a.sharding.device_set]
    there = sum(math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in alive)
    counted = calque.memory_stats(f"xla:{i}")["in_use"]
    assert 0 <= there - counted < 4000, (there, counted)
    assert counted < 4 * (400 * 800 + 4 * 800) * 4 / 4 + 200_000
assert calque.memory_stats(mesh.device)["in_use"] == sum(calque.memory_stats(f"xla:{i}")["in_use"] for i in range(4))
""",
    "checks, random numbers, views, other devices": """
mesh = Mesh({"data": 4}, "xla")
table = shard(nn.Embedding(8, 4), mesh, {"weight": {0: "data"}})
before = table.weight.detach().cpu()
optimizer = calque.optim.SGD(table.parameters(), lr=1.0)
def step(indices):
    optimizer.zero_grad()
    table(mesh.put(calque.tensor(indices), {0: "data"})).sum().backward()
    optimizer.step()
step([1, 9])
with pytest.raises(OutOfRangeError, match="got 9 at position"):
    calque.synchronize()
assert calque.equal(table.weight.detach().cpu(), before)
step([1, 2])
assert float((table.weight.detach().cpu() - before).sum()) == pytest.approx(-8.0, rel=1e-5)

def drawn(where):
    calque.manual_seed(3)
    return [t.tolist() for t in (calque.rand(50, device=where), calque.randperm(20, device=where))]
assert drawn(mesh.device) == drawn("cpu")

x = waves(8, 6)
y = mesh.put(x, {1: "data"})
views = (lambda t: t.T[1:4, ::2], lambda t: t.flip(1).cumsum(1), lambda t: t.sort(0)[0], lambda t: t.view(4, 12)[:, 3], lambda t: t.unfold(0, 3, 2))
for f in views:
    assert calque.allclose(f(y).cpu(), f(x), rtol=1e-12, atol=1e-12)
z = waves(8, 6).requires_grad_()
(mesh.put(z, {0: "data"}) * 3).sum().backward()
assert z.grad.tolist() == [[3.0] * 6] * 8
other = Mesh({"data": 2}, "xla")
assert y.to(other.device).to("xla:1").device == "xla:1" and calque.equal(y.to(other.device).to("xla:1").cpu(), x)
assert calque.equal(x.to("xla:1").to(mesh.device).cpu(), x)
with pytest.raises(DeviceError, match="at least two devices"):
    y + x.to("xla:0")
model = shard(nn.Linear(6, 3).double(), mesh)
assert nn.DataParallel(model)(y).device == mesh.device
call = calque.compile(lambda t: (t * 2).sum())
assert [call(mesh.put(x * k, {0: "data"})).item() for k in range(4)] == pytest.approx([float(x.sum()) * 2 * k for k in range(4)])
held = calque.compile(lambda t: mesh.put(t, {0: "data"}).sum())
assert [held(x * k).item() for k in range(4)] == pytest.approx([float(x.sum()) * k for k in range(4)])
big = calque.arange(1 << 18, dtype=calque.float64)
assert calque.equal((big.to(mesh.device).reshape(512, 512).T + 1).cpu(), big.reshape(512, 512).T + 1)
""",
    "what is refused": """
def refused(kind, text, call):
    with pytest.raises(kind, match=text):
        call()
refused(DeviceError, "no mesh was made; make one: calque.parallel.Mesh", lambda: calque.ones(2, device="mesh:0"))
refused(ArgumentError, "expected the axes of the mesh", lambda: Mesh({}))
refused(ArgumentError, "a positive number for each axis, got 'data': 0", lambda: Mesh({"data": 0}))
refused(DeviceError, "there are xla:0, xla:1, xla:2, xla:3", lambda: Mesh({"data": 5}, "xla"))
refused(DeviceError, "expected 2 different devices of one kind, as the axes say, got xla:0, xla:0", lambda: Mesh({"data": 2}, ["xla:0", "xla:0"]))
refused(DeviceError, "expected devices that XLA serves, got cpu", lambda: Mesh({"data": 1}, ["cpu"]))
mesh = Mesh({"model": 4})
assert mesh.device == "mesh:0" and Mesh({"model": 4}, "xla").device == "mesh:0" and "model" in repr(mesh)
assert not calque.accelerator.is_available()  # host devices, and a mesh of them, are chosen by name alone
model = nn.Linear(6, 8)
refused(DTypeError, "expected a tensor, got int", lambda: mesh.put(3))
refused(ArgumentError, "expected a dimension of a tensor of shape", lambda: mesh.put(calque.ones(3), {1: "model"}))
refused(ArgumentError, "expected an axis of the mesh, got 'data'; it has model", lambda: mesh.put(calque.ones(3), {0: "data"}))
refused(ArgumentError, "each axis and each dimension once", lambda: mesh.put(calque.ones(3, 3), {0: "model", 1: "model"}))
refused(ArgumentError, "expected {dimension: axis}, got 0", lambda: mesh.put(calque.ones(3), 0))
refused(UnsupportedTypeError, "complex64", lambda: mesh.put(calque.ones(4, dtype=calque.complex64)))
refused(DeviceError, "expected a tensor on mesh:0, got one on cpu", lambda: mesh.cut_of(model.weight))
refused(ArgumentError, "expected a Module, got Tensor", lambda: shard(calque.ones(2), mesh))
refused(ArgumentError, "expected a Mesh, got str", lambda: shard(model, "xla"))
refused(ArgumentError, "fit a parameter, got '.qkv'; names are weight, bias", lambda: shard(model, mesh, {".qkv": {0: "model"}}))
refused(ArgumentError, r"got weight of shape \\(8, 6\\) cut along dimension 1; pad it to 8", lambda: shard(model, mesh, {"weight": {1: "model"}}))
refused(ArgumentError, "weight, which has none yet", lambda: shard(nn.LazyLinear(3), mesh))
assert model.weight.device == "cpu"
refused(ArgumentError, "expected bytes as an int >= 0, got -1", lambda: calque.xla.memory_limit(-1))
refused(DeviceError, "expected one of XLA's CPU devices, got cpu", lambda: calque.xla.memory_limit(5, "cpu"))
refused(UnsupportedTypeError, "complex64", lambda: calque.ones(2, device=mesh.device).to(calque.complex64))
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_mesh(name: str) -> None:
    passes(PROGRAMS[name], START)


def test_the_page_runs() -> None:
    """The blocks of docs/sharding.md, one after the other, on four devices."""
    blocks = re.findall(r"^```py\n(.*?)^```", (Path(ROOT) / "docs" / "sharding.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    passes("\n".join(blocks) + "\nassert '1,048,576 bytes on xla:0' in str(problem)", START)
