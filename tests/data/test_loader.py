"""DataLoader: PyTorch's behaviour, exactness with workers, and errors that name sample, worker and argument."""

from __future__ import annotations

import contextlib
import gc
import inspect
import threading
import time
import traceback
import warnings
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import CollateError, DataError, WorkerError
from calque.data import (
    ChainDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    get_worker_info,
    random_split,
)
from calque.data import DataLoader as Loader
from tests.data.test_dataset import Numbers, Sized, Stream

WORKERS = [0, 1, 3]


def DataLoader(*arguments: Any, **options: Any) -> Any:
    """Most data sets here are local classes, which only threads can use; `test_processes.py` is about processes."""
    if options.get("num_workers"):
        options.setdefault("multiprocessing_context", "thread")
    return Loader(*arguments, **options)


def seeded(seed: int) -> calque.Generator:
    return calque.Generator().manual_seed(seed)


def lists(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


def message(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    yield
    deadline = time.monotonic() + 300
    while any(t.name.startswith("calque-data-") for t in threading.enumerate()) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert [t.name for t in threading.enumerate() if t.name.startswith("calque-data-")] == []


@pytest.mark.oracle
def test_the_signature_is_that_of_pytorch() -> None:
    from torch.utils.data import DataLoader as Theirs

    ours, theirs = (inspect.signature(cls.__init__).parameters for cls in (Loader, Theirs))
    assert list(ours) == list(theirs) and [p.kind for p in ours.values()] == [p.kind for p in theirs.values()]
    assert all(ours[n].default == theirs[n].default for n in ours)


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_in_order(workers: int) -> None:
    loader = DataLoader(Numbers(7), batch_size=3, num_workers=workers)
    assert lists(loader) == lists(loader) == [[0, 1, 2], [3, 4, 5], [6]] and len(loader) == 3
    loader = DataLoader(Numbers(7), batch_size=3, num_workers=workers, drop_last=True)
    assert lists(loader) == [[0, 1, 2], [3, 4, 5]] and len(loader) == 2
    assert next(iter(loader)).tolist() == [0, 1, 2]
    assert lists(DataLoader(Numbers(2), num_workers=workers)) == [[0], [1]]


@pytest.mark.parametrize("workers", WORKERS)
def test_two_passes_at_once(workers: int) -> None:
    loader = DataLoader(Numbers(4), num_workers=workers)
    pairs = [(a.item(), b.item()) for a, b in zip(loader, loader)]
    assert pairs == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_shuffles_depend_on_the_seed_alone() -> None:
    def epochs(workers: int, generator: Any, **options: Any) -> list[Any]:
        loader = DataLoader(Numbers(40), 7, shuffle=True, num_workers=workers, generator=generator, **options)
        return [lists(loader), lists(loader)]

    first = epochs(0, seeded(1))
    assert first[0] != first[1] and sorted(sum(first[0], [])) == list(range(40))
    assert first == epochs(3, seeded(1)) == epochs(2, seeded(1), prefetch_factor=7) != epochs(0, seeded(2))
    calque.manual_seed(9)
    drawn = epochs(0, None)
    calque.manual_seed(9)
    assert drawn == epochs(2, None, persistent_workers=True)


def test_samplers() -> None:
    assert lists(DataLoader(Numbers(9), 2, sampler=[4, 2, 0])) == [[4, 2], [0]]
    assert lists(DataLoader(Numbers(9), batch_sampler=[[1, 2, 3], [5]])) == [[1, 2, 3], [5]]
    assert isinstance(DataLoader(Numbers(9)).sampler, SequentialSampler)
    assert isinstance(DataLoader(Numbers(9), shuffle=True).sampler, RandomSampler)
    loader = DataLoader(Numbers(9), batch_sampler=[[1, 2, 3], [5]])
    assert loader.batch_size is None and len(loader) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_single_samples(workers: int) -> None:
    assert list(DataLoader(Numbers(3), batch_size=None, num_workers=workers)) == [0, 1, 2]
    got = list(DataLoader([np.zeros(2), "text"], batch_size=None, num_workers=workers))  # type: ignore[arg-type]
    assert got[0].tolist() == [0.0, 0.0] and got[1] == "text"
    assert list(DataLoader(Stream(3), batch_size=None, num_workers=min(workers, 1))) == [0, 1, 2]


def test_collate_fn() -> None:
    assert list(DataLoader(Numbers(3), 2, collate_fn=tuple)) == [(0, 1), (2,)]
    assert list(DataLoader(Numbers(2), None, collate_fn=lambda x: x * 10)) == [0, 10]


@pytest.mark.parametrize("workers", [0, 2])
def test_subclasses_hand_whole_lists_of_indices_on(workers: int) -> None:
    """As torchtuples' loader does, by the names that PyTorch's has."""
    asked = []

    class Whole(Loader[Any]):
        @property
        def _auto_collation(self) -> bool:
            return False

        @property
        def _index_sampler(self) -> Any:
            assert super()._index_sampler is self.batch_sampler and super()._auto_collation
            return self.batch_sampler

    class Rows(calque.data.Dataset[Any]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return calque.arange(5)[index] * 10

    loader = Whole(Rows(), 2, collate_fn=lambda batch: batch, num_workers=workers, multiprocessing_context="thread" if workers else None)
    found = [batch.tolist() for batch in loader]
    assert found == [[0, 10], [20, 30], [40]] and sorted(asked) == [[0, 1], [2, 3], [4]]


def test_the_batch_of_tensors_equals_the_stacked_samples() -> None:
    data = TensorDataset(calque.arange(20).reshape(10, 2), calque.rand(10))
    part = Subset(Subset(data, list(range(9, -1, -1))), [8, 1, 1, 4])
    quick = next(iter(DataLoader(part, 3)))
    slow = next(iter(DataLoader(part, 3, collate_fn=lambda samples: calque.data.default_collate(samples))))
    assert type(quick) is type(slow) is list and all(calque.equal(a, b) for a, b in zip(quick, slow))
    assert quick[0].tolist() == [[2, 3], [16, 17], [16, 17]]
    grads = TensorDataset(calque.ones(3, requires_grad=True))
    assert next(iter(DataLoader(grads, 2)))[0].requires_grad


def test_a_subclass_of_tensor_dataset_keeps_its_own_getitem() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return (super().__getitem__(index)[0] * 2,)

    assert next(iter(DataLoader(Doubled(calque.ones(2)), 2)))[0].tolist() == [2.0, 2.0]


def test_getitems_loads_a_batch_at_once() -> None:
    class Batched(Numbers):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [100 + i for i in indices]

    class Short(Batched):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [0]

    assert lists(DataLoader(Batched(3), 2)) == [[100, 101], [102]]
    with pytest.raises(DataError, match=r"expected 2 samples from Short.__getitems__, got 1 for the sample indices \[0, 1\]"):
        next(iter(DataLoader(Short(3), 2)))
    # Parts and stacks of such datasets load at once as well, as PyTorch's do.
    assert lists(DataLoader(Subset(Batched(3), [2, 0]), 2)) == [[102, 100]]
    assert lists(DataLoader(Subset(Subset(Batched(3), [2, 0, 1]), [1, 2]), 2)) == [[100, 101]]
    assert Subset(Numbers(3), [2, 0]).__getitems__([0, 1]) == [2, 0]
    stack = StackDataset(Batched(3), Numbers(3))
    assert stack.__getitems__([1, 2]) == [(101, 1), (102, 2)]
    assert StackDataset(a=Batched(3)).__getitems__([1]) == [{"a": 101}]
    assert [[column.tolist() for column in batch] for batch in DataLoader(stack, 2)] == [[[100, 101], [0, 1]], [[102], [2]]]
    with pytest.raises(ValueError, match="expected 2 samples from __getitems__, got 1"):
        StackDataset(Short(3), Numbers(3)).__getitems__([0, 1])

    class Doubled(Subset[Any]):
        def __getitem__(self, index: Any) -> Any:
            return 2 * super().__getitem__(index)

    assert lists(DataLoader(Doubled(Numbers(3), [2, 1]), 2)) == [[4, 2]]


@pytest.mark.parametrize("workers", WORKERS)
def test_streams(workers: int) -> None:
    class Sharded(Stream):
        def __iter__(self) -> Any:
            info = get_worker_info()
            return iter(range(self.count)[info.id :: info.num_workers] if info else range(self.count))

    got = lists(DataLoader(Sharded(10), 3, num_workers=workers))
    assert sorted(sum(got, [])) == list(range(10))
    if workers == 3:  # PyTorch's order: round the workers, the exhausted ones left out
        assert got == [[0, 3, 6], [1, 4, 7], [2, 5, 8], [9]]
    loader = DataLoader(Sharded(10), 3, num_workers=workers, drop_last=True)
    assert lists(loader) == lists(loader) == got[:3]


@pytest.mark.oracle
def test_streams_come_in_the_order_of_pytorch() -> None:
    from torch.utils.data import DataLoader as Theirs
    from torch.utils.data import IterableDataset as TheirStream
    from torch.utils.data import get_worker_info as their_info

    lengths = [1, 7, 4]

    class A(TheirStream):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            worker = their_info().id
            return iter([worker * 100 + i for i in range(lengths[worker])])

    class B(IterableDataset[int]):
        def __iter__(self) -> Any:
            worker = get_worker_info().id  # type: ignore[union-attr]
            return iter([worker * 100 + i for i in range(lengths[worker])])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores; fork with threads
        theirs = [b.tolist() for b in Theirs(A(), 2, num_workers=3, multiprocessing_context="fork")]
    assert lists(DataLoader(B(), 2, num_workers=3)) == theirs


def test_length_of_a_stream() -> None:
    assert len(DataLoader(Sized(7), 2)) == 4 and len(DataLoader(Sized(7), 2, drop_last=True)) == 3
    assert len(DataLoader(Sized(7), None)) == 7 and len(iter(DataLoader(Sized(7), 2))) == 4  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a dataset with __len__, got Stream without"):
        len(DataLoader(Stream(7), 2))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("actual", [5, 9])
def test_a_stream_that_lies_about_its_length(workers: int, actual: int) -> None:
    class Liar(Stream):
        def __len__(self) -> int:
            return 7

    count = "got 5" if actual == 5 else "got at least [89]" if workers else "got at least 8"  # a worker runs ahead of who counts
    with pytest.warns(UserWarning, match=rf"expected 7 samples from Liar, as its __len__ says, {count}; correct __len__") as caught:
        assert lists(DataLoader(Liar(actual), 1, num_workers=workers)) == [[i] for i in range(actual)], "a length may be a guess"
    assert len(caught) == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_streams_that_do_not_know_their_length(workers: int, error: type[Exception]) -> None:
    class Unsure(Stream):
        def __len__(self) -> int:
            raise error("nobody knows")

    once = [[0, 1], [2]]
    for data, batches in ((Unsure(3), once), (ChainDataset([Stream(3), Stream(0)]), once), (ChainDataset([Unsure(1), Unsure(2)]), [[0, 0], [1]])):
        loader = DataLoader(data, 2, num_workers=workers, multiprocessing_context="thread" if workers else None)
        assert sorted(lists(loader)) == sorted(batches * max(workers, 1))
        assert loader.state_dict()["batches"] is None
        with pytest.raises(TypeError):
            len(loader)


def test_a_stream_that_every_worker_repeats() -> None:
    with pytest.warns(UserWarning, match="each worker iterates over all of it unless __iter__ uses get_worker_info"):
        lists(DataLoader(Sized(8), 2, num_workers=2))


# Workers


def test_worker_info_and_init_fn() -> None:
    started: list[int] = []

    class Info(Numbers):
        def __getitem__(self, index: Any) -> Any:
            info = get_worker_info()
            assert info is not None and info.dataset is self and info.num_workers == 2
            return info.id, info.seed

    loader = DataLoader(Info(8), 1, num_workers=2, worker_init_fn=started.append, generator=seeded(3))
    batches = list(loader)
    assert [b[0].item() for b in batches] == [0, 1] * 4 and sorted(started) == [0, 1]
    seeds = {b[0].item(): b[1].item() for b in batches}
    assert seeds[1] == seeds[0] + 1 and get_worker_info() is None
    again = next(iter(DataLoader(Info(8), 1, num_workers=2, generator=seeded(3))))
    assert again[1].item() == seeds[0]


def test_persistent_workers_stay() -> None:
    started: list[int] = []
    loader = DataLoader(Numbers(4), num_workers=2, persistent_workers=True, worker_init_fn=started.append)
    for _ in range(3):
        assert lists(loader) == [[0], [1], [2], [3]]
    assert sorted(started) == [0, 1]
    loader = DataLoader(Numbers(4), num_workers=2, worker_init_fn=started.append)
    lists(loader), lists(loader)
    assert len(started) == 6
    streamed = DataLoader(Stream(4), num_workers=1, persistent_workers=True)
    assert [lists(streamed), lists(streamed)] == [[[0], [1], [2], [3]]] * 2


def test_workers_load_ahead_but_not_too_far() -> None:
    class Counting(Numbers):
        loaded = 0

        def __getitem__(self, index: Any) -> int:
            self.loaded += 1
            return int(index)

    data = Counting(100)
    iterator = iter(DataLoader(data, 1, num_workers=2, prefetch_factor=3))
    next(iterator)
    deadline = time.monotonic() + 300
    while data.loaded < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert data.loaded == 7  # 2 workers x 3 ahead, and the one taken


def test_workers_load_at_the_same_time() -> None:
    together = threading.Barrier(4, timeout=300)

    class Meeting(Numbers):
        def __getitem__(self, index: Any) -> int:
            if index % 2 == 0:  # the first of every batch of two ends when four workers are at one
                together.wait()
            return int(index)

    assert sum(lists(DataLoader(Meeting(24), 2, num_workers=4)), []) == list(range(24))


def test_random_delays_never_change_the_order(rng: np.random.Generator) -> None:
    delays = rng.uniform(0, 0.003, 200)

    class Jumpy(Numbers):
        def __getitem__(self, index: Any) -> int:
            time.sleep(delays[index])
            return int(index)

    for workers in (1, 2, 5):
        assert sum(lists(DataLoader(Jumpy(200), 3, num_workers=workers, prefetch_factor=4)), []) == list(range(200))


def test_a_pass_that_is_given_up_stops_its_workers() -> None:
    class Counting(Numbers):
        loaded = 0

        def __getitem__(self, index: Any) -> int:
            self.loaded += 1
            time.sleep(0.005)
            return int(index)

    data = Counting(10_000)
    for keep in (False, True):
        data.loaded = 0
        loader = DataLoader(data, 1, num_workers=2, persistent_workers=keep, prefetch_factor=400)
        iterator = iter(loader)
        next(iterator)
        del iterator
        gc.collect()
        seen, deadline = -1, time.monotonic() + 300
        while data.loaded > seen and time.monotonic() < deadline:
            seen = data.loaded
            time.sleep(0.1)
        assert seen == data.loaded < 800  # two seconds of work were asked for ahead
        del loader


def test_timeout() -> None:
    release = threading.Event()

    class Stuck(Numbers):
        def __getitem__(self, index: Any) -> int:
            if index == 2:
                release.wait(300)
            return int(index)

    def patient() -> int:
        while True:  # on a busy machine everything may take too long
            with contextlib.suppress(WorkerError):
                return int(next(iterator))

    iterator = iter(DataLoader(Stuck(4), 1, num_workers=2, timeout=0.1))
    assert [patient(), patient()] == [0, 1]
    words = r"within timeout=0.1 seconds, got none from worker 0, which loads the sample indices \[2\]; raise timeout="
    with pytest.raises(WorkerError, match=words) as caught:
        next(iterator)
    assert isinstance(caught.value, RuntimeError)
    release.set()
    assert [patient(), patient()] == [2, 3]  # nothing is lost
    assert list(iterator) == []


# Errors of the user's code


class Broken(Numbers):
    def __getitem__(self, index: Any) -> int:
        if index == 4:
            raise KeyError("no such label")
        return int(index)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_exception_keeps_its_class_and_names_the_sample(workers: int) -> None:
    iterator = iter(DataLoader(Broken(8), 2, num_workers=workers))
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(KeyError) as caught:
        next(iterator)
    assert caught.value.args == ("no such label",)
    assert "raised by Broken.__getitem__ for sample index 4" in message(caught.value)
    assert ("in worker 2" in message(caught.value)) == (workers == 3)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.name == "__getitem__" and frame.line == 'raise KeyError("no such label")' for frame in frames)
    assert next(iterator).tolist() == [6, 7]  # the pass goes on


@pytest.mark.parametrize("workers", [0, 2])
def test_exceptions_elsewhere(workers: int) -> None:
    def bad_collate(samples: Any) -> Any:
        raise ArithmeticError("collate")

    class BadStream(Stream):
        def __iter__(self) -> Any:
            yield 1
            raise OSError("stream")

    class BadSampler(SequentialSampler):
        def __iter__(self) -> Any:
            yield 0
            raise LookupError("sampler")

    with pytest.raises(ArithmeticError) as caught:
        lists(DataLoader(Numbers(20), 9, collate_fn=bad_collate, num_workers=workers))
    assert "raised by collate_fn for the sample indices [0, 1, 2, 3, 4, 5, 6, 7] and 1 more" in message(caught.value)
    with pytest.raises(OSError) as oserror:
        lists(DataLoader(BadStream(3), 1, num_workers=min(workers, 1)))
    assert "raised by BadStream.__iter__ at sample index 1" in message(oserror.value)
    iterator = iter(DataLoader(Numbers(3), 1, sampler=BadSampler(range(3)), num_workers=workers))
    assert next(iterator).item() == 0
    with pytest.raises(LookupError, match="sampler"):
        next(iterator)


def test_a_failing_init_fn() -> None:
    def init(worker: int) -> None:
        raise MemoryError("init")

    with pytest.raises(MemoryError) as caught:
        lists(DataLoader(Numbers(3), num_workers=2, worker_init_fn=init))
    assert "raised by worker_init_fn in worker 0" in message(caught.value)
    iterator = iter(DataLoader(Numbers(5), num_workers=1, worker_init_fn=init))
    with pytest.raises(MemoryError):
        next(iterator)
    with pytest.raises(WorkerError, match=r"worker 0 to start, but its worker_init_fn failed: MemoryError\('init'\)"):
        next(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_stop_iteration_does_not_end_the_loop_silently(workers: int) -> None:
    class Stops(Numbers):
        def __getitem__(self, index: Any) -> int:
            raise StopIteration

    def stops(samples: Any) -> Any:
        raise StopIteration

    with pytest.raises(DataError, match=r"Stops.__getitem__, got StopIteration for sample index 0"):
        lists(DataLoader(Stops(3), num_workers=workers))
    with pytest.raises(DataError, match="from collate_fn, got StopIteration"):
        lists(DataLoader(Numbers(3), collate_fn=stops, num_workers=workers))


def test_a_dataset_that_lies_about_its_length() -> None:
    class Liar(Numbers):
        def __len__(self) -> int:
            return 9

    with pytest.raises(IndexError) as caught:
        lists(DataLoader(Liar(5), 4))
    assert "raised by Liar.__getitem__ for sample index 5; len(Liar) says 9" in message(caught.value)


def test_samples_that_do_not_fit_are_named_by_index() -> None:
    class Ragged(Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: Any) -> Any:
            return np.zeros(3 if index != 6 else 5)

    with pytest.raises(CollateError, match=r"got \(3,\) for sample 5 and \(5,\) for sample 6; resize .*pass collate_fn="):
        lists(DataLoader(Ragged(), 4, sampler=[0, 1, 2, 3, 5, 6, 7]))


# Wrong arguments


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size to be an integer >= 1, got batch_size=0"),
        ({"batch_size": -2}, "batch_size=-2"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"batch_size": "4"}, "batch_size='4'"),
        ({"num_workers": -1}, "num_workers to be an integer >= 0, or 'auto', got num_workers=-1"),
        ({"num_workers": 1.0}, "num_workers=1.0"),
        ({"timeout": -1}, "timeout to be a number of seconds >= 0, got timeout=-1"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"timeout": 5}, "timeout=0 without workers, got timeout=5; set num_workers >= 1"),
        ({"multiprocessing_context": "spawn"}, "num_workers >= 1 with multiprocessing_context='spawn', got num_workers=0"),
        ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor to be an integer >= 1, got prefetch_factor=0"),
        ({"persistent_workers": True}, "num_workers >= 1 for persistent_workers=True, got num_workers=0"),
        ({"sampler": [0], "shuffle": True}, "either sampler= or shuffle=True, got both: a sampler already decides the order"),
        ({"shuffle": "yes"}, "shuffle to be True, False or None, got 'yes'"),
        ({"batch_sampler": [[0]], "batch_size": 4}, "batch_sampler= alone, got also batch_size"),
        ({"batch_sampler": [[0]], "shuffle": True, "drop_last": True}, "got also shuffle, drop_last"),
        ({"batch_sampler": [[0]], "sampler": [0]}, "got also sampler"),
        ({"batch_size": None, "drop_last": True}, "drop_last=False with batch_size=None"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"\[(DataLoader|BatchSampler)\] expected .*") as caught:
        DataLoader(Numbers(3), **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("option", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_streams_decide_their_own_order(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"expected no {next(iter(option))}= for an IterableDataset"):
        DataLoader(Stream(3), **option)
    DataLoader(Stream(3), shuffle=False)


def test_wrong_datasets() -> None:
    class NoLength(Dataset[int]):
        def __getitem__(self, index: Any) -> int:
            return 0

    with pytest.raises(TypeError, match="expected a dataset with __len__, got NoLength without; define it, or pass sampler="):
        DataLoader(NoLength())
    assert lists(DataLoader(NoLength(), sampler=[1, 2])) == [[0], [0]]
    with pytest.raises(ValueError, match=r"at least one sample, got Numbers with len 0"):
        DataLoader(Numbers(0))
    with pytest.raises(ValueError, match="len 0|num_samples=0"):
        DataLoader(Numbers(0), shuffle=True)
    with pytest.raises(TypeError, match=r"__getitem__ and __len__ or an IterableDataset, got generator; wrap a generator"):
        DataLoader(x for x in range(3))  # type: ignore[arg-type]


def test_a_generator_of_another_library() -> None:
    for make in (
        lambda g: DataLoader(Numbers(3), generator=g),
        lambda g: RandomSampler(Numbers(3), generator=g),
        lambda g: random_split(Numbers(3), [3], generator=g),
    ):
        with pytest.raises(TypeError, match=r"expected generator to be a calque.Generator or None, got (int|Generator)"):
            make(42)


def test_arguments_that_are_accepted() -> None:
    for options in (
        {"prefetch_factor": 2},
        {"pin_memory": True, "pin_memory_device": "cuda"},
        {"in_order": False, "num_workers": 2},
        {"timeout": 2.5, "num_workers": 1},
    ):
        found = lists(DataLoader(Numbers(3), 2, **options))
        assert (found if options.get("in_order", True) else sorted(found)) == [[0, 1], [2]]


@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"])
def test_what_cannot_be_changed_afterwards(name: str) -> None:
    loader = DataLoader(Numbers(3))
    with pytest.raises(ValueError, match=f"expected {name} to be given to the constructor"):
        setattr(loader, name, None)
