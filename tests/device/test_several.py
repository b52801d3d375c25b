"""Several devices of one process: four host devices of XLA's CPU client, in a process of their own, under the names of CUDA devices, so that the
programs are those that PyTorch's users write."""

from __future__ import annotations

import pytest

from tests.device.hosts import passes

pytestmark = pytest.mark.device

START = """
assert calque.cuda.is_available() and calque.cuda.device_count() == 4


def waves(*shape):  # the same bits in every program: XLA may round a product and a sum once where numbers are known
    return calque.tensor([math.sin(k) for k in range(math.prod(shape))], dtype=calque.float64).reshape(shape)


def losses(parallel, n):
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()
    model.load_state_dict({name: waves(*p.shape) for name, p in model.named_parameters()})
    model, x, y = model.cuda(), waves(n, 5).cuda(), waves(n, 2).cuda()
    optimizer = calque.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    net = parallel(model)
    for _ in range(5):
        optimizer.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
    return calque.cat([p.detach().cpu().reshape(-1) for p in model.parameters()] + [loss.detach().cpu().reshape(1)])
"""

PROGRAMS = {
    "data parallel equals one device": """
seen = []
class Seen(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        seen.append((str(x.device), x.shape[0]))
        return self.inner(x)
for n, parts in ((12, (3, 3, 3, 3)), (10, (3, 3, 3, 1)), (3, (1, 1, 1)), (1, (1,))):
    wanted = losses(lambda m: m, n)
    for ids in (None, [0, 1, 2, 3], ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]):
        del seen[:]
        found = losses(lambda m: nn.DataParallel(Seen(m), device_ids=ids), n)
        assert float((found - wanted).abs().max()) < 1e-12
        assert seen[: len(parts)] == [(f"cuda:{i}", rows) for i, rows in enumerate(parts)], seen
""",
    "primitives with numbers": """
model, x = nn.Linear(10, 2).cuda(), calque.randn(7, 10)
inputs = nn.parallel.scatter(x, [0, 2])
assert [str(p.device) for p in inputs] == ["cuda:0", "cuda:2"]
replicas = nn.parallel.replicate(model, [0, 2])
found = nn.parallel.gather(nn.parallel.parallel_apply(replicas, inputs), 1)
assert found.device == "cuda:1"
assert calque.allclose(found.cpu(), model(x.cuda()).cpu(), rtol=1e-5, atol=1e-6)
""",
    "a model in two parts": """
first, second = nn.Linear(4, 3).to("cuda:0"), nn.Linear(3, 2).to("cuda:1")
second(first(calque.ones(5, 4).cuda(0)).relu().to("cuda:1")).sum().backward()
assert (first.weight.grad.device, second.weight.grad.device) == ("cuda:0", "cuda:1")
embedding, part = nn.Embedding(10, 4), nn.Linear(4, 3).cuda()
part(embedding(calque.arange(5)).to("cuda:0")).to("cpu").sum().backward()
assert calque.allclose(embedding.weight.grad[:5], part.weight.detach().sum(0).cpu().expand(5, 4), rtol=1e-5, atol=1e-6)
""",
    "a store": """
store = calque.kvstore.create("device")
store.init("w", calque.zeros(3).cuda(0))
store.push("w", [calque.full((3,), float(i)).cuda(i) for i in range(4)])
found = [calque.zeros(3).cuda(i) for i in range(4)]
store.pull("w", out=found)
assert [(str(t.device), t.tolist()) for t in found] == [(f"cuda:{i}", [6.0] * 3) for i in range(4)]
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_four_devices(name: str) -> None:
    passes(START + PROGRAMS[name])
