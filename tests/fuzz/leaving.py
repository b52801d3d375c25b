"""Random modules with state, free sizes and mixed types, and all ways out of Python: `python -m tests.fuzz.leaving --count 1000`.

A module is source text: lines that a call of it was seen to run. For several sizes, and with the state that earlier calls have left, it is compared
with its export, the export's file, a native library of it (`--native`), its ONNX model in ONNX Runtime, and that model loaded again.
"""

from __future__ import annotations

import io
import linecache
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque.base.errors import ExportError
from calque.base.extras import there
from tests.fuzz.command import main

TYPES = ("float32", "float32", "float32", "float64", "int64", "bool", "int32", "bfloat16", "float16", "uint8", "int8")
VIEWS = (
    "{a}.transpose({d}, 0)", "{a}[1:]", "{a}[::2]", "{a}[:, -1]", "{a}.unsqueeze({d})", "{a}.squeeze()", "{a}.reshape({a}.shape[0], -1)",
    "{a}.detach()", "{a}.expand(2, *{a}.shape)", "{a}.narrow({d}, 0, {a}.shape[{d}] - 1)", "{a}.diagonal()", "{a}.unfold({d}, 2, 1)",
    "{a}.flip({d})", "{a}.clone()", "{a}.roll(1, {d})", "{a}.repeat_interleave(2, {d})", "{a}.tril()", "{a}.chunk(2, {d})[0]", "{a}.T",
    "{a}.contiguous()", "{a}.flatten()",
)  # fmt: skip
WRITES = (
    "{w}.add_(1)", "{w}.mul_(2)", "{w}.copy_({b})", "{w}[1:] = {w}[:-1].clone()", "{w}[0] = 1", "{w}[..., -1] += 1", "{w}.zero_()",
    "{w}[{w} > 1] = 0", "{w}.copy_({w}.flip(0))", "{w}.clamp_(-1, 2)", "{w}.masked_fill_({w} > 0, 1)", "{w}.view(-1)[1:3] = 2", "{w}[:] = {b}",
    "{w}.t_()", "{w}.add_({b})",
)  # fmt: skip
MAPS = (
    "{a}.tanh()", "{a}.abs()", "-{a}", "{a}.relu()", "{a}.abs().sqrt()", "{a}.exp2()", "{a}.round()", "{a}.clamp(-9, 9).to(T.{t})", "{a} * 2",
    "{a} // 3",
    "{a} % 2.5", "2.0 ** {a}", "{a} > 0", "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / {b}", "{a} == {b}", "T.maximum({a}, {b})",
    "T.where({a} > 0, {a}, {b})", "{a}.logical_not()", "F.gelu({a})", "{a}.clamp(-1, 1)", "{a} + {a}.shape[0]",
    "({a} if {a}.shape[0] > 4 else {a} * 2)", "{a} & {b}", "{a}.pow(2)", "{a}.sin()",
)  # fmt: skip
REST = (
    "{a}.sum()", "{a}.sum({d}, keepdim=True)", "{a}.mean({d})", "{a}.amax({d})", "{a}.any({d})", "{a}.all()", "{a}.prod({d})", "{a}.cumsum({d})",
    "F.softmax({a}, {d})", "{a}.var({d})", "T.cat([{a}, {b}], {d})", "T.stack([{a}, {a}])", "{a}[T.tensor([0, -1])]", "{a} @ {a}.mT",
    "T.eye({a}.shape[0])", "F.pad({a}, (1, 1), value=1)", "T.linspace(0, 1, 3)", "T.arange({a}.shape[0])",
    "F.layer_norm({a}.float(), {a}.shape[-1:])",
    "{a}.index_select({d}, T.tensor([0, 0]))", "T.tensor([1.0, 2.0])", "{a}.scatter_add({d}, T.zeros_like({a}, dtype=T.int64), {a})",
    "F.max_pool1d({a}, 2)", "F.conv1d({a}, T.ones(2, {a}.shape[1], 2))",
)  # fmt: skip
EXACT = {"float32": 2e-5, "float64": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}
_REFUSED = (RuntimeError, ValueError, IndexError, TypeError)


class Sketch:
    """A module in the making. `inputs`: (name, type, shape, whether the first size is free); `source`: the text of its class."""

    def __init__(self, seed: int, steps: int = 8) -> None:
        self.rng = np.random.default_rng(seed)
        self.free, self.rows = self.chance(0.5), self.pick((0, 1, 2, 3, 5))
        self.rows = 5 if self.free else self.rows
        self.env: dict[str, Any] = {"T": calque, "F": calque.nn.functional, "self": calque.nn.Module()}
        self.known: list[str] = []
        self.start, self.body = [], []
        self.inputs: list[tuple[str, str, tuple[int, ...], bool]] = []
        for k in range(self.pick((1, 2, 3))):
            first = self.free and (k == 0 or self.chance(0.6))
            shape = (self.rows if first or not self.free else self.size(), *[self.size() for _ in range(self.pick((0, 1, 1, 2)))])
            self.inputs.append((f"x{k}", self.pick(TYPES), shape, first))
            self.hold(f"x{k}", self.tensor(self.inputs[-1][1], shape))
        for k in range(self.pick((0, 1, 1, 2))):
            t = self.tensor(self.pick(TYPES), tuple([self.size() for _ in range(self.pick((0, 1, 2)))]))
            kind = str(t.dtype).rsplit(".", 1)[-1]
            self.start.append(f'self.register_buffer("b{k}", T.tensor({t.flatten().tolist()!r}, dtype=T.{kind}).reshape({tuple(t.shape)!r}))')
            self.env["self"].register_buffer(f"b{k}", t)
            self.known.append(f"self.b{k}")
        for _ in range(steps * 12):
            if len(self.body) < steps:
                self.step()
        last = [n for n in self.known if n.startswith("v")][-3:] or self.known[:1]
        self.results = [*last, self.pick(self.known), last[0]]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, among: Any) -> Any:
        return among[int(self.rng.integers(len(among)))]

    def size(self) -> int:
        return int(self.pick((1, 2, 3, 3, 4, 6, 0))) if self.chance(0.5) else 3

    def tensor(self, kind: str, shape: Any) -> Any:
        """Values of a type; integers are few, so that they are often positions."""
        values = self.rng.integers(-3, 5, shape) * (0.5 if "float" in kind else 1)
        return calque.tensor((np.abs(values) if kind == "uint8" else values).tolist()).reshape(shape).to(getattr(calque, kind))

    def hold(self, name: str, value: Any) -> None:
        self.env[name] = value
        self.known.append(name)

    def step(self) -> None:
        """Add a line, if it runs."""
        kind = self.pick((VIEWS, WRITES, MAPS, MAPS, REST))
        a, name = self.pick(self.known[-6:]), f"v{len(self.body)}"
        own = [n for n in self.known if n[0] != "x"]
        if kind is WRITES and not own:
            return
        w = self.pick(own or self.known)
        ndim = eval(a, self.env).dim()
        line = self.pick(kind).format(a=a, b=self.pick(self.known), w=w, d=int(self.rng.integers(-ndim, ndim)) if ndim else 0, t=self.pick(TYPES))
        if kind is WRITES and w.startswith("self") and line.endswith("t_()"):
            return  # which an export refuses
        try:
            exec(line if kind is WRITES else f"{name} = {line}", self.env)  # noqa: S102 - our own text
            if kind is not WRITES and (self.env[name].numel() > 600 or self.env[name].dtype.is_complex):
                return
        except _REFUSED:
            return
        self.body.append(line if kind is WRITES else f"{name} = {line}")
        if kind is not WRITES:
            self.known.append(name)

    @property
    def source(self) -> str:
        """The class as text."""
        names = ", ".join(spec[0] for spec in self.inputs)
        lines = ["class Net(T.nn.Module):", "    def __init__(self):", "        super().__init__()", *[f"        {line}" for line in self.start]]
        body = [*self.body, f"return {', '.join(self.results)},"]
        return "\n".join([*lines, f"    def forward(self, {names}):", *[f"        {line}" for line in body], ""])

    def made(self) -> Any:
        """A new module."""
        text, env = self.source, {"T": calque, "F": calque.nn.functional}
        linecache.cache["<leaving>"] = (len(text), None, text.splitlines(True), "<leaving>")
        exec(compile(text, "<leaving>", "exec"), env)  # noqa: S102 - our own text
        return env["Net"]()  # type: ignore[operator]

    def sample(self, rows: int, seed: int) -> list[Any]:
        """Arguments with so many rows."""
        self.rng = np.random.default_rng([seed, rows])
        return [self.tensor(kind, (rows, *shape[1:]) if first else shape) for _, kind, shape, first in self.inputs]


def numbers(t: Any) -> Any:
    return np.array((t.detach().float() if t.dtype is calque.bfloat16 else t.detach()).numpy())


def apart(found: Any, wanted: list[Any], what: str) -> str:
    """Where results differ by more than rounding."""
    for k, (a, t) in enumerate(zip(found, wanted, strict=True)):
        kind, b = str(t.dtype).rsplit(".", 1)[-1], numbers(t)
        x = np.asarray(a, np.float64)
        tolerance = EXACT.get(kind, 0.0)
        scale = 1 + float(np.abs(np.where(np.isfinite(b), b, 0)).max(initial=0)) if tolerance else 1.0
        if x.shape != b.shape or not np.allclose(x, b.astype(np.float64), tolerance, tolerance * scale, equal_nan=True):
            return f"{what}: result {k} ({kind}) is {x.reshape(-1)[:6]} {x.shape}, not {b.reshape(-1)[:6]} {b.shape}"
    return ""


class Model:
    """An ONNX model in ONNX Runtime, and loaded again, with its state."""

    def __init__(self, exported: Any) -> None:
        import onnxruntime

        file = io.BytesIO()
        exported.onnx(file)
        onnxruntime.set_default_logger_severity(4)
        self.session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
        self.loaded = calque.load_onnx(file.getvalue())
        self.state = {name: numbers(buffer) for name, buffer in exported.named_buffers()}

    def run(self, given: dict[str, Any], count: int) -> tuple[list[Any], list[Any]]:
        """Results of both for the same state; none of ONNX Runtime for types that it has no operator of."""
        names = [i.name for i in self.session.get_inputs()]
        arrays = {name: given[name] if name in given else self.state[name] for name in names}
        loaded = self.loaded(*[calque.tensor(arrays[name]) for name in names])
        back = [numbers(t) for t in (loaded if isinstance(loaded, tuple) else (loaded,))][:count]
        try:
            found = self.session.run(None, arrays)
        except Exception as error:
            if "not supported" not in str(error):
                raise
            return [], back
        for name, value in zip([o.name for o in self.session.get_outputs()][count:], found[count:], strict=True):
            self.state[name.removesuffix("_out")] = value
        return found[:count], back


class Native:
    """A native library for these numbers of rows, with its state."""

    def __init__(self, sketch: Sketch, exported: Any, rows: list[int], folder: Path) -> None:
        from tests.exported.native import Library

        exported.compile(folder, name="m", sizes={"n": rows} if sketch.free else {}, cpu="native")
        self.rows, self.library = rows, Library(folder, "m")
        self.instance = self.library.create()

    def run(self, given: list[Any], wanted: list[Any], rows: int) -> list[Any]:
        found = [np.zeros(tuple(t.shape), numbers(t).dtype) for t in wanted]
        code = self.library.run(self.instance, self.rows.index(rows), [numbers(t) for t in given], found)
        assert code == 0, self.library.error(self.instance)
        return found


def ways(sketch: Sketch, exported: Any, rows: list[int], native: bool, folder: Path) -> tuple[Any, Any]:
    """The model and the library, where there can be one: bfloat16 has no NumPy, and not all operations are native or ONNX Runtime's."""
    model = library = None
    specs = exported.__dict__["_entries"]["forward"]
    types = {spec.dtype for spec in (*specs.inputs, *specs.outputs)} | {b.dtype for b in exported.buffers()}
    if calque.bfloat16 in types:
        return None, None
    if there("onnx") and there("onnxruntime"):
        try:
            model = Model(exported)
        except ExportError:
            pass
        except Exception as error:
            if "NOT_IMPLEMENTED" not in str(error):
                raise
    if native:
        try:
            library = Native(sketch, exported, rows, folder)
        except ExportError:
            pass
    return model, library


def mismatch(seed: int, native: bool = False) -> str:
    """What differs; "" if nothing does."""
    with warnings.catch_warnings(), calque.no_grad(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        sketch = Sketch(seed)
        twin, rows = sketch.made(), [5, 1, 2, 7, 4] if sketch.free else [sketch.rows]
        dynamic = {name: {0: calque.Dim("n", 1, 9)} for name, _, _, first in sketch.inputs if first and sketch.free}
        try:
            exported = calque.export(sketch.made(), tuple(sketch.sample(sketch.rows, 0)), dynamic)
        except ExportError:
            return ""
        file = io.BytesIO()
        exported.save(file)
        file.seek(0)
        loaded = calque.load_exported(file)
        model, library = ways(sketch, exported, rows, native, Path(folder))
        for turn, count in enumerate(rows * (1 if sketch.free else 2)):
            given = sketch.sample(count, turn)
            try:
                wanted = list(twin(*given))
                [t.numpy() for t in wanted if t.dtype is not calque.bfloat16]
            except _REFUSED:
                return ""
            text = apart(map(numbers, exported(*given)), wanted, "the export") or apart(map(numbers, loaded(*given)), wanted, "the file")
            if model is not None and not text:
                run, back = model.run({spec[0]: numbers(t) for spec, t in zip(sketch.inputs, given, strict=True)}, len(wanted))
                text = (apart(run, wanted, "ONNX Runtime") if run else "") or apart(back, wanted, "the loaded model")
                model = model if run else None
            if library is not None and not text:
                text = apart(library.run(given, wanted, count), wanted, "the library")
            if text:
                return f"{count} rows, call {turn}: {text}\n{sketch.inputs}\n{sketch.source}"
    return ""


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.leaving", __doc__, mismatch, 1000, native=False))
