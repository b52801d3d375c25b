"""Shared options of the test suite: slow tests, the seed, the Hypothesis profile."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

# print_blob: a failing example prints the line that reproduces it. No deadline: the first call of a kernel compiles it.
hypothesis.settings.register_profile("fast", max_examples=30, deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("slow", max_examples=1000, deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--update-golden", action="store_true", help="rewrite the texts that golden tests compare with")
    parser.addoption("--seed", default="0", help="seed of the random tests: a number, or 'random'")
    parser.addoption("--shuffle", default=None, metavar="SEED", help="files, and the tests in each, in an order drawn from SEED or 'random'")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until the tests are collected: nothing of it is garbage, and looking for some took half of the time
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # over a hundred tests start Python: 0.6 s each if it has to compile Calque again
    text = config.getoption("--seed")
    config.calque_seed = random.SystemRandom().randrange(2**32) if text == "random" else int(text)  # type: ignore[attr-defined]
    config.option.seed = str(config.calque_seed)  # what the processes of pytest-xdist are started with
    if config.getoption("--shuffle") == "random":
        config.option.shuffle = str(random.SystemRandom().randrange(2**32))
    if config.getoption("hypothesis_profile", None) is None:
        hypothesis.settings.load_profile("slow" if config.getoption("--slow") else "fast")


def pytest_report_header(config: pytest.Config) -> str:
    order = config.getoption("--shuffle")
    again = f"calque: repeat the random tests with --seed {config.calque_seed}"  # type: ignore[attr-defined]
    return again if order is None else f"{again} and the order with --shuffle {order}"


def _freeze() -> None:
    """What is alive now stays to the end, and no collection looks through it again: over the 1.4 million objects of collected tests and imported
    modules every `gc.collect()` took 0.7 s, with what hundreds of files leave in caches more than 2 s."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    _freeze()
    gc.enable()
    torch = sys.modules.get("torch")
    if torch is not None and Path(str(torch.__file__)).parts[-3] != "compat":  # not ours
        torch.set_num_threads(1)  # its threads spin while they wait: beside another process of the suite most of the time went there


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        _freeze()


def _shuffle(items: list[pytest.Item], seed: str) -> None:
    """Files in another order and the tests of each in another order: none may need what another left, or fail of it. A file stays together, as
    what its tests share would be made again and again."""
    draw, files = random.Random(seed), dict[Path, list[pytest.Item]]()
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = list(files.values())
    draw.shuffle(order)
    for tests in order:
        draw.shuffle(tests)
    items[:] = [item for tests in order for item in tests]


def _has_cuda() -> bool:
    return importlib.util.find_spec("cuda") is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skips = {}
    if not config.getoption("--slow"):
        skips["slow"] = pytest.mark.skip(reason="slow: run with --slow")
    if importlib.util.find_spec("torch") is None:
        skips["oracle"] = pytest.mark.skip(reason="oracle: PyTorch is not installed")
    if importlib.util.find_spec("mpi4py") is None:
        skips["mpi"] = pytest.mark.skip(reason="mpi: mpi4py is not installed")
    if not _has_cuda():
        skips["gpu"] = pytest.mark.skip(reason="gpu: no CUDA device")
    for item in items:
        for name, skip in skips.items():
            if item.get_closest_marker(name) is not None:  # keywords also hold the names of folders
                item.add_marker(skip)
    if config.getoption("--shuffle") is not None:
        _shuffle(items, config.getoption("--shuffle"))


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_arrives() -> None:
    """A shell that starts the suite in the background has it ignore Ctrl-C, and Python then has no handler for it: tests that interrupt would find
    nothing interrupted."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Folders whose tests ask what values are: there small operations are computed where they are written, as for users (`calque/record/at_once.py`). All
# others ask what is recorded, planned and compiled, with tensors of a few numbers.
AS_USERS = {"oracle", "functional", "nn", "optim", "conformance", "distributions", "vision", "text", "audio", "native"}
# Files there that ask the same.
RECORDED = {"test_replay.py", "test_arithmetic.py", "test_bad_numbers.py", "test_parametrize.py", "test_every_device.py"}


def _compute_small_operations(eager: int, monkeypatch: pytest.MonkeyPatch, elsewhere: bool = False) -> None:
    """Whether small operations are computed where they are written, here and in processes that a test starts. `elsewhere`: the test uses devices that
    earlier ones have used too."""
    from calque.base.config import settings
    from calque.base.device import InUse
    from calque.record.path import ALWAYS
    from calque.record.recorder import flush, local, record_from_here

    if settings.logical_devices == 1 and not elsewhere:
        InUse.several = InUse.elsewhere = False  # an earlier test has used other devices, which ends that small operations are computed
    if eager != settings.eager:
        flush("test")
        settings.eager = eager
        record_from_here(local.state, "test")
        local.state.trace.recorded = 0 if eager else ALWAYS
    monkeypatch.setenv("CALQUE_EAGER", str(eager))


@pytest.fixture(autouse=True)
def _small_operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small operations are computed or recorded, as the folder of the test asks."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    _compute_small_operations(int(folder in AS_USERS and request.path.name not in RECORDED), monkeypatch, folder == "device")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of what is found when a value is wanted, in a folder whose tests ask what values are."""
    _compute_small_operations(0, monkeypatch)


@pytest.fixture
def as_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of what values are, in a folder whose tests ask what is recorded."""
    _compute_small_operations(1, monkeypatch)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """For a test that computes the same in both ways: which one it is from now on."""
    return lambda on: _compute_small_operations(int(on), monkeypatch)


@pytest.fixture(params=[0, 1], ids=["recorded", "at_once"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of what values are, in a folder whose tests ask what is recorded."""
    _compute_small_operations(request.param, monkeypatch)


@pytest.fixture(autouse=True)
def _no_lock_is_kept() -> Iterator[None]:
    """A test that leaves the lock of flushes behind would let the next one with threads wait for ever; if it leaves signals held off, no handler is
    ever called again."""
    yield
    recorder, interrupt = (sys.modules.get(f"calque.{name}") for name in ("record.recorder", "run.interrupt"))
    assert recorder is None or not recorder.LOCK._is_owned()
    assert interrupt is None or not interrupt.SHIELD._held


@pytest.fixture(autouse=True)
def _nothing_was_recorded_before() -> None:
    """What was recorded knows the lines, the compiled programs and the habits of the tests before: none of it may decide how a test ends."""
    recorder, dispatch, trie = (sys.modules.get(f"calque.{name}") for name in ("record.recorder", "run.dispatch", "record.trie"))
    if recorder is not None and dispatch is not None and trie is not None:
        recorder.flush("test")
        dispatch.wait_for_queues()
        trie.forget()
    names = ("kernel.sizes", "backend.cpu.program.sized", "autograd.template")
    sizes, sized, template = (sys.modules.get(f"calque.{name}") for name in names)
    known = [*([sizes.FAMILIES] if sizes else ()), *([sized.SIZED_PROGRAMS] if sized else ())]
    for cache in (*(cache for one in known for cache in (one.known, one.variants)), *((template._variants, template._views) if template else ())):
        cache.clear()


@pytest.fixture(autouse=True, scope="session")
def _every_program_is_planned_here() -> Iterator[None]:
    """Plans that an earlier process left on the disk have no steps to look at: which tests see them would depend on who ran before."""
    from calque.run import backends, fingerprint

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "EARLY", 0)
        patch.setattr(fingerprint, "LONG", sys.maxsize)
        patch.setattr(fingerprint, "SIZED", sys.maxsize)
        yield


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """What a test draws without a seed depends on its name and `--seed`, not on which tests have drawn before it."""
    number = zlib.crc32(request.node.nodeid.encode()) ^ request.config.calque_seed  # type: ignore[attr-defined]
    random.seed(number)
    np.random.seed(number)
    if (calque := sys.modules.get("calque")) is not None:
        calque.manual_seed(number)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run (`--seed`); it is also in the header of the report."""
    return request.config.calque_seed  # type: ignore[attr-defined]


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A NumPy generator that depends on `--seed` alone."""
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def nothing_forgotten() -> None:
    """What earlier files left is gone: what was alive when they ended (see `_freeze`) may have become garbage since, with memory that counts."""
    gc.unfreeze()
    _freeze()


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Eight GiB more than the process has, so that a call which asks for what the machine has gets an error instead of having it killed."""
    resource = pytest.importorskip("resource")
    before, pages = resource.getrlimit(resource.RLIMIT_AS), Path("/proc/self/statm")
    if pages.exists():
        now = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (8 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def two_devices() -> Iterator[None]:
    """Two logical devices during a test, or all tests of a file by `pytest.mark.usefixtures`."""
    import calque
    from calque.base.config import settings

    before = settings.logical_devices
    calque.set_logical_devices(2)
    yield
    calque.synchronize()
    settings.logical_devices = before


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executables keep no memory for their next run, so that all bytes that are counted belong to what runs now."""
    from calque.backend.cpu.program import executable

    gc.collect()  # what earlier tests left behind must not be freed while bytes are counted
    executable.KeptMemory.empty()
    monkeypatch.setattr(executable, "KEPT_TOTAL", 0)
