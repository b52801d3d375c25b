"""Random programs on memory that tensors and NumPy arrays share: arrays given to the library and taken from it, by each of its doors, written on both
sides between operations that are pending, looked at in other ways, exchanged, freed in any order, read by gradients and by hybridized functions.

A program is a list of lines; each library runs them with arrays of its own. All numbers are small integers, so that both see the same bits.

`python -m tests.fuzz.sharing --count 10000 --seed 0` prints every mismatch, shrunk.
"""

from __future__ import annotations

import gc
import random
from typing import Any

import numpy as np

import calque
from tests.fuzz.command import beside_pytorch, main, reported

SHAPES = ((2, 3), (3, 2), (6,), (4,), (2, 2), (3, 3), (1, 4), (2, 1, 3), (1,), (), (0, 2), (64, 3), (17,))
DTYPES = ("float64", "float64", "float64", "int64", "float32", "int32", "uint8", "bool", "complex64", "float16", "int8")
Var = tuple[str, tuple[int, ...], str]  # a name, the shape and the type of what it has


class Text:
    """The lines of a random program."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        self.arrays: list[Var] = []
        self.tensors: list[Var] = []
        self.leaves: list[Var] = []
        self.wide = self.rng.random() < 0.3  # other types than float64
        self.lines: list[str] = []
        self.gradients = self.rng.random() < 0.3
        self.shapes = ((130, 130), (130, 130), (17000,), (2, 8200)) if seed % 5 == 4 else SHAPES  # large ones are pending longer
        for _ in range(self.rng.randint(1, 2)):
            self.lines += self._array() + self._tensor()
        for _ in range(self.rng.randint(5, 30)):
            self.lines += getattr(self, "_" + self.rng.choice(KINDS))()

    def _name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def _dtype(self) -> str:
        return self.rng.choice(DTYPES) if self.wide else "float64"

    def _any(self, of: list[Var]) -> Var:
        return self.rng.choice(of[-3:] if self.rng.random() < 0.5 else of)

    def _array(self) -> list[str]:
        shape, dtype, name = self.rng.choice(self.shapes), self._dtype(), self._name("a")
        size = int(np.prod(shape))
        pick = self.rng.randrange(7)
        lines = [f"{name} = ramp({shape}, '{dtype}')"]
        if pick == 0 and shape:
            lines = [f"{name} = ramp({(2 * shape[0], *shape[1:])}, '{dtype}')[::2]"]
        elif pick == 1 and len(shape) > 1:
            lines = [f"{name} = ramp({shape[::-1]}, '{dtype}').T"]
        elif pick == 2 and shape:
            lines = [f"{name} = ramp({(2 + shape[0], *shape[1:])}, '{dtype}')[1:-1]"]
        elif pick == 3 and size:
            lines = [f"{name} = np.frombuffer(bytearray(ramp({shape}, '{dtype}').tobytes()), '{dtype}').reshape({shape})"]
        elif pick == 4 and shape:
            lines = [f"{name} = np.broadcast_to(ramp({shape[1:]}, '{dtype}'), {shape}).copy()"]
        self.arrays.append((name, shape, dtype))
        return lines

    def _tensor(self) -> list[str]:
        source, shape, dtype = self._any(self.arrays)
        name = self._name("t")
        doors = ["T.from_numpy({})"] * 3 + ["T.as_tensor({})", "T.asarray({})", "T.from_dlpack({})"]
        doors += ["T.utils.dlpack.from_dlpack({}.__dlpack__())"]
        doors += ["T.from_numpy({0}[...])", "T.from_numpy(memoryview({}).obj)", "T.tensor({})", "T.tensor({}).share_memory_()"]
        if np.prod(shape):
            doors += [f"T.frombuffer(memoryview(np.ascontiguousarray({{}})), dtype=T.{dtype}).view({shape})"]
        self.tensors.append((name, shape, dtype))
        return [f"{name} = {self.rng.choice(doors).format(source)}"]

    def _back(self) -> list[str]:
        source, shape, dtype = self._any(self.tensors)
        name = self._name("a")
        doors = ["{}.detach().numpy()"] * 3 + ["np.asarray({}.detach())", "np.from_dlpack({}.detach())"]
        doors += ["{}.numpy(force=True)", "{}.detach().__array__()"]
        if np.prod(shape):
            doors += ["np.asarray(memoryview({}.detach().numpy()))"]
        self.arrays.append((name, shape, dtype))
        return [f"{name} = {self.rng.choice(doors).replace('{}', source)}"]

    def _slice(self) -> list[str]:
        source, shape, dtype = self._any(self.arrays)
        name = self._name("a")
        if not shape:
            return []
        parts = [("[-1:]", (min(1, shape[0]), *shape[1:])), (".T", shape[::-1]), ("[::2]", (-(-shape[0] // 2), *shape[1:])), ("[...]", shape)]
        part, found = self.rng.choice(parts)
        self.arrays.append((name, found, dtype))
        return [f"{name} = {source}{part}"]

    def _strike(self) -> list[str]:
        """NumPy writes."""
        name, shape, dtype = self._any(self.arrays)
        other = self._like(self.arrays, shape, dtype)
        forms = [f"{name}[...] = 3", f"{name}[...] = {other}.copy()", f"np.copyto({name}, 5)", f"{name}.fill(1)"]
        if dtype != "bool":
            forms += [f"{name} += 1", f"{name} *= 2", f"{name} -= {name}", f"np.add({name}, {other}.copy(), out={name})"] * 2
        if shape and shape[0]:
            forms += [f"{name}[0] = 2", f"{name}[-1] = 7", f"{name}[::-1] = {name}.copy()"]
        lines = [self.rng.choice(forms)]
        return lines if dtype in ("bool", "complex64") else [*lines, f"{name} %= 13"]

    def _like(self, of: list[Var], shape: tuple[int, ...], dtype: str) -> str:
        return self.rng.choice([n for n, s, d in of if s == shape and d == dtype])

    def _write(self) -> list[str]:
        """The library writes."""
        name, shape, dtype = self._any(self.tensors)
        other = self._like(self.tensors, shape, dtype)
        forms = [f"{name}.copy_({other}.clone())", f"{name}.zero_()", f"{name}.fill_(4)", f"{name}.data.fill_(2)"]
        forms += [f"{name}.detach().copy_({other}.detach() * 1)"]
        if dtype != "bool":
            forms += [f"{name}.add_(1)", f"{name}.mul_(2)", f"{name}.add_({other}.clone())", f"{name}.mul_({other}.clone())",
                      f"T.add({name}, {other}.clone(), out={name})", f"{name}.sub_({other}.clone())"] * 2  # fmt: skip
        if shape and shape[0]:
            forms += [f"{name}[0] = 3", f"{name}[-1].mul_(2)", f"{name}[..., :1].fill_(1)", f"{name}[:1].copy_({name}[-1:].clone())"]
        line = self.rng.choice(forms)
        if self.rng.random() < 0.5:
            line = f"with T.no_grad(): {line}"
        return [line] if dtype in ("bool", "complex64") else [line, f"with T.no_grad(): {name}.remainder_(13)"]

    def _view(self) -> list[str]:
        source, shape, dtype = self._any(self.tensors)
        forms = [(".detach()", shape), (".data", shape), (".view(-1)", (int(np.prod(shape)),)), (".unsqueeze(0)", (1, *shape))]
        forms += [(f".view_as({source})", shape)]
        if shape:
            forms += [("[-1:]", (min(1, shape[0]), *shape[1:])), ("[::2]", (-(-shape[0] // 2), *shape[1:]))]
            forms += [(".flatten()", (int(np.prod(shape)),)), (".transpose(0, -1)", (shape[-1], *shape[1:-1], shape[0]) if len(shape) > 1 else shape)]
        if shape and shape[0]:
            forms += [("[0]", shape[1:])]
        text, found = self.rng.choice(forms)
        if len(found) > 3:
            return []
        name = self._name("t")
        self.tensors.append((name, found, dtype))
        return [f"{name} = {source}{text}"]

    def _compute(self) -> list[str]:
        source, shape, dtype = self._any(self.tensors)
        other, name = self._like(self.tensors, shape, dtype), self._name("t")
        forms = [(f"{source}.clone()", shape), (f"T.where({source} == 1, {source}, {other})", shape), (f"T.stack([{source}, {other}])[0]", shape)]
        if dtype != "bool":
            forms += [(f"{source} * 2", shape), (f"{source} + {other}", shape), (f"{source} - {other}", shape), (f"{source} * {source}", shape)] * 2
        if dtype == "float64":
            forms += [(f"{source}.sum()", ()), (f"T.relu({source} - 3)", shape)]
        if len(shape) == 2 and dtype in ("float64", "int64"):
            forms += [(f"({source} @ {other}.t())", (shape[0], shape[0]))] * 2
        text, found = self.rng.choice(forms)
        if len(found) > 3:
            return []
        self.tensors.append((name, found, dtype))
        return [f"{name} = {text}"] + ([] if dtype in ("bool", "complex64") else [f"{name} = {name}.remainder(13)"])

    def _other(self) -> list[str]:
        """Other memory for a tensor, or another size."""
        name, shape, dtype = self._any(self.tensors)
        other = self._like(self.tensors, shape, dtype)
        forms = [f"{name} = {name}.detach(); {name}.set_({other}.detach())", f"{name}.data = {other}.detach()", f"{name} = {other}"]
        forms += [f"{name}.data = {name}.detach().clone()"]
        if len(shape) == 2 and shape[0] == shape[1]:
            forms += [f"with T.no_grad(): {name}.t_()"] * 2
        return [self.rng.choice(forms)]

    def _forget(self) -> list[str]:
        of = self.rng.choice((self.arrays, self.tensors))
        if len(of) < 2:
            return []
        return [f"del {of.pop(self.rng.randrange(len(of)))[0]}", *self.rng.choice(([], [], ["gc.collect()"]))]

    def _look(self) -> list[str]:
        name, _, _ = self._any(self.tensors)
        array = self._any(self.arrays)[0]
        return [self.rng.choice((f"see(plain({name}))", f"see({name}.sum().item())", f"see(plain({array}))", "finish()", f"see(repr({name}.dtype))"))]

    def _call(self) -> list[str]:
        """A hybridized function of a tensor that shares memory, and of another one that it finds outside."""
        found = [v for v in self.tensors if v[2] == "float64"]
        if not found:
            return []
        source, shape, dtype = self._any(found)
        held = self._like(self.tensors, shape, dtype)
        name, function = self._name("t"), self._name("f")
        body = self.rng.choice((
            "x * 2 + held[0]", "(x + held[0]).remainder(13)", "(held[0].add_(1), x + held[0])[1]", "(x.add_(1), held[0] * x)[1]",
            "x.view(-1)", "held[0].detach()", "(held[0].copy_(x.clone()), x - held[0])[1]", "(x.numpy() if False else x).clone()",
            "x * held[0].sum().item()",
        ))  # fmt: skip
        lines = [f"held = [{held}.detach()]", f"{function} = wrap(lambda x, held=held: {body})"]
        for _ in range(self.rng.randint(3, 6)):
            lines.append(f"{name} = {function}({source}.detach())")
            for _ in range(self.rng.randint(0, 2)):
                lines += getattr(self, self.rng.choice(("_strike", "_write", "_look", "_back")))()
                lines += [f"with T.no_grad(): {name}.remainder_(13)"] if self.rng.random() < 0.2 else []
            if self.rng.random() < 0.3:
                lines.append(f"see(plain({name}))")
        return lines

    def _train(self) -> list[str]:
        """A leaf over shared memory that learns, as written or hybridized, and whose memory, gradient and momentum NumPy sees."""
        found = [v for v in self.arrays if v[2] == "float64"]
        if not found or not self.gradients:
            return []
        source, shape, _ = self._any(found)
        name, step = self._name("t"), self._name("f")
        forms = ("T.from_numpy({}).requires_grad_()", "T.nn.Parameter(T.from_numpy({}))", "T.nn.Parameter(T.tensor({}))")
        made = self.rng.choice(forms).format(source)
        momentum = self.rng.choice(("", ", momentum=1.0", ", momentum=1.0, foreach=False"))
        clear = self.rng.choice(("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)", f"{name}.grad = None", ""))
        loss = self.rng.choice((f"({name} * 2).sum() + {name}.sum()", f"(x * {name}).sum()", f"({name} * {name}).sum()"))
        body = [clear, f"loss = {loss}", "loss.backward()", self.rng.choice(("optimizer.step()", f"with T.no_grad(): {name}.sub_({name}.grad)"))]
        lines = [f"{name} = {made}", f"optimizer = T.optim.SGD([{name}], lr=1.0{momentum})"]
        function = f"def {step}(x):\n " + "\n ".join(line for line in body if line) + "\n return loss.detach()"
        lines += [function, f"{step} = {self.rng.choice(('wrap({})', '{}')).format(step)}"]
        views = [f"{name}.detach().numpy()", f"{name}.grad.numpy()", f"optimizer.state[{name}]['momentum_buffer'].numpy()", f"{name}.data.numpy()"]
        for _ in range(self.rng.randint(2, 7)):
            lines += [f"loss = {step}(T.ones({shape}, dtype=T.float64))", f"with T.no_grad(): {name}.remainder_(13)"]
            if self.rng.random() < 0.4:
                lines.append(f"{self._name('g')} = {self.rng.choice(views)}")
                if self.rng.random() < 0.5:
                    lines.append(f"g{self.count} *= 2" if self.rng.random() < 0.5 else f"g{self.count} %= 3")
            lines += self._strike() if self.rng.random() < 0.4 else ["see(loss.item())"] if self.rng.random() < 0.4 else []
        self.tensors.append((name, shape, "float64"))
        return lines


KINDS = (
    ["array", "tensor", "tensor", "back", "back", "slice"] + ["strike"] * 5 + ["write"] * 5 + ["view"] * 3 + ["compute"] * 5
    + ["other", "forget", "forget", "look", "look", "call", "train"]
)  # fmt: skip


def ramp(shape: tuple[int, ...], dtype: str) -> Any:
    """Small numbers in memory of their own."""
    return (np.arange(int(np.prod(shape))) % 7).reshape(shape).astype(dtype)


def plain(x: Any) -> Any:
    """What can be compared by its text: the numbers, or the sum of very many."""
    if not isinstance(x, (tuple, list)):
        x = x.detach().numpy() if hasattr(x, "detach") else x
        x = np.asarray(x)
        x = x.tolist() if x.size < 5000 else (x.shape, hash((x + 0).tobytes()))
    return x


def seen(lines: list[str], T: Any) -> list[Any]:
    """What a library shows: what lines look at, which of them raise, and at the end all values, strides and gradients."""
    found: list[Any] = []
    scope: dict[str, Any] = {"T": T, "np": np, "gc": gc, "ramp": ramp, "plain": plain, "see": lambda *x: found.append((line, x)),
                             "finish": getattr(T, "synchronize", lambda: None), "wrap": calque.compile if T is calque else lambda f: f}  # fmt: skip
    for line in lines:
        try:
            exec(line, scope)  # noqa: S102 - our own text
        except Exception as error:
            found.append((line, type(error).__name__ if isinstance(error, (NameError, AttributeError)) else "refused"))
            error.__traceback__ = None
    for name, value in scope.items():
        if name[0] in "atg" and not callable(value) and name[1:].isdigit():
            if name[0] == "t":
                grad = None if not value.is_leaf or value.grad is None else plain(value.grad)
                found.append((name, tuple(value.shape), str(value.dtype), plain(value), grad, value.requires_grad))
            else:
                found.append((name, value.shape, str(value.dtype), plain(value)))
    return found


def check(seed: int) -> str:
    """"" or the mismatch of a seed with its program."""
    return reported(seed, Text(seed).lines, lambda lines: beside_pytorch(lines, seed, seen), "tests.fuzz.sharing")


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.sharing", __doc__, check))
