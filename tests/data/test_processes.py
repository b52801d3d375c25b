"""Worker processes of the DataLoader: the same batches as without them, whoever dies, and nothing that is left behind."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import CheckpointError, WorkerError
from calque.data import DataLoader, Dataset, IterableDataset, SharedList, TensorDataset, get_worker_info, pace, passes
from calque.data.transport import SMALLEST, Mappings, Segments
from tests.data.test_dataset import Numbers

BIG = SMALLEST // 4 + 1000  # float32 values that travel in shared memory


class Drawn(Dataset[Any]):
    """Samples that draw from every stream of random numbers there is."""

    def __init__(self, count: int = 12) -> None:
        self.count, self.table = count, np.arange(20_000.0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return {
            "image": np.full(BIG, index, np.float32), "index": index, "python": random.random(), "numpy": np.random.rand(2),
            "table": self.table[index], "calque": calque.rand(3), "text": f"sample {index}",
        }  # fmt: skip


class Sharded(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        info = get_worker_info()
        for k in range(self.count)[info.id if info else 0 :: info.num_workers if info else 1]:
            yield k, random.random()


class Deadly(Numbers):
    """A sample that ends its worker: always, or once (a file says that it has happened)."""

    def __init__(self, count: int, at: int, mark: str = "") -> None:
        super().__init__(count)
        self.at, self.mark = at, mark

    def __getitem__(self, index: Any) -> int:
        if index == self.at and not (self.mark and Path(self.mark).exists()):
            if self.mark:
                Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Failing(Numbers):
    def __getitem__(self, index: Any) -> int:
        if index == 4:
            raise KeyError("no such label")
        if index == 6:
            raise Local("cannot be sent", lambda: 0)
        return int(index)


class Local(ValueError):
    def __init__(self, text: str, attachment: Any) -> None:
        super().__init__(text, attachment)


class Pids(Numbers):
    def __getitem__(self, index: Any) -> Any:
        time.sleep(0.002)
        return index, os.getpid()


class Cached(Numbers):
    """Collates its batches once and gives the same memory again."""


class Collate:
    def __init__(self) -> None:
        self.cache: Any = None

    def __call__(self, samples: Any) -> Any:
        if self.cache is None:
            self.cache = calque.data.default_collate([np.ones(BIG, np.float32) for _ in samples])
        return self.cache


def plain(batch: Any) -> Any:
    return {name: value.tolist() if isinstance(value, calque.Tensor) else value for name, value in batch.items()}


def children() -> set[int]:
    return {int(p) for task in os.listdir("/proc/self/task") for p in Path(f"/proc/self/task/{task}/children").read_text().split()}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition: Any, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return bool(condition())


def epochs(workers: int, kind: str | None, **options: Any) -> list[Any]:
    calque.manual_seed(5)
    random.seed(1)
    np.random.seed(2)
    loader = DataLoader(Drawn(), 4, shuffle=True, num_workers=workers, multiprocessing_context=kind, **options)
    result = [[plain(batch) for batch in loader] for _ in range(2)]
    if kind != "thread":
        assert (random.random(), np.random.rand()) == (random.Random(1).random(), np.random.RandomState(2).rand())  # nobody drew from these
    return result


def test_batches_and_their_random_numbers_are_the_same_for_every_number_and_kind_of_workers() -> None:
    alone = epochs(0, None)
    assert alone[0] != alone[1] and [b["text"][0] for b in alone[0]] != [b["text"][0] for b in alone[1]]
    assert epochs(1, None) == alone
    assert epochs(3, "forkserver", prefetch_factor=3, persistent_workers=True) == alone
    assert epochs(2, "spawn", persistent_workers=True) == alone
    threads = epochs(2, "thread")
    for a, b in zip(sum(alone, []), sum(threads, [])):
        assert all(a[name] == b[name] for name in a if name not in ("python", "numpy"))  # two streams that threads share


def test_batches_lie_in_memory_that_is_used_again_when_nobody_holds_them() -> None:
    loader = DataLoader(Drawn(40), 2, num_workers=1, prefetch_factor=1)
    kept, places = [], set()
    for k, batch in enumerate(loader):
        places.add(batch["image"].data_ptr())
        batch["image"].mul_(2).sum().item()  # theirs to write
        if k % 5 == 0:
            kept.append((k, batch["image"]))
    assert len(places) <= 12  # 20 batches, of which 4 are held
    for k, image in kept:
        assert image[:, 7].tolist() == [4.0 * k, 4.0 * k + 2]


def test_memory_that_a_worker_still_holds_is_not_shared() -> None:
    batches = []
    for batch in DataLoader(Cached(6), 1, num_workers=1, collate_fn=Collate()):
        batch.mul_(3)
        batches.append(batch)
    assert all(batch.unique().tolist() == [3.0] for batch in batches)
    assert len({batch.data_ptr() for batch in batches}) == 6


def test_segments_without_processes(rng: np.random.Generator) -> None:
    """Random batches through both ends, with arrays that live for a while on either side."""
    worker, loader, held = Segments(), Mappings(), []  # type: ignore[var-annotated]
    for step in range(300):
        value = [worker.array(int(rng.integers(SMALLEST, 4 * SMALLEST))) for _ in range(rng.integers(0, 3))]
        for array in value:
            array[:] = step % 251
        value.append(np.full(int(rng.integers(0, 2 * SMALLEST)), step % 251, np.uint8))
        box = [value]
        del value
        message, handles = worker.pack(box)
        got = loader.unpack(message, [os.dup(h) for h in handles])
        worker.sent(message)
        held.append((step % 251, got))
        if rng.random() < 0.8:
            del held[int(rng.integers(len(held)))]
        worker.returned(loader.given_back())
        assert all((array == number).all() for number, arrays in held for array in arrays)
    assert len(worker.all) < 3 * len(held) + 40 and all(s.handle < 0 for s in worker.all.values())


def test_memory_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    worker, loader = Segments(), Mappings()
    message, handles = worker.pack([np.arange(BIG)])
    assert loader.unpack(message, [os.dup(h) for h in handles]).tolist() == list(range(BIG))


def test_exceptions_keep_their_class_and_the_traceback_of_the_worker() -> None:
    iterator = iter(DataLoader(Failing(8), 2, num_workers=2))
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(KeyError) as caught:
        next(iterator)
    assert caught.value.args == ("no such label",)
    text = "".join(traceback.format_exception(caught.value))
    assert "raised by Failing.__getitem__ for sample index 4 in worker" in text and 'raise KeyError("no such label")' in text
    with pytest.raises(Local, match="cannot be sent"):  # what cannot be pickled keeps its class and text
        next(iterator)
    assert list(iterator) == []


def test_a_killed_worker_costs_nothing(tmp_path: Path) -> None:
    """Row 43, and R11 in small: the epoch is complete and in order, and the warning says what has happened."""
    loader = DataLoader(Deadly(30, 11, str(tmp_path / "once")), 3, num_workers=2)
    start = time.monotonic()
    words = r"worker \d \(process \d+\) was killed by SIGKILL .* while it loaded the sample indices \[9, 10, 11\]; .*nothing is lost; .*free"
    with pytest.warns(UserWarning, match=words):
        assert [i for batch in loader for i in batch.tolist()] == list(range(30))
    assert time.monotonic() - start < 300


def test_a_sample_that_always_kills_is_given_up() -> None:
    iterator = iter(DataLoader(Deadly(8, 3), 2, num_workers=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert next(iterator).tolist() == [0, 1]
        with pytest.raises(WorkerError, match=r"killed by SIGKILL .* while it loaded the sample indices \[2, 3\], for the 3rd time; .*free"):
            next(iterator)
        assert [batch.tolist() for batch in iterator] == [[4, 5], [6, 7]]


def patiently(loader: DataLoader) -> Iterator[Any]:
    """A pass that asks again where a worker of a busy machine has not answered in time: it still has its batch."""
    iterator, late = iter(loader), 0
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except WorkerError as error:
            late += 1
            if "expected a batch within timeout" not in str(error) or late > 100:
                raise


def killed_at_random(rng: np.random.Generator, passes: int, stop: bool) -> None:
    """One to four workers; every third pass is taken up in the middle by another loader, with another number of workers."""

    def made() -> Any:
        workers = int(rng.integers(1, 5))
        return DataLoader(Pids(60), 2, shuffle=True, num_workers=workers, timeout=2.0 if stop else 0, generator=calque.Generator().manual_seed(3))

    loader = made()
    wanted = DataLoader(Numbers(60), 2, shuffle=True, generator=calque.Generator().manual_seed(3))
    for turn in range(passes):
        got, moment, leave = [], int(rng.integers(1, 25)), int(rng.integers(1, 29)) if turn % 3 == 2 else 30
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k, (indices, pids) in enumerate(patiently(loader)):
                got.append(indices.tolist())
                if k == moment and alive(int(pids[0])):
                    os.kill(int(pids[0]), signal.SIGSTOP if stop else signal.SIGKILL)
                if k == leave:
                    break
            if leave < 30:
                state, loader = loader.state_dict(), made()
                loader.load_state_dict(state)
                got += [indices.tolist() for indices, _ in patiently(loader)]
        assert got == [batch.tolist() for batch in wanted], (turn, moment, leave)


def test_workers_that_are_killed_or_stopped(rng: np.random.Generator) -> None:
    killed_at_random(rng, 2, False)
    killed_at_random(rng, 1, True)
    assert until(lambda: not [t for t in threading.enumerate() if t.name.startswith("calque-data-")])


@pytest.mark.slow
def test_r11_200_epochs_with_kills_and_100_with_stops(rng: np.random.Generator) -> None:
    before = children()
    killed_at_random(rng, 200, False)
    killed_at_random(rng, 100, True)
    assert len(children() - before) <= 1  # the process that forks workers


def test_streams_go_on_in_another_worker_and_another_process() -> None:
    def flat(batches: Any) -> list[Any]:
        return [(i, r) for indices, draws in batches for i, r in zip(indices.tolist(), draws.tolist())]

    def loader() -> Any:
        return DataLoader(Sharded(20), 3, num_workers=2, generator=calque.Generator().manual_seed(1))

    whole = flat(loader())
    assert sorted(i for i, _ in whole) == list(range(20))
    first = loader()
    iterator = iter(first)
    begun = flat([next(iterator) for _ in range(3)])
    second = loader()
    second.load_state_dict(first.state_dict())
    assert begun + flat(second) == whole
    iterator = iter(third := loader())
    begun = flat([next(iterator)])
    with pytest.warns(UserWarning, match="while it loaded its stream"):
        os.kill(iterator.pool.links[0].pid, signal.SIGKILL)
        assert begun + flat(iterator) == whole
    with pytest.raises(CheckpointError, match="expected num_workers=2 for the state of an IterableDataset"):
        DataLoader(Sharded(20), 3, num_workers=1).load_state_dict(third.state_dict() | first.state_dict())


def test_passes_are_taken_up_with_other_workers(rng: np.random.Generator) -> None:
    def loader(workers: int, **options: Any) -> Any:
        return DataLoader(Drawn(17), 3, shuffle=True, num_workers=workers, generator=calque.Generator().manual_seed(8), **options)

    plain_loader = loader(0)
    whole = [[plain(b) for b in plain_loader] for _ in range(2)]
    for taken, (before, after) in zip((0, 1, 4, 6), ((0, 2), (2, 0), (0, 0), (1, 1))):
        first = loader(before)
        iterator = iter(first)
        begun = [plain(next(iterator)) for _ in range(taken)]
        state = first.state_dict()
        second = loader(after)
        second.load_state_dict(state)
        assert second.state_dict() == state
        assert begun + [plain(b) for b in second] == whole[0]
        assert [plain(b) for b in second] == whole[1]  # and the pass behind it
    done = loader(0)
    list(done)
    second = loader(0)
    second.load_state_dict(done.state_dict())
    assert [plain(b) for b in second] == whole[1]  # the pass was over: the one behind it begins
    mixed = loader(2, in_order=False)
    iterator = iter(mixed)
    some = [next(iterator)["index"].tolist() for _ in range(3)]
    second = loader(0)
    second.load_state_dict(mixed.state_dict())
    assert sorted(sum(some, []) + sum((b["index"].tolist() for b in second), [])) == list(range(17))


def test_states_that_do_not_fit() -> None:
    loader = DataLoader(Numbers(9), 2)
    next(iter(loader))
    state = loader.state_dict()
    for wrong, words in (
        ({}, "expected what state_dict"), (None, "expected what state_dict"), (state | {"version": 2}, "version 2; it was saved by a newer"),
        (state | {"pass": {"seed": 1}}, "expected what state_dict"),
        (state | {"pass": state["pass"] | {"delivered": -1}}, "expected what state_dict"),
        (state | {"batches": 7}, "expected a state of a loader with 5 batches, got one with 7"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=words):
            loader.load_state_dict(wrong)  # type: ignore[arg-type]
    assert loader.state_dict() == state


def test_what_cannot_be_sent() -> None:
    """Row 44: the attribute is named; without a word about the kind of workers they are threads then, and a warning says why."""
    data = Numbers(4)
    data.transform = [len, {"key": lambda x: x}]  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"got function as dataset.transform\[1\]\['key'\] \(.*; define functions and classes at the top of a module"):
        iter(DataLoader(data, num_workers=1, multiprocessing_context="forkserver"))
    with pytest.warns(UserWarning, match=r"dataset.transform\[1\]\['key'\].* These workers are threads"):
        assert [b.item() for b in DataLoader(data, num_workers=1)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="got 'fork': a copy of a process that has threads"):
        DataLoader(data, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(ValueError, match="'thread' or None, got 'process'"):
        DataLoader(data, num_workers=1, multiprocessing_context="process")
    with pytest.raises(ValueError, match="expected num_workers as a number for an IterableDataset"):
        DataLoader(Sharded(3), num_workers="auto")


def test_a_tensor_dataset_is_loaded_by_threads() -> None:
    iterator = iter(DataLoader(TensorDataset(calque.arange(6)), 2, num_workers=2))
    assert iterator.threads and [b[0].tolist() for b in iterator] == [[0, 1], [2, 3], [4, 5]]


PROGRAM = """
    import os, sys, time
    from calque.data import DataLoader, Dataset

    class Data(Dataset):
        def __len__(self): return 400
        def __getitem__(self, k):
            time.sleep(0.01)
            return k, os.getpid()

    {guard}
        for k, (_, pids) in enumerate(DataLoader(Data(), 2, num_workers=2, multiprocessing_context={kind!r})):
            print(pids[0].item(), flush=True)
"""


def program(tmp_path: Path, guard: str, kind: str | None) -> "subprocess.Popen[str]":
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM.format(guard=guard, kind=kind)))
    environment = os.environ | {"PYTHONPATH": str(Path(calque.__file__).parents[1])}
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path: Path, number: int) -> None:
    before = set(os.listdir("/dev/shm"))
    running = program(tmp_path, 'if __name__ == "__main__":', None)
    assert running.stdout is not None and running.stderr is not None
    pids = {int(running.stdout.readline()) for _ in range(4)}
    family = pids | {int(p) for p in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()}
    running.send_signal(number)
    rest, words = running.communicate(timeout=300)
    pids |= {int(line) for line in rest.split()}
    assert running.pid not in pids and len(family) >= 2
    assert until(lambda: not any(alive(pid) for pid in family | pids), 5)
    assert set(os.listdir("/dev/shm")) <= before
    assert words.count("Traceback") == (number == signal.SIGINT), words  # the workers say nothing


def test_a_program_without_a_guard(tmp_path: Path) -> None:
    running = program(tmp_path, "if True:", "spawn")
    _, words = running.communicate(timeout=300)
    assert running.returncode == 1 and 'RuntimeError' in "".join(c.__name__ for c in WorkerError.__mro__)
    assert "expected a guard in" in words and 'if __name__ == "__main__":' in words and words.count("Traceback") == 1, words


def test_a_module_that_trains_when_it_is_imported(tmp_path: Path) -> None:
    """Row 44: its workers imported it and started workers, which imported it, without an end."""
    (tmp_path / "trains.py").write_text("""
from calque.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 3
    def __getitem__(self, k): return k
for batch in DataLoader(Data(), num_workers=1, multiprocessing_context="forkserver"):
    print(batch.item())
""")
    environment = os.environ | {"PYTHONPATH": f"{Path(calque.__file__).parents[1]}:{tmp_path}"}
    command = [sys.executable, "-c", "import trains"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 1 and not done.stdout and "WorkerError: [DataLoader] expected modules that do nothing but define" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr and "trains.py" in done.stderr


@pytest.mark.parametrize("line", ["import math", "from math import *"])
def test_a_class_behind_the_guard(tmp_path: Path, line: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"{line}\n" """
from calque.data import DataLoader, Dataset
if __name__ == "__main__":
    class Data(Dataset):
        def __len__(self): return 3
        def __getitem__(self, k): return k
    print([b.item() for b in DataLoader(Data(), num_workers=1)])
    DataLoader(Data(), num_workers=1, multiprocessing_context="forkserver").__iter__()
""")
    environment = os.environ | {"PYTHONPATH": str(Path(calque.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=environment, timeout=300, check=False)
    words = "expected Data at the top of .*program.py, got it inside of `if __name__ == ...`.*move it out"
    assert done.stdout == "[0, 1, 2]\n" and len(re.findall(words, done.stderr)) == 2 and "These workers are threads" in done.stderr, done.stderr


def test_workers_of_a_given_up_pass_end() -> None:
    iterator = iter(DataLoader(Pids(1000), 2, num_workers=2))
    pids = {int(next(iterator)[1][0]) for _ in range(4)}
    assert all(alive(pid) for pid in pids)
    del iterator
    assert until(lambda: not any(alive(pid) for pid in pids), 10)


class Slow(Numbers):
    def __getitem__(self, index: Any) -> int:
        time.sleep(0.004)
        return super().__getitem__(index)


def test_a_number_of_workers_is_chosen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Slow(40), 2, num_workers="auto")
    assert [i for batch in loader for i in batch.tolist()] == list(range(40))
    assert loader.num_workers >= 1
    words = capsys.readouterr().err
    assert words.count("\n") == 1 and "of the time is spent waiting" in words and f"(num_workers={loader.num_workers} was chosen)" in words
    assert [i for batch in loader for i in batch.tolist()] == list(range(40))
    assert "[DataLoader] data limits: " in loader.limits()
    now = [0.0]
    for module in (pace, passes):  # on a busy machine numbers may take longer than a sleep
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    loader = DataLoader(Numbers(40), 2, num_workers="auto")
    for _ in loader:
        now[0] += 0.02
    assert loader.num_workers == 0 and "compute limits" in capsys.readouterr().err and "compute limits" in loader.limits()


def test_shared_list() -> None:
    items = [1, "two", (3.0, b"4"), None, {"x": [5]}]
    shared = SharedList(items)
    assert list(shared) == items == shared and shared[-1] == {"x": [5]} and shared[1:3] == items[1:3] and len(SharedList([])) == 0
    for index in (5, -6):
        with pytest.raises(IndexError, match=r"expected an index in \[-5, 4\]"):
            shared[index]
    import copy
    import pickle

    assert pickle.loads(pickle.dumps(shared)) == copy.deepcopy(shared) == items
    data = DataLoader(Files(SharedList(f"file {k}" for k in range(10))), 5, num_workers=2)
    assert sum((batch for batch in data), []) == [f"file {k}" for k in range(10)]


class Files(Dataset[str]):
    def __init__(self, names: Any) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        return str(self.names[index])


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return 150

    def __getitem__(self, index: int) -> Any:
        return np.full((3, 60, 50 + index % 3), index, np.float32)


def as_they_are(samples: Any) -> Any:
    return samples


def test_a_batch_of_many_arrays() -> None:
    loader = DataLoader(Pictures(), 100, num_workers=1, collate_fn=as_they_are, multiprocessing_context="forkserver")
    for _ in range(2):
        batches = list(loader)
        assert [len(batch) for batch in batches] == [100, 50]
        for k, picture in enumerate(picture for batch in batches for picture in batch):
            assert picture.shape == (3, 60, 50 + k % 3) and (picture == k).all()


def test_a_pass_goes_on_with_the_generator_and_the_sampler_of_the_loader() -> None:
    """In another process both begin anew: what they had done must come with the state, also between two passes."""

    def made() -> Any:
        data = Numbers(12)
        shuffled = DataLoader(data, 2, shuffle=True, generator=calque.Generator().manual_seed(3))
        shared = DataLoader(data, 2, sampler=calque.distributed.DistributedSampler(data, 2, 1))
        return shuffled, shared

    def values(batches: Any) -> list[Any]:
        return [batch.tolist() for batch in batches]

    for which in range(2):
        loader = made()[which]
        first = values(loader)
        between = loader.state_dict()
        batches = iter(loader)
        second = [next(batches).tolist(), next(batches).tolist()]
        inside = loader.state_dict()
        second += values(batches)
        third = values(loader)
        assert first != second != third
        other = made()[which]
        other.load_state_dict(between)
        assert [values(other), values(other)] == [second, third]
        other = made()[which]
        other.load_state_dict(inside)
        assert [values(other), values(other)] == [second[2:], third]


def test_no_room_for_what_is_handed_over_is_said() -> None:
    """Where the address space ends, mapping memory of another process is an OSError of Python's."""
    program = """
import resource
from calque.data import transport
handle, used = transport.new_memory(1 << 26), int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used, -1))
try:
    transport.mapped(handle, 1 << 26)
except MemoryError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.startswith("[DataLoader] expected room for 67,108,864 bytes that processes hand over, got"), done.stdout
