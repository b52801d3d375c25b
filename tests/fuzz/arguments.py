"""Public functions, methods, layers, optimizers and loaders with random arguments: every answer is a value, or an error in our words.

    python -m tests.fuzz.arguments --count 20000 [--seed 0] [--only view]

One call is one seed. A process of its own makes the calls, so that one that ends the process, never ends, or fills the memory is named, too.
"""

from __future__ import annotations

import argparse
import enum
import faulthandler
import functools
import inspect
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import calque
from calque import audio, exported, hub, jit, nn, train, vision
from calque import signal as signals
from calque.base.errors import CalqueError
from calque.distributions import constraint_registry, constraints, kl
from calque.nn import attention
from calque.nn.utils import rnn
from calque.utils import checkpoint
from calque.vision.transforms import v2
from tests.bad_input.calls import Sample
from tests.bad_input.test_spoilt_arguments import spoilings
from tests.bad_input.test_wrong_arguments import SAMPLES
from tests.fuzz.values import Values

ROOT = str(Path(__file__).resolve().parents[2])
SECONDS, GROWTH = 60, 1 << 20  # of the processor that a call may take; KiB by which it may raise the peak of the process
PLACES: dict[str, Any] = {
    "calque": calque,
    "nn.functional": nn.functional,
    "linalg": calque.linalg,
    "nn.init": nn.init,
    "nn.utils": nn.utils,
    "nn.utils.rnn": rnn,
    "autograd": calque.autograd,
    "amp": calque.amp,
    "random": calque.random,
    "utils.data": calque.utils.data,
    "parallel": calque.parallel,
    "nn.utils.parametrize": nn.utils.parametrize,
    "nn.utils.parametrizations": nn.utils.parametrizations,
    "profiler": calque.profiler,
    "func": calque.func,
    "nn.parallel": nn.parallel,
    "autograd.functional": calque.autograd.functional,
    "kvstore": calque.kvstore,
    "fft": calque.fft,
    "special": calque.special,
    "masked": calque.masked,
    "sparse": calque.sparse,
    "distributed": calque.distributed,
    "exported": exported,
    "train": train,
    "data": calque.data,
    "signal.windows": signals.windows,
    "jit": jit,
    "nn.attention": attention,
    "swa_utils": calque.optim.swa_utils,
    "distributions": calque.distributions,
    "distributions.kl": kl,
    "distributions.constraints": constraints,
    "constraint_registry": constraint_registry,
    "vision.transforms.functional": vision.transforms.functional,
    "vision.ops": vision.ops,
    "vision.io": vision.io,
    "vision.utils": vision.utils,
    "vision.models": vision.models,
    "audio.functional": audio.functional,
    "fx": calque.fx,
    "hub": hub,
    "monitor": calque.monitor,
    "testing": calque.testing,
    "memory": calque.memory,
    "utils.checkpoint": checkpoint,
    "backends": calque.backends,
}
CLASSES: dict[str, Any] = {
    "nn": nn,
    "optim": calque.optim,
    "lr_scheduler": calque.optim.lr_scheduler,
    "swa_utils": calque.optim.swa_utils,
    "utils.data": calque.utils.data,
    "data": calque.data,
    "parallel": calque.parallel,
    "train": train,
    "distributed": calque.distributed,
    "exported": exported,
    "distributions": calque.distributions,
    "distributions.constraints": constraints,
    "vision.transforms": vision.transforms,
    "vision.transforms.v2": v2,
    "vision.ops": vision.ops,
    "vision.datasets": vision.datasets,
    "audio.transforms": audio.transforms,
    "fx": calque.fx,
    "monitor": calque.monitor,
    "memory": calque.memory,
}
# They change what the calls after them would find.
INNER = frozenset(  # of use to subclasses alone
    """forward transform make_params hybridizer changing check_group step_numbers update_group iter create_arg create_args_for_root create_node
    create_proxy""".split()  # noqa: SIM905
)
LEFT_OUT = frozenset(
    """set_num_threads set_logical_devices set_default_dtype set_default_device set_default_validate_args set_dir default_generator explain spawn
    register_kl wrap has_side_effect download_url_to_file load_state_dict_from_url
    resnet50 resnet101 resnet152 vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn""".split()  # noqa: SIM905 - the last: 0.5 GB each
)
RESULTS = frozenset(  # classes of what functions give: nobody makes one
    """Backend Exported Fitted Layer Leak LoadReport Match MemoryPlan Node ProcessGroup Proxy Attribute PythonCode Rates Summary TensorHeld
    Work""".split()  # noqa: SIM905
)
REFUSED_BY_PYTHON = re.compile(r"\(\) (missing|takes|got (an unexpected|multiple|some positional))|takes no (keyword )?arguments")


@dataclass(frozen=True, slots=True)
class Target:
    """Something public that can be called: a function, a method of a tensor, or a class whose object is then used."""

    place: str
    name: str
    function: Callable[..., Any]
    kind: str  # function, method, class

    def __str__(self) -> str:
        return f"{self.place}.{self.name}"


def is_ours(value: Any) -> bool:
    """Whether it is a public function or class of the library: nothing that a module imports for itself, nor an interface, of which Python makes
    no object whatever the arguments are."""
    return (
        callable(value)
        and not inspect.isabstract(value)
        and str(getattr(value, "__module__", "")).startswith("calque")
        and not (isinstance(value, type) and issubclass(value, (BaseException, CalqueError)))
    )


def all_targets() -> list[Target]:
    """Everything to call."""
    found = []
    for place, owner in PLACES.items():
        names = getattr(owner, "__all__", None) or [name for name in vars(owner) if not name.startswith("_")]
        for name in sorted(set(names) - LEFT_OUT):
            value = getattr(owner, name)
            if is_ours(value) and not isinstance(value, type):
                found.append(Target(place, name, value, "function"))
    for place, owner in CLASSES.items():
        listed, package = getattr(owner, "__all__", ()), owner.__name__.split(".")[:2]
        for name in sorted(vars(owner)):
            value = getattr(owner, name)
            if name not in listed and str(getattr(value, "__module__", "")).split(".")[:2] != package:
                continue
            if not isinstance(value, type) or issubclass(value, (list, dict, enum.Enum)):
                continue
            if is_ours(value) and not name.startswith("_") and name not in RESULTS:
                found.append(Target(place, name, value, "class"))
    for name in sorted(dir(calque.Tensor)):
        if not name.startswith("_") and callable(getattr(calque.Tensor, name)):
            found.append(Target("Tensor", name, getattr(calque.Tensor, name), "method"))
    return found


TARGETS = all_targets()
BY_NAME: dict[str, list[Sample]] = {}
for sample in SAMPLES:
    BY_NAME.setdefault(sample.name, []).append(sample)


def signature_of(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


class Call:
    """One random call, which can be made and shown."""

    def __init__(self, seed: int, only: str = "") -> None:
        self.draw = random.Random(seed)
        self.values = Values(self.draw)
        self.target = self.draw.choice([t for t in TARGETS if only in str(t)])
        self.args: list[Any] = []
        self.keywords: dict[str, Any] = {}
        self.made: list[str] = []  # what was called, in words

    def choose(self) -> None:
        """Arguments: a right call of that name with one or two of them spoilt, or by the names of the parameters."""
        draw, target = self.draw, self.target
        known = BY_NAME.get(target.name, [])
        if target.kind != "class" and known and draw.random() < 0.6:
            self.args = list(draw.choice(known).arguments(calque))
            signature = signature_of(target.function)
            parameters = list(signature.parameters.values()) if signature else []
            for parameter in parameters[len(self.args) :]:
                if draw.random() < 0.25 and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                    self.keywords[parameter.name] = self.values.by_name(parameter)
            for k in range(len(self.args)):
                if draw.random() < 0.7 / len(self.args):
                    self.args[k] = draw.choice([*spoilings(self.args[k], "", ""), self.values.wild()])
        else:
            self.args, self.keywords = self.values.call(signature_of(target.function), target.kind == "method")
            if target.kind == "method":
                self.args.insert(0, self.values.tensor())
        if target.kind == "method" and not isinstance(self.args[0], calque.Tensor):
            self.args[0] = self.values.tensor()

    def note(self, name: str, args: Any, keywords: Any) -> None:
        shown = [short(a) for a in args] + [f"{k}={short(v)}" for k, v in keywords.items()]
        self.made.append(f"{name}({', '.join(shown)})")

    def make(self) -> Any:
        """Call, and use what came out."""
        self.note(str(self.target), self.args, self.keywords)
        function = self.target.function
        result = function(*self.args, **self.keywords)
        look(result)
        if self.target.kind == "class":
            self.use(result)
        return result

    def use(self, result: Any) -> None:
        """Two random methods of an object (a layer is called, a loader is walked through)."""
        for _ in range(2):
            if isinstance(result, nn.Module) and self.draw.random() < 0.6:
                name = "__call__"
                self.args, self.keywords = self.values.call(signature_of(type(result).forward), True)
                function: Any = result
            else:
                names = [
                    n
                    for n in sorted(set(dir(result)) - INNER)
                    if (not n.startswith("_") or n in ("__iter__", "__len__", "__getitem__"))
                    and hasattr(type(result), n)  # not an argument of ours that it keeps
                    and isinstance(inspect.getattr_static(type(result), n), (Callable, classmethod, staticmethod))
                    and not isinstance(inspect.getattr_static(type(result), n), property)
                ]
                if not names:
                    return
                name = self.draw.choice(names)
                function = getattr(result, name)
                self.args, self.keywords = self.values.call(signature_of(function), False)
            self.target = Target(
                type(result).__name__, name, result.forward if name == "__call__" and isinstance(result, nn.Module) else function, "use"
            )
            self.note(f".{name}", self.args, self.keywords)
            look(function(*self.args, **self.keywords))

    def text(self) -> str:
        return " then ".join(self.made)


def short(value: Any) -> str:
    """An argument as in a program, cut off."""
    if isinstance(value, calque.Tensor):
        return (
            f"<{tuple(value.shape)} {str(value.dtype)[6:]}{' meta' if value.device.type == 'meta' else ''}{' grad' if value.requires_grad else ''}>"
        )
    if isinstance(value, (tuple, list)):
        inside = ", ".join(short(v) for v in value[:5]) + (", ..." if len(value) > 5 else "")
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)"
    return f"{value!r:.80}"


def look(result: Any, depth: int = 0) -> None:
    """Read what was computed, and use what was made."""
    if isinstance(result, calque.Tensor):
        if result.device.type != "meta" and result.numel() < 1 << 20:
            result.tolist()
        repr(result)
    elif isinstance(result, (tuple, list)) and depth < 3:
        for part in result[:100]:
            look(part, depth + 1)
    elif hasattr(result, "__next__") and not isinstance(result, type):
        for _, part in zip(range(5), result):
            look(part, depth + 1)


def leak(error: BaseException, call: Call) -> bool:
    """Whether the error is not one that a user should see."""
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    if isinstance(error, AssertionError) and call.target.name.startswith("assert_"):
        return False  # what it is for
    of_python = isinstance(error, (AssertionError, RecursionError)) and not isinstance(error, CalqueError) and not text.startswith("[")
    if "bug of Calque" in text or of_python and "infinitely" not in text:
        return True
    if isinstance(error, CalqueError) or text.startswith("["):
        return False
    if call.target.name in ("__getitem__", "pop") and isinstance(error, (LookupError, TypeError)):
        return False  # what Python's protocols ask for
    if isinstance(error, KeyError) and call.target.place == "DataLoader":
        return False  # of a dict that is the data set
    if isinstance(error, TypeError) and REFUSED_BY_PYTHON.search(text):
        return binds(call.target.function, call.args, call.keywords)
    return True


def binds(function: Any, args: Any, keywords: Any) -> bool:
    """Whether the function has such parameters."""
    signatures = [signature_of(function)]
    if isinstance(function, type) and "__new__" in vars(function):
        signatures.append(signature_of(functools.partial(function.__init__, None)))  # type: ignore[misc]
    for signature in signatures:
        if signature is None:
            return False
        try:
            signature.bind(*args, **keywords)
        except TypeError:
            return False
    return True


class TooLong(BaseException):
    """The call takes longer than it may."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong(f"more than {SECONDS} s")


def put_back() -> None:
    """What a call may have switched, as it is at the start."""
    calque.set_grad_enabled(True)
    calque.set_autocast_enabled("cpu", False)
    calque.use_deterministic_algorithms(False)
    calque.set_printoptions(profile="default")
    calque.set_float32_matmul_precision("highest")


def finding(seed: int, only: str = "") -> str:
    """ "" if the call of this seed was answered well, else what it was and what came."""
    call = Call(seed, only)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGALRM, _too_long)
    signal.signal(signal.SIGPROF, _too_long)
    came: BaseException | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call.choose()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(10 * SECONDS)
            call.make()
    except (Exception, TooLong, SystemExit) as error:
        if isinstance(error, TooLong) or leak(error, call):
            came = error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        put_back()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if came is None and grown < GROWTH:
        return ""
    what = f"{grown >> 10} MiB" if came is None else f"{type(came).__name__}: {came!s:.600}"
    return " ".join(f"seed {seed}: {call.text()}: {what}".split())


def child(seed: int, count: int, only: str, note: str) -> int:
    """Make the calls; the seed of the one that runs is in a file."""
    faulthandler.enable()
    calque.set_logical_devices(2)
    wrong = 0
    with open(note, "wb", buffering=0) as file:
        for number in range(seed, seed + count):
            os.pwrite(file.fileno(), b"%020d" % number, 0)
            if text := finding(number, only):
                wrong += 1
                print(text, flush=True)
    return min(wrong, 100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--only", default="", help="part of the name of what is called")
    parser.add_argument("--chunk", type=int, default=1000, help="calls of one process")
    parser.add_argument("--note", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.note:
        return child(options.seed, options.count, options.only, options.note)
    print(f"{options.count} calls of {len(TARGETS)} functions, methods and classes, seeds from {options.seed}", flush=True)
    total: Counter[str] = Counter()
    start, first, end = time.monotonic(), options.seed, options.seed + options.count
    with tempfile.TemporaryDirectory() as folder:
        note = os.path.join(folder, "seed")
        while first < end:
            count = min(options.chunk, end - first)
            command = [
                sys.executable,
                "-m",
                "tests.fuzz.arguments",
                "--seed",
                str(first),
                "--count",
                str(count),
                "--only",
                options.only,
                "--note",
                note,
            ]
            # In the folder that goes away: what is called may write files of any name.
            env = {**os.environ, "PYTHONPATH": ROOT}
            done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, errors="replace", check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
            total["findings"] += len(lines)
            print(*lines, sep="\n", end="\n" if lines else "")
            if done.returncode == min(len(lines), 100):
                first += count
            else:
                with open(note, "rb") as file:
                    bad = int(file.read())
                total["crashes"] += 1
                print(f"seed {bad}: the process ended with status {done.returncode}", flush=True)
                first = max(first, bad) + 1
            print(f"{first - options.seed} calls, {dict(total)}, {time.monotonic() - start:.0f} s", flush=True)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
