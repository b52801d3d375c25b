"""Models of ours, of PyTorch's exporters and of the standard's own tests, loaded and compared with ONNX Runtime and with what the standard says."""

from __future__ import annotations

import io
import itertools
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import CheckpointError, ExportError
from tests.exported.models import CASES, Case, apart, tensors
from tests.fuzz.onnx_models import examples, wrong

onnx = pytest.importorskip("onnx")
GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.onnx"))
PLAIN = [case for case in CASES if not case.train]
NUMPY = {"float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"}  # what PyTorch computes with


def outputs(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


def near(found: Any, wanted: Any, rtol: float, atol: float) -> bool:
    """Whether two arrays are close; halves may differ by the last bit of the largest."""
    if wanted.dtype.name in ("bfloat16", "float16"):
        rtol = max(rtol, 2.0**-7 if wanted.dtype.name == "bfloat16" else 2.0**-10)
        wide = wanted.astype(np.float64)
        atol = max(atol, rtol * np.abs(wide[np.isfinite(wide)]).max(initial=0))
    same = found.shape == wanted.shape and found.dtype == wanted.dtype
    return bool(same and np.allclose(found.astype(np.float64), wanted.astype(np.float64), rtol, atol, equal_nan=True))


# ------------------------------------------------------------------------------------------------------- the standard's tests


def expressible(case: Any) -> bool:
    """Whether all that goes in and out is a tensor of a type that we compute with."""
    arrays = [x for part in case.data_sets[0] for x in part]
    return all(isinstance(x, np.ndarray | np.generic) and x.dtype.name in NUMPY for x in arrays)


NOT_HERE = {
    "test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners",  # lengths that are not rounded
}  # fmt: skip
_ASKS = ("fixed={...}", "depends on values")


def outcome(case: Any) -> str:
    """ "", or why a test of the standard does not pass; begins with "refused" if it is said."""
    raw, (inputs, wanted) = case.model.SerializeToString(), case.data_sets[0]
    given = {spec.name: np.asarray(x) for spec, x in zip(case.model.graph.input, inputs, strict=True)}
    fixed: dict[str, Any] = {}
    for kinds, ndim in (("iub", 1), ("iubf", 1), ("", 0)):
        try:
            loaded = calque.load_onnx(raw, fixed=fixed)
            break
        except (ExportError, CheckpointError) as error:
            if not any(text in str(error) for text in _ASKS) or not kinds:
                return f"refused: {error}"
            fixed = {name: x for name, x in given.items() if x.dtype.kind in kinds and x.ndim <= ndim}
    rest = [calque.tensor(x, dtype=calque.base.dtypes.from_numpy_dtype(x.dtype)) for name, x in given.items() if name not in fixed]
    found = [t.detach().numpy() for t in outputs(loaded(*rest))]
    fine = len(found) == len(wanted) and all(near(a, np.asarray(b), case.rtol, case.atol) for a, b in zip(found, wanted, strict=True))
    return "" if fine else "other values"


def standard() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases(None) if case.data_sets and expressible(case)]


def check(cases: list[Any]) -> float:
    """Which share of them passes; none may give other values."""
    results = {case.name: outcome(case) for case in cases}
    assert not [(name, text) for name, text in results.items() if text == "other values" and name not in NOT_HERE]
    return sum(not text for text in results.values()) / len(results)


def test_some_tests_of_the_standard(seed: int) -> None:
    cases = standard()
    assert len(cases) > 1200
    by_operator = {key: list(group) for key, group in itertools.groupby(cases, lambda case: case.model.graph.node[0].op_type)}
    rng = random.Random(seed)
    assert check([rng.choice(group) for group in rng.sample(list(by_operator.values()), 25)]) > 0.5


@pytest.mark.slow
def test_all_tests_of_the_standard() -> None:
    assert check(standard()) > 0.91


# -------------------------------------------------------------------------------------------------------------- whole models


@pytest.mark.parametrize("case", PLAIN, ids=[c.name for c in PLAIN])
def test_there_and_back(case: Case) -> None:
    calque.manual_seed(0)
    model, file = case.make().eval(), io.BytesIO()
    calque.export(model, case.inputs(*case.example), case.dynamic).onnx(file)
    loaded = calque.load_onnx(file.getvalue())
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in loaded.named_parameters()}
    for sizes in case.sizes[:2]:
        given = case.inputs(*sizes)
        assert apart(tensors(model(*given)), outputs(loaded(*given))) < 1e-5


@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_models_of_pytorchs_exporters(path: Path, tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    ort.set_default_logger_severity(3)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    loaded = calque.load_onnx(path)
    loaded.save(tmp_path / "model.calque")
    again, file = calque.load_exported(tmp_path / "model.calque"), io.BytesIO()
    loaded.onnx(file)
    written = ort.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    shape = loaded.__dict__["_entries"]["forward"].inputs[0].shape
    for size in (2, 5):
        x = calque.randn([size if isinstance(s, str) else s for s in shape])
        wanted = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        others = written.run(None, {written.get_inputs()[0].name: x.numpy()})
        for a, b, c, d in zip(outputs(loaded(x)), wanted, outputs(again(x)), others, strict=True):
            assert near(a.detach().numpy(), b, 1e-4, 1e-5) and near(d, b, 1e-4, 1e-5) and calque.equal(a, c)


def test_a_loaded_model_trains() -> None:
    loaded = calque.load_onnx(next(path for path in GOLDEN if path.stem == "torch_cnn"))
    x, labels = calque.randn(8, 3, 16, 20), calque.randint(0, 5, (8,))
    optimizer, losses = calque.optim.Adam(loaded.parameters(), lr=0.05), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(loaded(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


# ------------------------------------------------------------------------------------------------- what is asked for, and wrong files


def made(nodes: list[Any], inputs: Any, values: Any = (), opset: int = 18, results: Any = ("y",), **more: Any) -> bytes:
    """A model of nodes; inputs: {name: (type, shape)}."""
    h = onnx.helper
    given = [h.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    graph = h.make_graph(nodes, "g", given, [h.make_empty_tensor_value_info(name) for name in results], list(values))
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset), *more.pop("domains", [])], **more).SerializeToString()  # type: ignore[no-any-return]


def node(op: str, inputs: list[str], outs: Any = ("y",), **attrs: Any) -> Any:
    return onnx.helper.make_node(op, inputs, list(outs), **attrs)


def constant(name: str, array: Any) -> Any:
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def test_sizes_that_are_computed_stay_free() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]), node("Gather", ["s", "one"], ["m"]), node("Mul", ["n", "m"], ["p"]),
        node("Unsqueeze", ["p", "axes"], ["q"]), node("Concat", ["q", "two"], ["shape"], axis=0), node("Reshape", ["x", "shape"]),
    ]  # fmt: skip
    values = [constant("zero", 0), constant("one", 1), constant("axes", [0]), constant("two", [2])]
    loaded = calque.load_onnx(made(nodes, {"x": (1, ["n", None, 2])}, values), {"n": calque.Dim("rows", 2, 9)})
    assert "rows (2 to 9)" in repr(loaded) and "x_1 (1 to any)" in repr(loaded)
    for n, m in ((2, 5), (9, 1)):
        assert loaded(calque.ones(n, m, 2)).shape == (n * m, 2)
    assert calque.load_onnx(made(nodes, {"x": (1, ["n", None, 2])}, values), {"n": 4, "x_1": 3})(calque.ones(4, 3, 2)).shape == (12, 2)


def test_functions_branches_and_loops() -> None:
    h = onnx.helper
    twice = h.make_function("own", "Scaled", ["a"], ["b"], [node("LeakyRelu", ["a"], ["c"], alpha=0.1), node("Add", ["c", "c"], ["b"])],
                            [h.make_opsetid("", 18)])  # fmt: skip
    own = h.make_node("Scaled", ["x"], ["t"], domain="own")
    sides = [h.make_graph([node(op, ["t", "x"], ["r"])], op, [], [h.make_empty_tensor_value_info("r")]) for op in ("Add", "Mul")]
    body = h.make_graph(
        [node("Identity", ["going"], ["still"]), node("Add", ["v", "x"], ["w"]), node("Identity", ["w"], ["seen"])], "body",
        [h.make_tensor_value_info("i", 7, []), h.make_tensor_value_info("going", 9, []), h.make_tensor_value_info("v", 1, [3])],
        [h.make_empty_tensor_value_info(name) for name in ("still", "w", "seen")],
    )  # fmt: skip
    nodes = [
        own, node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Greater", ["sum", "zero"], ["c"]),
        node("If", ["c"], ["u"], then_branch=sides[0], else_branch=sides[1]), node("Loop", ["three", "", "u"], ["y", "all"], body=body),
    ]  # fmt: skip
    raw = made(nodes, {"x": (1, [3])}, [constant("zero", np.float32(0)), constant("three", 3)], results=("y", "all"), functions=[twice],
               domains=[h.make_opsetid("own", 1)])  # fmt: skip
    loaded = calque.load_onnx(raw)
    for x in (np.array([1, -2, 3], np.float32), np.array([-1, -2, 1], np.float32)):
        t = 2 * np.where(x > 0, x, 0.1 * x)
        u = t + x if x.sum() > 0 else t * x
        y, every = loaded(calque.tensor(x))
        assert near(y.numpy(), (u + 3 * x).astype(np.float32), 1e-6, 1e-6)
        assert near(every.numpy(), np.stack([u + k * x for k in (1, 2, 3)]).astype(np.float32), 1e-6, 1e-6)


def test_names_are_what_python_can_take() -> None:
    values = [constant("train", np.ones(2, np.float32)), constant("a.b", np.ones(2, np.float32)), constant("a", np.ones(2, np.float32))]
    nodes = [node("Add", ["in.put", "train"], ["s"]), node("Add", ["s", "a.b"], ["t"]), node("Add", ["t", "a"])]
    loaded = calque.load_onnx(made(nodes, {"in.put": (1, [2])}, values))
    assert loaded(in_put=calque.zeros(2)).tolist() == [3.0, 3.0] and len(list(loaded.parameters())) == 3
    assert callable(loaded.train) and sorted(loaded.state_dict()) == ["a.b", "a_", "train_"]


def test_weights_in_another_file(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(made([node("Add", ["x", "w"])], {"x": (1, [600])}, [constant("w", np.arange(600, dtype=np.float32))]))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert calque.load_onnx(tmp_path / "m.onnx")(calque.zeros(600)).tolist() == list(range(600))
    with pytest.raises(CheckpointError, match="lies in another file, 'w.bin': load the model by its path"):
        calque.load_onnx((tmp_path / "m.onnx").read_bytes())
    (tmp_path / "w.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="lies behind the end of 'w.bin'"):
        calque.load_onnx(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "w.bin")
    for location in ("../w.bin", "/etc/passwd", "link"):
        next(item for item in model.graph.initializer[0].external_data if item.key == "location").value = location
        (tmp_path / "in" / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(CheckpointError, match="lies outside of the model's folder"):
            calque.load_onnx(tmp_path / "in" / "m.onnx")


def test_a_file_of_weights_is_read_twice_at_most(tmp_path: Path) -> None:
    """Few bytes that name one large file for many constants took all memory, also under several names of that file."""
    (tmp_path / "w0.bin").write_bytes(np.arange(100, dtype=np.float32).tobytes())
    for k in range(1, 8):
        (tmp_path / f"w{k}.bin").hardlink_to(tmp_path / "w0.bin")

    def written(names: list[str], count: int = 100, length: int = 400) -> Path:
        values = [onnx.TensorProto(name=f"c{k}", data_type=1, dims=[count], data_location=1) for k in range(len(names))]
        for value, name in zip(values, names, strict=True):
            for key, text in (("location", name), ("length", str(length))):
                value.external_data.add(key=key, value=text)
        nodes = [node("Sum", ["x", *[value.name for value in values]])]
        (tmp_path / "m.onnx").write_bytes(made(nodes, {"x": (1, [count])}, values))
        return tmp_path / "m.onnx"

    assert calque.load_onnx(written(["w0.bin", "w1.bin"]))(calque.zeros(100)).tolist() == [2.0 * k for k in range(100)]  # tied weights, say
    for names in (["w0.bin"] * 8, [f"w{k}.bin" for k in range(8)]):
        with pytest.raises(CheckpointError, match=r"constants, up to 'c2', that take more than twice the 400 bytes of 'w[02].bin'"):
            calque.load_onnx(written(names))
    with pytest.raises(CheckpointError, match=r"the constant 'c0' has 400 bytes in 'w0.bin', and 12 by its sizes"):
        calque.load_onnx(written(["w0.bin"], 3))


def test_wrong_models_are_refused() -> None:
    x = {"x": (1, [2, 3])}
    h = onnx.helper
    squares = [node("Shape", ["x"], ["s0"]), *[node("Mul", [f"s{k}", f"s{k}"], [f"s{k + 1}"]) for k in range(40)], node("Identity", ["s40"])]
    again = h.make_function("own", "F", ["a"], ["b"], [h.make_node("F", ["a"], ["b"], domain="own")], [h.make_opsetid("", 18)])
    endless = made([h.make_node("F", ["x"], ["y"], domain="own")], x, functions=[again], domains=[h.make_opsetid("own", 1)])
    doubled = []
    for k in range(1, 20):
        twice = [h.make_node(f"F{k - 1}", [a], [b], domain="own") for a, b in (("a", "c"), ("c", "b"))]
        doubled.append(h.make_function("own", f"F{k}", ["a"], ["b"], twice, [h.make_opsetid("own", 1)]))
    doubled.append(h.make_function("own", "F0", ["a"], ["b"], [node("Shape", ["a"], ["b"])], [h.make_opsetid("", 18)]))
    many = made([h.make_node("F19", ["x"], ["y"], domain="own")], x, functions=doubled, domains=[h.make_opsetid("own", 1)])
    empty = constant("w", np.ones((0, 3), np.float32))
    empty.dims[1] = 1 << 61
    wrong_files: list[tuple[bytes, type[Exception], str]] = [
        (b"", CheckpointError, "no graph"), (b"\x00" * 99, CheckpointError, "expected a sound ONNX model"),
        (made([node("Unique", ["x"]), node("Unique", ["x"], ["z"]), h.make_node("Foo", ["x"], ["q"], domain="com.me")], x), ExportError,
         r"expected operators that there are, got Unique \(2 times\), com.me.Foo"),
        (made([node("Add", ["x", "nobody"])], x), CheckpointError, "nothing gives 'nobody'"),
        (made([node("Conv", ["x", "x"])], x), ExportError, "in the node Conv"),
        (made([node("Transpose", ["x"], perm=[0, 0])], x), ExportError, "an axis twice"),
        (made([node("Reshape", ["x", "s"])], {**x, "s": (7, [2])}), ExportError, r"give their values by its name in fixed=\{...\}"),
        (made([node("Relu", ["x"])], x, opset=5), ExportError, "expected operators of a version from 7 to"),
        (made([node("Relu", ["x"])], {"x": (8, [2])}), CheckpointError, r"a type of elements that is not read \(number 8\)"),
        (made([node("Relu", ["x"])], {"x": (1, None)}), ExportError, "expected inputs that say how many dims they have"),
        (made(squares, {"x": (1, ["n", "m"])}), ExportError, "polynomial"),
        (made([node("Relu", ["x"])], {"x": (1, ["n", 1 << 62])}), CheckpointError, "has the sizes"),
        (made([node("Relu", ["x"])], {"x": (1, [0, 1 << 62, 4])}), CheckpointError, "has the sizes"),  # nothing is held, and memory was asked for
        (made([node("Relu", ["x"])], {"x": (1, [1 << 31, 0, 1 << 31])}), CheckpointError, "has the sizes"),
        (made([node("Add", ["x", "w"])], x, [empty]), CheckpointError, "has the sizes"),
        (endless, CheckpointError, "deep"), (many, ExportError, "more than 200000 nodes"),
    ]  # fmt: skip
    for raw, kind, text in wrong_files:
        with pytest.raises(kind, match=text):
            calque.load_onnx(raw)
    for what in (3, None, io.StringIO("text")):
        with pytest.raises(TypeError, match=r"\[load_onnx\] expected a path, bytes or a file opened in binary mode, got"):
            calque.load_onnx(what)  # type: ignore[arg-type]
    tensor = constant("w", np.ones(3, np.float32))
    tensor.dims[0] = 10**12
    with pytest.raises(CheckpointError, match="has 12 bytes for the sizes"):
        calque.load_onnx(made([node("Add", ["x", "w"])], x, [tensor]))
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        calque.load_onnx("nowhere.onnx")
    fine = made([node("Relu", ["x"])], {"x": (1, ["n", 2])})
    for arguments, kind, text in (
        ({"dynamic": {"m": 3}}, ValueError, r"expected names of free sizes in dynamic \(n\), got 'm'"),
        ({"dynamic": {"n": "b"}}, ValueError, r"expected a number or a Dim in dynamic\['n'\], got str"),
        ({"fixed": {"z": 3}}, ValueError, r"expected names of inputs in fixed \(x\), got 'z'"),
    ):
        with pytest.raises(kind, match=text):
            calque.load_onnx(fine, **arguments)  # type: ignore[arg-type]


def test_changed_models_are_refused_or_run(seed: int) -> None:
    models = examples()
    assert not [text for k in range(25) if (text := wrong(seed * 1000 + k, models))]


FOLDED_CASES = [
    ("Div", {}, ((5,), (5,))), ("Mod", {"fmod": 1}, ((5,), (5,))), ("Add", {}, ((5,), (5,))), ("Sqrt", {}, ((5,),)), ("ReduceSum", {}, ((600,),)),
    ("ReduceProd", {}, ((5,),)), ("ReduceMax", {}, ((0, 2),)), ("ReduceMin", {}, ((0, 2),)), ("ReduceMax", {}, ((5,),)),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_what_is_computed_when_a_model_is_loaded_is_what_its_program_computes(kind: str, rng: Any) -> None:
    number = getattr(onnx.TensorProto, {"float32": "FLOAT"}.get(kind, kind.upper()))
    for op, attrs, shapes in FOLDED_CASES:
        given = [(1 + rng.random(shape)).astype(np.float32) for shape in shapes]
        node = onnx.helper.make_node(op, [f"x{k}" for k in range(len(given))], ["y"], **attrs)
        ends = [onnx.helper.make_tensor_value_info("y", number, None)]
        held = [onnx.helper.make_tensor(f"x{k}", number, x.shape, x.reshape(-1).tolist()) for k, x in enumerate(given)]
        inputs = [onnx.helper.make_tensor_value_info(f"x{k}", number, x.shape) for k, x in enumerate(given)]
        found = []
        for nodes, start, kept in (([node], inputs, []), ([onnx.helper.make_node("Constant", [], [t.name], value=t) for t in held] + [node], [], [])):
            graph = onnx.helper.make_graph(nodes, "g", start, ends, kept)
            loaded = calque.load_onnx(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]).SerializeToString())
            found.append(loaded(*[calque.tensor(x).to(getattr(calque, kind)) for x in given if start]).detach().numpy())
        assert near(found[1], found[0], 1e-6, 1e-6), op
