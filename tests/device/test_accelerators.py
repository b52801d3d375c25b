"""`torch.cuda` and `torch.accelerator` where a device is there: four host devices under the names of CUDA devices."""

from __future__ import annotations

import pytest

from tests.device.hosts import passes

pytestmark = pytest.mark.device

START = """
import pytest
from calque.base.errors import ArgumentError, DeviceError
calque.install_as_torch(children=False)
import torch

def refused(kind, text, call):
    with pytest.raises(kind, match=text):
        call()
"""

PROGRAMS = {
    "memory is that of the values": """
import jax
assert not torch.cuda.is_initialized()
before = torch.cuda.memory_allocated()
x = torch.ones(1000, 250, device="cuda")
assert torch.cuda.memory_allocated() - before == 1_000_000 and torch.cuda.is_initialized()  # what is only recorded counts, too
assert torch.cuda.memory_allocated(1) == torch.accelerator.memory_allocated(2) == 0
del x
assert torch.cuda.memory_allocated() == before and torch.cuda.max_memory_allocated() >= before + 1_000_000
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == before
model = nn.Sequential(nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 10)).cuda()
optimizer = calque.optim.Adam(model.parameters())
found = []
for _ in range(8):
    optimizer.zero_grad()
    loss = (model(torch.rand(64, 100, device="cuda")) ** 2).mean()
    loss.backward()
    optimizer.step()
    found.append(torch.cuda.memory_allocated())
    alive = sum(a.nbytes for a in jax.live_arrays() if not a.is_deleted() and a.devices() == {jax.devices()[0]})
    assert 0 <= alive - found[-1] < 4000, (alive, found)  # beside values: what checks found and the numbers of programs, a few bytes each
assert len(set(found[2:])) == 1, found
parameters = 4 * sum(p.numel() for p in model.parameters())
assert 4 * parameters <= found[-1] <= 4 * parameters + 4000
assert torch.cuda.max_memory_allocated() > found[-1]
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.current"] == found[-1] and stats["allocated_bytes.all.peak"] == torch.cuda.max_memory_allocated()
free, whole = torch.cuda.mem_get_info()
assert 0 < free < whole == torch.cuda.get_device_properties().total_memory
summary = torch.cuda.memory_summary()
assert "memory of cuda:0" in summary and "KiB" in summary
""",
    "memory freed while others take it": """
import gc, threading
def churn():
    for k in range(60):
        x = torch.ones(100 + k, device="cuda:3")
        y = [x + 1, x * 2]
        calque.synchronize()
        y.append(y)  # the collector frees it, in whichever thread
        if k % 20 == 0:
            gc.collect()
threads = [threading.Thread(target=churn) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
gc.collect()
assert torch.cuda.memory_allocated(3) == 0
""",
    "events tell when the device was there": """
import time
x = torch.rand(700, 700, device="cuda")
def work(n):
    y = x
    for _ in range(n):
        y = (y @ x) / 350
    return y
work(8).sum().item()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for _ in range(3):
    start.record()
    y = work(8)
    end.record()
    end.synchronize()
torch.cuda.synchronize()
begin = time.perf_counter()
start.record()
started = time.perf_counter()
y = work(8)
end.record()
asked = 0.0
while True:  # whenever it has not been there, the time between is longer
    now = time.perf_counter()
    if end.query():
        break
    asked = (now - started) * 1e3
wall = (time.perf_counter() - begin) * 1e3
torch.cuda.synchronize()
time.sleep(0.2)  # the moment is that of the device, not of the question
assert asked <= start.elapsed_time(end) <= wall and start.elapsed_time(end) > 0, (asked, wall, start.elapsed_time(end))
again = torch.cuda.Event(enable_timing=True)  # nobody waits for it: a thread sees it
y = work(8)
again.record()
while not y.sum().isfinite():
    pass
time.sleep(0.5)
until = time.perf_counter()
time.sleep(0.5)
assert again.query() and end.elapsed_time(again) <= (until - begin) * 1e3
fresh = torch.cuda.Event(enable_timing=True)
refused(ArgumentError, "must be recorded", lambda: start.elapsed_time(fresh))
refused(ArgumentError, "enable_timing=True", lambda: start.elapsed_time(torch.cuda.Event()))
refused(ArgumentError, "expected an event", lambda: start.elapsed_time(3))
other = torch.Event("cuda:1", enable_timing=True)
other.record()
assert other.device == "cuda:1" and isinstance(start, torch.Event) and torch.cuda.current_stream(1).record_event().device == "cuda:1"
""",
    "streams are names of one queue": """
first, second = torch.cuda.Stream(), torch.cuda.Stream(2, priority=-1)
assert first != second and first == first and isinstance(first, torch.Stream) and (second.device, second.priority) == ("cuda:2", -1)
assert torch.cuda.current_stream() == torch.cuda.default_stream() != first
x = torch.arange(4.0).cuda(non_blocking=True)
with torch.cuda.stream(first):
    assert torch.cuda.current_stream() == first
    y = x * 2
    with second:
        assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (2, second)
        there = y.to("cuda", non_blocking=True) + 1
    assert torch.cuda.current_stream() == first and torch.cuda.current_device() == 0
torch.cuda.current_stream().wait_stream(first)
second.wait_event(first.record_event())
assert there.device == "cuda:2" and there.tolist() == [1.0, 3.0, 5.0, 7.0]
second.synchronize()
assert second.query() and torch.cuda.current_stream() == torch.cuda.default_stream()
with torch.cuda.stream(None):
    torch.cuda.set_stream(second)
    assert torch.cuda.current_device() == 2
torch.cuda.set_device(0)
refused(ArgumentError, "expected a stream", lambda: first.wait_stream(None))
refused(DeviceError, "expected a CUDA device, got 'cpu'", lambda: torch.cuda.Stream("cpu"))
refused(DeviceError, "got 'cuda:7': there are cuda:0", lambda: torch.cuda.Stream(7))
call = calque.compile(lambda v: (torch.cuda.current_stream().synchronize(), v * 2)[1] + 1)
assert [call(torch.full((2,), float(k), device="cuda")).tolist() for k in range(5)] == [[2.0 * k + 1] * 2 for k in range(5)]
""",
    "old types": """
Tensor, Long = torch.cuda.FloatTensor, torch.cuda.LongTensor
x = Tensor(2, 3).fill_(1.0)
assert x.device == "cuda:0" and isinstance(x, Tensor) and not isinstance(x, (Long, torch.FloatTensor)) and x.type() == "torch.cuda.FloatTensor"
assert not isinstance(torch.ones(1), Tensor) and isinstance(torch.ones(1), torch.FloatTensor) and torch.ones(1).type() == "torch.FloatTensor"
assert Long([1, 2]).tolist() == [1, 2] and Long([1]).device == "cuda:0" and Tensor(x) is not None and Tensor().shape == (0,)
assert Tensor(__import__("numpy").ones(2, "float32")).device == "cuda:0"
with torch.cuda.device(2):
    assert torch.cuda.HalfTensor(3).device == "cuda:2" == torch.ones(1).type(Tensor).device
    assert x.type(Tensor) is x and x.type(Long).device == "cuda:0"
for name in (Long, "torch.cuda.LongTensor"):
    assert torch.ones(2).type(name).type() == "torch.cuda.LongTensor"
for name in (torch.LongTensor, "torch.LongTensor"):
    assert x.type(name).type() == "torch.LongTensor" and x.type(name).device == "cpu"
assert x.type(torch.float64).type() == "torch.cuda.DoubleTensor" and torch.ones(2).type_as(x).device == "cuda:0" == x.new(3).device
assert (x[0].type_as(torch.ones(1, dtype=torch.int64)).device, x.type_as(torch.ones(1, device="cuda:3")).device) == ("cpu", "cuda:3")
assert {p.type() for p in nn.Linear(2, 2).type(torch.cuda.HalfTensor).parameters()} == {"torch.cuda.HalfTensor"}
refused(TypeError, "expected a tensor of a cuda device, got one on cpu", lambda: Tensor(torch.ones(1)))
torch.set_default_tensor_type(torch.cuda.DoubleTensor)
assert torch.ones(1).type() == "torch.cuda.DoubleTensor"
torch.set_default_tensor_type("torch.cuda.FloatTensor")
assert torch.rand(1).type() == "torch.cuda.FloatTensor"
torch.set_default_tensor_type("torch.FloatTensor")
assert torch.ones(1).type() == "torch.FloatTensor"
""",
    "devices, seeds and names": """
assert torch.accelerator.is_available() and torch.accelerator.current_accelerator() == "cuda" and torch.accelerator.device_count() == 4
with torch.cuda.device(3):
    assert torch.cuda.current_device() == 3 == torch.accelerator.current_device_index() and torch.ones(1).cuda().device == "cuda:3"
with torch.accelerator.device_index(1), torch.cuda.device_of(torch.ones(1, device="cuda:2")):
    assert torch.cuda.current_device() == 2
with torch.cuda.device(-1), torch.cuda.device_of(torch.ones(1)):
    assert torch.cuda.current_device() == 0
torch.accelerator.set_device_index(1)
assert torch.cuda.current_device() == 1
torch.cuda.set_device(0)
draws = lambda: torch.rand(3, device="cuda").tolist()
torch.cuda.manual_seed_all(5)
found, state, after = draws(), torch.cuda.get_rng_state(), draws()
torch.cuda.set_rng_state(state)
assert draws() == after != found
states = torch.cuda.get_rng_state_all()
torch.cuda.manual_seed(5)
assert draws() == found and len(states) == 4 and torch.cuda.initial_seed() == 5
torch.cuda.set_rng_state_all(states)
assert draws() not in (found, after)
assert torch.cuda.is_bf16_supported() and not torch.cuda.is_tf32_supported()
assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]
refused(DeviceError, "compute capability", torch.cuda.get_device_capability)
refused(AttributeError, "known are name, total_memory", lambda: torch.cuda.get_device_properties().major)
refused(NotImplementedError, "calque.compile", torch.cuda.CUDAGraph)
with calque.profiler.profile() as p, torch.cuda.nvtx.range("part {}", 1):
    torch.cuda.nvtx.range_push("inner")
    assert torch.cuda.nvtx.range_pop() == 0 and torch.cuda.nvtx.range_pop() == -1
assert [e.name for e in p.events() if e.row == "ranges"] == ["inner", "part 1"]
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_four_devices(name: str) -> None:
    passes(START + PROGRAMS[name])
