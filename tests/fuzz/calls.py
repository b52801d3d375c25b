"""Random functions and modules whose calls are hybridized: views (returned, saved for backward, of arguments, captured tensors and intermediates),
writes to values, changes of metadata in place, results that are arguments or one value twice, gradients and writes by the caller afterwards.

A program is the text of a function and of what its caller does, so it runs on Calque as written, hybridized, on the reference backend and on PyTorch.
All numbers are small integers in float64, so every way gives the same bits. Memory is poisoned meanwhile: a NaN is a finding, too.

`python -m tests.fuzz.calls --count 10000 --seed 0` prints every mismatch, shrunk.
"""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import calque
import calque.nn
from calque.autograd import superinstruction
from calque.base.config import settings
from calque.base.errors import ArgumentError, CalqueError
from calque.run import dispatch
from tests.fuzz.check import forget
from tests.fuzz.command import main, shrunk

SHAPES = ((2, 3), (2, 3), (3, 2), (6,), (4,), (2, 2), (3, 3), (1, 4), (2, 1, 3), (1,))
Var = tuple[str, tuple[int, ...]]  # a name in the program and the shape that its value has


class Text:
    """The lines of a random function and of its caller."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        self.module = self.rng.random() < 0.25
        self.arity = self.rng.choice((1, 1, 1, 2, 2, 3))
        shape = self.rng.choice(SHAPES)
        self.shapes = [shape if self.rng.random() < 0.7 else self.rng.choice(SHAPES) for _ in range(self.arity)]
        self.captured: list[Var] = [("w", shape), ("c", shape)]
        self.held = self.rng.random() < 0.12  # a captured tensor with a history
        self.captured += [("h", shape)] * self.held
        self.tame = self.rng.random() < 0.65  # nothing that keeps a call from being replayed
        self.vars: list[Var] = [(f"x{k}", s) for k, s in enumerate(self.shapes)]
        self.body = [line for _ in range(self.rng.randint(1, 7)) for line in self._statement()]
        self.result, self.results = self._return()
        self.after = [self._after() for _ in range(self.rng.randint(0, 5))]
        self.kinds = [self.rng.choice(KINDS) for _ in range(self.arity)]
        self.calls = self._calls()
        if "fed" in self.kinds and sum("create_graph" in line for line in self.body) > 1:
            self.calls = self.calls[:3]  # the graph of each call is that of the one before several times, in PyTorch as well
        self.late = self.rng.random() < 0.4  # values are read when all calls are over
        self.packed = self.rng.choice(("", "", "", "list", "dict", "names"))  # how the arguments are given

    # ------------------------------------------------------------------------------------------------------- the function

    def _any(self) -> Var:
        return self.rng.choice(self.vars[-4:] if self.rng.random() < 0.6 else [*self.vars, *self.captured])

    def _new(self, text: str, shape: tuple[int, ...]) -> str:
        self.count += 1
        self.vars.append((f"v{self.count}", shape))
        return f"v{self.count} = {text}"

    def _statement(self) -> list[str]:
        kinds = ["view"] * 6 + ["arithmetic"] * 6 + ["write"] * 3 + ["no_grad", "inner"] + ["train"] * 2
        kinds += [] if self.tame else ["metadata"] * 3 + ["unusual"] * 2
        lines: list[str] = getattr(self, "_" + self.rng.choice(kinds))()
        return lines

    def _view(self) -> list[str]:
        name, shape = self._any()
        choices: list[tuple[str, tuple[int, ...]]] = [
            ("view(-1)", (int(np.prod(shape)),)), ("unsqueeze(0)", (1, *shape)), ("detach()", shape), ("flatten()", (int(np.prod(shape)),)),
            ("squeeze()", tuple(n for n in shape if n != 1)), (f"view_as({name})", shape), ("data", shape),
        ]  # fmt: skip
        if shape:
            choices += [("select(0, 0)", shape[1:]), ("narrow(0, 0, 1)", (1, *shape[1:])), ("unbind(0)[-1]", shape[1:])]
            half = -(-shape[-1] // 2)
            choices += [("chunk(2, -1)[0]", (*shape[:-1], half)), (f"split({half}, -1)[-1]", (*shape[:-1], shape[-1] - half or half))]
            choices += [(f"expand(2, *{name}.shape)", (2, *shape))]
        if len(shape) > 1:
            choices += [("transpose(0, -1)", (shape[-1], *shape[1:-1], shape[0]))]
        if len(shape) == 2:
            choices += [("t()", shape[::-1]), ("T", shape[::-1])] * 2 + [("diagonal()", (min(shape),))]
        text, found = self.rng.choice(choices)
        if len(found) > 3:
            return []
        if text.startswith("narrow") and shape[0] > 1 and self.rng.random() < 0.5:
            return [self._new(f"{name}[1:]", (shape[0] - 1, *shape[1:]))]
        return [self._new(f"{name}.{text}", found)]

    def _arithmetic(self) -> list[str]:
        name, shape = self._any()
        other = self._like(shape)
        forms = [f"{name} * 2", f"{name} + 1", f"{name} * {name}", f"{name} * {other}", f"{name} + {other}", f"{name} * {other}", f"-{name}",
                 f"T.relu({name})", f"{name}.clone()", f"{name} * {other}.sum()", f"T.where({name} > 0, {name}, {other})"]  # fmt: skip
        if self.rng.random() < 0.2:
            return [self._new(f"{name}.sum()", ())]
        if shape and self.rng.random() < 0.2:
            return [self._new(f"T.cat([{name}, {other}], 0)", (2 * shape[0], *shape[1:]))]
        if shape and self.rng.random() < 0.15:
            return [self._new(f"{name}.sum(-1)", shape[:-1])]
        if len(shape) == 2 and self.rng.random() < 0.3:
            return [self._new(f"{name} @ {other}.t()", (shape[0], shape[0]))]
        return [self._new(self.rng.choice(forms), shape)]

    def _like(self, shape: tuple[int, ...]) -> str:
        return self.rng.choice([n for n, s in [*self.vars, *self.captured] if s == shape])

    def _write(self) -> list[str]:
        name, shape = self._any()
        other = self._like(shape)
        forms = [f"{name}.add_(1)", f"{name}.mul_(2)", f"{name}.copy_({other})", f"{name}.add_({other})", f"{name}.zero_()", f"{name}.mul_({other})"]
        if shape:
            forms += [f"{name}[0] = 3", f"{name}[-1].mul_(2)", f"{name}[..., :1].add_(1)", f"{name}.view(-1)[0] = 2"]
        return [self.rng.choice(forms)]

    def _no_grad(self) -> list[str]:
        mode = self.rng.choice(("no_grad", "no_grad", "enable_grad"))
        inner = self._write() if self.rng.random() < 0.6 else self._arithmetic() if self.rng.random() < 0.6 else self._view()
        return [f"with T.{mode}(): {line}" for line in inner]

    def _inner(self) -> list[str]:
        """A call of another hybridized function."""
        name, shape = self._any()
        size = (int(np.prod(shape)),)
        choices = [(f"flat({name})[0]", size), (f"flat({name})[1]", size), (f"doubled({name})", shape), (f"written({name})", shape)]
        choices += [(f"own({name}, w)", shape), (f"again({name}, w)", shape)]
        return [self._new(*self.rng.choice([*choices, (f"{'shown' if shape else 'doubled'}({name})", shape)]))]

    def _train(self) -> list[str]:
        name, _ = self._any()
        if self.rng.random() < 0.3:
            return [self._new(f"T.autograd.grad(({name}.sum() * w * w).sum(), w, create_graph=True)[0]", self.captured[0][1])]
        lines = ["w.grad = None", f"({name}.sum() * w.sum()).backward()", "with T.no_grad(): w.sub_(w.grad.clamp(-2, 2))"]
        return lines if self.rng.random() < 0.5 else ["w.grad = None", f"v = T.autograd.grad(({name}.sum() * w).sum(), w)[0]"]

    def _metadata(self) -> list[str]:
        where = self.rng.randrange(len(self.vars)) if self.rng.random() < 0.4 else self.rng.randrange(self.arity)
        name, shape = self.vars[where]
        choices: list[tuple[str, tuple[int, ...]]] = [
            (f"{name}.unsqueeze_(0)", (1, *shape)), (f"{name}.squeeze_()", tuple(n for n in shape if n != 1)),
            (f"{name}.data = {self._like(shape)} * 2", shape), (f"{name}.requires_grad_()", shape), (f"{name}.detach_()", shape),
            (f"{name}.set_({self._like(shape)}.detach() + 1)", shape), (f"{name}.requires_grad_({name}.requires_grad)", shape),
        ]  # fmt: skip
        if len(shape) >= 2:
            choices += [(f"{name}.transpose_(0, 1)", (shape[1], shape[0], *shape[2:]))] * 3
        if len(shape) == 2:
            choices += [(f"{name}.t_()", shape[::-1])] * 3
        if shape:
            choices += [(f"{name}.resize_({int(np.prod(shape))})", (int(np.prod(shape)),))]
        text, found = self.rng.choice(choices)
        self.vars[where] = (name, found)
        line = f"with T.no_grad(): {text}" if self.rng.random() < 0.4 else text
        return [line] + ([f"{name}.{text.split('.')[1]}"] if "transpose_" in text and self.rng.random() < 0.3 and not self._turn(where) else [])

    def _turn(self, where: int) -> bool:
        name, shape = self.vars[where]
        self.vars[where] = (name, (shape[1], shape[0], *shape[2:]))
        return False

    def _unusual(self) -> list[str]:
        name, shape = self._any()
        argument, its = self.vars[self.rng.randrange(self.arity)]
        other = self._like(its)
        pick = self.rng.randrange(8)
        if pick == 0:
            return [self._new(f"{name} * 3 if {argument}.is_leaf else {name} * 5", shape)]
        if pick == 1:
            return [self._new(f"{argument} * 3 if {argument}.grad is None else {argument} + {argument}.grad", its)]
        if pick == 2:
            return [f"if {name}.requires_grad: {name}.retain_grad()"]
        if pick == 3:
            return [f"if {name}.requires_grad and {name}.grad_fn is not None: {name}.sum().backward(retain_graph=True)"]
        if pick == 4:
            return [f"if {name}.sum() > 4: {argument} = {argument} + {other}"]
        if pick == 5:
            return [f"{argument}.mark = getattr({argument}, 'mark', 0) + 1"]
        if pick == 6:
            return [f"if {argument}.requires_grad: {argument}.register_hook(double)"]
        return [f"if {name}.sum().item() < -50: raise ValueError('asked for')"]

    def _return(self) -> tuple[str, list[str]]:
        names = [self.vars[-1][0], *[self._any()[0] for _ in range(self.rng.choice((0, 0, 1, 1, 2, 3)))]]
        if self.rng.random() < 0.15:
            names.append(names[0])  # the same value twice
        if self.rng.random() < 0.15:
            names.append("x0")
        self.rng.shuffle(names)
        if len(names) == 1 and self.rng.random() < 0.7:
            return names[0], names
        return self.rng.choice(("({},)", "[{}]", "{{'k': [{}]}}")).format(", ".join(names)), names

    # --------------------------------------------------------------------------------------------------------- the caller

    def _after(self) -> str:
        out, x = f"outs[{self.rng.randrange(len(self.results))}]", f"xs[{self.rng.randrange(self.arity)}]"
        which = self.rng.choice((out, out, x))
        number = self.rng.randint(2, 3)
        forms = [
            *["backward(T, outs)"] * 3, "backward(T, outs[:1])", "backward(T, outs[-1:])", "twice(T, outs, wanted)",
            f"{which}.mul_({number})", f"{which}.add_({number})", f"with T.no_grad(): {which}.mul_({number})", f"{which}.data.add_({number})",
            f"{which}.mul_({out})", f"with T.no_grad(): {which}.zero_()",
            f"outs.append({out} * {x}.sum())", f"outs.append({out} * {out})", f"outs.append({which}.view(-1))", f"outs.append({x} * 2)",
            f"{which}.unsqueeze_(0)", f"with T.no_grad(): {which}.unsqueeze_(0)", "w.grad = None", f"del {out}",
            f"if {x}.is_leaf and {x}.is_contiguous(): {x}.data = {x}.data * 2",  # of permuted ones see docs/decisions/0014
            f"forgotten({x})", "with T.no_grad(): w.add_(1)", f"{x}.grad = None",
        ]  # fmt: skip
        return self.rng.choice([*forms, "h.mul_(2)", "h.add_(w)", "h.mul_(2)", "h.detach_()"] if self.held else forms)

    def _calls(self) -> list[tuple[int, tuple[str, ...]]]:
        """(which numbers, kinds of the arguments) of every call: mostly alike, so that recordings are used."""
        found = []
        kinds = tuple(self.kinds)
        for k in range(self.rng.randint(5, 9)):
            now = kinds
            if self.rng.random() < 0.12:
                now = tuple(self.rng.choice(KINDS) for _ in kinds)
            elif self.rng.random() < 0.05:
                kinds = now = tuple(self.rng.choice(KINDS) for _ in kinds)
            found.append((k, now))
        return found


KINDS = (
    "plain", "plain", "leaf", "leaf", "made", "made", "view", "view of leaf", "view of made", "turned", "turned", "graded",
    "wide", "fed", "varied", "varied",
)  # fmt: skip


APART = ("resize_", "set_", "data", "no_grad", "forgotten", "detach_")  # Calque does with memory and with views of leaves what PyTorch does not


class Names:
    """What is called in the text beside the module itself."""

    @staticmethod
    def argument(T: Any, kind: str, shape: tuple[int, ...], number: int) -> tuple[Any, list[Any]]:
        """An argument, and the tensors behind it that the caller has."""
        size = int(np.prod(shape))
        values = [float((7 * number + 3 * i) % 5 - 2) for i in range(2 * size)]
        whole = T.tensor(values[:size], dtype=T.float64).reshape(shape)
        if kind == "leaf":
            return whole.requires_grad_(), []
        if kind == "graded":
            leaf = whole.requires_grad_()
            leaf.grad = T.ones_like(leaf)
            return leaf, []
        if kind == "made":
            leaf = whole.requires_grad_()
            return leaf * 1, [leaf]
        if kind == "varied":  # a history that is another in each call
            leaf = whole.requires_grad_()
            return (leaf * 1, leaf * 2, leaf * leaf, -leaf)[number % 4], [leaf]
        if kind == "turned" and len(shape) > 1:
            return T.tensor(values[:size], dtype=T.float64).reshape(shape[::-1]).permute(*range(len(shape))[::-1]), []
        if kind == "wide":
            wide = T.tensor(values, dtype=T.float64).reshape(2, *shape)
            return wide[1], [wide]
        if kind == "view":
            return whole.view(shape), [whole]
        if kind == "view of leaf":
            leaf = T.tensor(values, dtype=T.float64).reshape(2, *shape).requires_grad_()
            return leaf[1], [leaf]
        if kind == "view of made":
            leaf = T.tensor(values, dtype=T.float64).reshape(2, *shape).requires_grad_()
            made = leaf * 1
            return made[0], [leaf, made]
        return whole, []


def backward(T: Any, outs: list[Any]) -> None:
    total = sum(((k + 2) * t.sum() for k, t in enumerate(outs) if t.requires_grad), T.zeros((), dtype=T.float64))
    if total.requires_grad:
        total.backward(retain_graph=True)


def twice(T: Any, outs: list[Any], wanted: list[Any]) -> None:
    """Gradients of gradients."""
    total = sum(((t * t).sum() for t in outs if t.requires_grad), T.zeros((), dtype=T.float64))
    leaves = [t for t in wanted if t.requires_grad and t.is_leaf]
    if total.requires_grad and leaves:
        first = T.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        again = sum(((g * g).sum() for g in first if g is not None and g.requires_grad), T.zeros((), dtype=T.float64))
        if again.requires_grad:
            again.backward(retain_graph=True)


def double(gradient: Any) -> Any:
    return gradient * 2


def forgotten(t: Any) -> None:
    """`detach_`, which as written refuses a view of what a call has computed; a replay's results have no base."""
    try:
        t.detach_()
    except ArgumentError:
        t._grad_fn, t._requires_grad = None, False


INNER = """
def flat(a):
 b = a.view(-1) if a.is_contiguous() else a.reshape(-1)
 return b, b * b
def doubled(a):
 return a * 2
def shown(a):
 return a[:]
def written(a):
 b = a.clone()
 b.add_(a)
 return b
class Own(T.autograd.Function):
 @staticmethod
 def forward(ctx, a, b):
  ctx.save_for_backward(a, b)
  return a * b.sum()
 @staticmethod
 def backward(ctx, g):
  a, b = ctx.saved_tensors
  return g * b.sum(), (g * a).sum() * b.detach().clamp(1, 1)
def own(a, b):
 return Own.apply(a, b)
def again(a, b):
 return T.utils.checkpoint.checkpoint(lambda x: x * b.sum() + x, a * 1, use_reentrant=False)
"""


def source(text: Text) -> str:
    """The function as a program."""
    names = ", ".join(f"x{k}" for k in range(text.arity))
    if text.packed in ("list", "dict"):
        names, unpack = "xs", f"({names},) = xs" + (".values()" if text.packed == "dict" else "")
        text = copy.copy(text)
        text.body = [unpack, *text.body]
    own = "w, c, h = self.w, self.c, self.h" if text.held else "w, c = self.w, self.c"
    head = f"class M(T.nn.Module):\n def forward(self, {names}):\n  {own}\n" if text.module else f"def f({names}):\n"
    space = "  " if text.module else " "
    return head + "".join(f"{space}{line}\n" for line in text.body) + f"{space}return {text.result}\n"


def listed(value: Any) -> list[Any]:
    """The tensors of a result."""
    if isinstance(value, dict):
        return listed(value["k"])
    return [t for item in value for t in listed(item)] if isinstance(value, (list, tuple)) else [value]


class Run:
    """One way to run a program: `seen` is what was observed."""

    def __init__(self, text: Text, T: Any, wrap: Any) -> None:
        self.T, self.text = T, text
        self.seen: list[Any] = []
        shape = text.captured[0][1]
        size = int(np.prod(shape))
        w = T.tensor([float(i % 3 + 1) for i in range(size)], dtype=T.float64).reshape(shape).requires_grad_()
        c = T.tensor([float(i % 4 - 1) for i in range(size)], dtype=T.float64).reshape(shape)
        names = {"T": T, "w": w, "c": c, "h": w * 2, "double": double, "forgotten": forgotten}
        exec(INNER, names)  # noqa: S102 - our own text
        for name in ("flat", "doubled", "shown", "written"):
            names[name] = wrap(names[name])
        exec(compile(source(text), "<fuzz>", "exec"), names)  # noqa: S102 - our own text
        function = names.get("f")
        if text.module:
            function = names["M"]()
            w = function.w = T.nn.Parameter(w.detach().clone())
            function.register_buffer("c", c)
            names["h"] = function.h = w * 2
        self.function, self.w, self.c, self.h = wrap(function), w, c, names["h"]
        self.kept: list[Any] = []
        self.last: Any = None  # a result of the call before
        for number, kinds in text.calls:
            self._call(number, kinds)
        for facts in self.kept:
            self._look(*facts)

    def _call(self, number: int, kinds: tuple[str, ...]) -> None:
        T = self.T
        made = [Names.argument(T, kind, shape, number + k) for k, (kind, shape) in enumerate(zip(kinds, self.text.shapes, strict=True))]
        xs, behind = [x for x, _ in made], [t for _, more in made for t in more]
        if kinds[0] == "fed" and self.last is not None and self.last.shape == xs[0].shape:
            xs[0] = self.last
        names = {"T": T, "xs": xs, "outs": [], "w": self.w, "h": self.h, "backward": backward, "twice": twice, "wanted": [*xs, *behind, self.w]}
        error = ""
        try:
            names["outs"] = listed(self._called(xs))
        except Exception as found:
            error = type(found).__name__
        outs = names["outs"]
        self.last = outs[0] if outs else None
        own = [next((k for k, t in enumerate([*xs, self.w, self.c]) if t is out), -1) for out in outs]
        twins = [next(k for k, t in enumerate(outs) if t is out) for out in outs]
        errors = [error]
        for line in self.text.after:
            try:
                exec(line, names)  # noqa: S102 - our own text
                errors.append("")
            except Exception as found:
                errors.append(type(found).__name__)
        facts = (number, errors, own, twins, [*outs, *xs, *behind, self.w, self.c, self.h])
        if self.text.late:
            self.kept.append(facts)
        else:
            self._look(*facts)

    def _called(self, xs: list[Any]) -> Any:
        packed = self.text.packed
        if packed == "names":
            return self.function(xs[0], **{f"x{k}": x for k, x in enumerate(xs) if k})
        if packed:
            return self.function(list(xs) if packed == "list" else {f"x{k}": x for k, x in enumerate(xs)})
        return self.function(*xs)

    def _look(self, number: int, errors: list[str], own: list[int], twins: list[int], tensors: list[Any]) -> None:
        self.seen.append((number, "errors", errors))
        self.seen.append((number, "identities", own, twins))
        for k, t in enumerate(tensors):
            try:
                half = any(errors) and not t.is_leaf  # what a pass that raised has kept until then
                grad = None if half or t.grad is None else _values(t.grad)
                self.seen.append((number, k, t.requires_grad, t.is_leaf, getattr(t, "mark", None), _values(t), grad))
            except RuntimeError as error:  # PyTorch's views of several results cannot be looked at after a write
                self.seen.append((number, k, type(error).__name__, None, None, None, None))


def _values(t: Any) -> Any:
    return tuple(t.shape), tuple(t.stride()), t.detach().tolist()


def plain(function: Any) -> Any:
    return function


def hybridized(function: Any) -> Any:
    return calque.compile(function)


@contextmanager
def mode(backend: str, compiled: bool, poison: bool) -> Iterator[None]:
    """Run on a backend, perhaps compiling every program at once. What is known of library functions is forgotten, too, and on the reference nothing
    of it is used: what small operations do at once is compared with their recordings."""
    forget()
    superinstruction._known.clear()
    saved = settings.backend, settings.poison, dispatch.INTERPRET_WORK, settings.eager
    settings.backend, settings.poison = backend, poison
    if backend == "ref":
        settings.eager = 0
    if compiled:
        dispatch.INTERPRET_WORK = 0
    try:
        yield
    finally:
        forget()
        settings.backend, settings.poison, dispatch.INTERPRET_WORK, settings.eager = saved


def _of_others(text: Text) -> Text:
    """The same with what is written copied before: PyTorch does not see that `v.T.copy_(v)` writes what it reads if `v` is not dense."""
    found = copy.copy(text)
    found.body, found.after = ([_WRITTEN.sub(r"\1(\2.clone())", line) for line in lines] for lines in (text.body, text.after))
    return found


_WRITTEN = re.compile(r"(\.(?:copy|add|mul)_)\(([a-z]\w*)\)")


def ways(text: Text, seed: int, torch: Any = None) -> Iterator[tuple[str, list[Any]]]:
    """What is seen each way."""
    compiled = seed % 8 == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mode("ref", False, False):
            yield "reference", Run(text, calque, plain).seen
        with mode("cpu", compiled, True):
            yield "as written", Run(text, calque, plain).seen
        with mode("cpu", compiled, True):
            yield "hybridized", Run(text, calque, hybridized).seen
        # PyTorch drops the gradient of a leaf whose view was written to through `detach()`.
        lost = any("view of leaf" in kinds for _, kinds in text.calls) and any(".detach()" in line for line in (*text.body, *text.after))
        if torch is not None and not lost and not _crashes(text) and not any(name in line for line in (*text.body, *text.after) for name in APART):
            yield "PyTorch", Run(_of_others(text), torch, plain).seen


def _crashes(text: Text) -> bool:
    """Whether a view gets a hook behind a write to a part of it: PyTorch 2.13 ends the process there."""
    writes = [k for k, line in enumerate(text.body) if re.search(r"\w_\(", line)]
    return bool(writes) and any("register_hook" in line for line in text.body[writes[0] :])


def mismatch(text: Text, seed: int, torch: Any = None) -> str:
    """"" if every way sees the same; what a look at a value raises is a finding, too."""
    try:
        return _mismatch(text, seed, torch)
    except CalqueError as error:
        return f"{type(error).__name__}: {error}"


def _mismatch(text: Text, seed: int, torch: Any) -> str:
    wanted: list[Any] = []
    for name, seen in ways(text, seed, torch):
        if not wanted:
            wanted = seen
            exact = _exact(seen)
        elif name == "PyTorch":
            if text.late and any(any(rest[0]) for facts in (seen, wanted) for _, what, *rest in facts if what == "errors"):
                continue  # what was seen at the end shows that a write was refused, in the calls before, too
            seen, wanted = _comparable(seen, wanted), _comparable(wanted, seen)
        if name != "PyTorch":
            seen, wanted = seen[:exact], wanted[:exact]
        for a, b in zip(seen, wanted, strict=True):
            a, b = repr(a), repr(b)
            if name == "PyTorch":  # sums of zeros
                a, b = a.replace("-0.0", "0.0"), b.replace("-0.0", "0.0")
            if a != b:  # the reference's memory is not poisoned: a NaN of both is one of arithmetic
                return f"[{name}] {a}\n  but the reference has\n  {b}"
    return ""


def _exact(seen: list[Any]) -> int:
    """How much of it is before the first call that gives numbers above 1e16, where every way of adding up rounds in its own way."""
    for number, *rest in seen:
        if any(sign in repr(rest) for sign in ("e+", "inf")):
            return next(k for k, (first, *_) in enumerate(seen) if first == number)
    return len(seen)


def _comparable(seen: list[Any], other: list[Any]) -> list[Any]:
    """Values and gradients up to the first call in which one of both raises: errors and strides have fuzzers of their own."""
    found = []
    for (number, what, *rest), (_, _, *others) in zip(seen, other, strict=False):
        if what == "errors" and any((*rest[0], *others[0])):
            break
        if what not in ("errors", "identities") and not isinstance(rest[0], str) and not isinstance(others[0], str):  # else it cannot be looked at
            needs, _, _, values, grad = rest
            found.append((number, what, needs, values and values[::2], grad and grad[::2]))
    return found


def shrink(text: Text, seed: int, torch: Any = None) -> None:
    """Leave out what the mismatch does not need."""
    for lines in (text.after, text.body, text.calls):

        def fails(fewer: list[Any], lines: Any = lines) -> str:
            whole, lines[:] = list(lines), fewer
            try:
                return mismatch(text, seed, torch)
            except Exception:
                return ""
            finally:
                lines[:] = whole

        lines[:] = shrunk(list(lines), fails)


def report(seed: int, torch: Any = None) -> str:
    """"" or the mismatch of a seed with its program."""
    text = Text(seed)
    found = mismatch(text, seed, torch)
    if not found:
        return ""
    shrink(text, seed, torch)
    found = mismatch(text, seed, torch) or f"only from a state left by what ran before: {found}"
    lines = "\n  ".join([*source(text).splitlines(), *(f"after: {line}" for line in text.after), *(f"call {call}" for call in text.calls)])
    return f"seed {seed}, shapes {text.shapes}: {found}\n  {lines}\n  repeat: python -m tests.fuzz.calls --seed {seed} --count 1"


def check(seed: int, torch: bool, pending: int) -> str:
    """"" or the mismatch of a seed; `torch`: PyTorch's results, too; `pending`: operations after which pending work is cut, 0: as ever."""
    settings.max_pending_ops = pending or settings.max_pending_ops
    return report(seed, __import__("torch") if torch else None)


if __name__ == "__main__":
    replays = lambda: f"{calque.stats()['hybridize']['replays']} replays, CALQUE_VERIFY={int(settings.verify)}"  # noqa: E731
    raise SystemExit(main("tests.fuzz.calls", __doc__, check, also=replays, torch=False, pending=0))
