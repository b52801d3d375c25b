"""ONNX models that somebody has changed: `python -m tests.fuzz.onnx_models --count 10000`. Whatever is in a file, loading it raises
CheckpointError or ExportError, or gives a program that runs or raises as programs do; no mutant may end the process, take long, or get another
exception out."""

from __future__ import annotations

import contextlib
import io
import random
import resource
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import calque
from calque.base.errors import CalqueError, CheckpointError, ExportError
from tests.exported.models import CASES
from tests.fuzz.command import main

NUMBERS = [0, 1, -1, 2, 3, 7, 16, 99, 2**31, -(2**31), 2**40, 2**62, -(2**63)]
NAMES = ["", "x", "input", "v1", "v5", "\x00", "a.b", "../x", "é", "forward", "training", "0"]
GOLDEN = Path(__file__).parent.parent / "exported" / "golden"


def examples() -> list[Any]:
    """Models of ours and of PyTorch's exporters."""
    import onnx

    found = [onnx.load(path) for path in sorted(GOLDEN.glob("*.onnx"))]
    for case in [c for c in CASES if not c.train][:6]:
        calque.manual_seed(0)
        file = io.BytesIO()
        calque.export(case.make().eval(), case.inputs(*case.example), case.dynamic).onnx(file)
        found.append(onnx.load_model_from_string(file.getvalue()))
    return found


def _operators() -> list[str]:
    from calque.exported.onnx.operators import OPERATORS

    return sorted(OPERATORS)


def changed_node(rng: random.Random, graph: Any) -> None:
    """One thing of one node."""
    node, kind = rng.choice(graph.node), rng.random()
    known = [name for other in graph.node for name in other.output] + [t.name for t in graph.initializer] + [i.name for i in graph.input]
    if kind < 0.2:
        node.op_type = rng.choice(_operators())
    elif kind < 0.5 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(known) if rng.random() < 0.8 else rng.choice(NAMES)
    elif kind < 0.6:
        node.input.append(rng.choice(known))
    elif kind < 0.65 and node.input:
        del node.input[rng.randrange(len(node.input)) :]
    elif kind < 0.7 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice([*known, *NAMES])
    elif kind < 0.95 and node.attribute:
        changed_attribute(rng, rng.choice(node.attribute))
    else:
        at = rng.randrange(len(graph.node))
        other = rng.choice(graph.node)
        graph.node.insert(at, other)


def changed_attribute(rng: random.Random, attribute: Any) -> None:
    """One attribute."""
    kind = rng.random()
    if kind < 0.1:
        attribute.type = rng.randrange(15)
    elif kind < 0.2:
        attribute.name = rng.choice(["axis", "axes", "perm", "to", "pads", "kernel_shape", "group", "value", "direction", *NAMES])
    elif kind < 0.4:
        attribute.i = rng.choice(NUMBERS)
    elif attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
        if rng.random() < 0.3:
            attribute.ints.append(rng.choice(NUMBERS))
    elif attribute.HasField("t"):
        changed_tensor(rng, attribute.t)
    else:
        attribute.f, attribute.s = rng.choice([0.0, -1.0, 1e30, float("nan")]), rng.choice([b"", b"x", b"SAME_UPPER", b"linear"])


def changed_tensor(rng: random.Random, tensor: Any) -> None:
    """A constant: its sizes, its type, its values."""
    kind = rng.random()
    if kind < 0.3 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
    elif kind < 0.4:
        tensor.data_type = rng.randrange(27)
    elif kind < 0.9 and tensor.raw_data:
        raw = bytearray(tensor.raw_data)
        size = 8 if tensor.data_type == 7 and len(raw) >= 8 else 1
        at = rng.randrange(len(raw) // size) * size
        raw[at : at + size] = rng.choice(NUMBERS).to_bytes(8, "little", signed=True)[:size]
        tensor.raw_data = bytes(raw)
    else:
        tensor.data_location = 1
        tensor.external_data.add(key="location", value=rng.choice(["../../etc/passwd", "/etc/passwd", "weights", ""]))


def changed_structure(rng: random.Random, model: Any) -> None:
    """Hostile nodes: graphs inside of nodes, functions that call each other, values that grow."""
    from onnx import helper

    graph = model.graph
    known = [name for node in graph.node for name in node.output] + [t.name for t in graph.initializer] + [i.name for i in graph.input]
    at, kind = rng.randrange(len(graph.node) + 1), rng.choice(["inside", "functions", "growing", "sized", "constant"])
    name, value = f"h{rng.randrange(3)}", rng.choice(known)
    if kind == "inside":
        node = rng.choice(graph.node)
        typed = [helper.make_tensor_value_info(one, rng.randrange(17), rng.choice([None, [], ["batch", 3]])) for one in node.output]
        body = helper.make_graph([node], "body", rng.choice([[], typed]), typed)
        for _ in range(rng.choice([0, 0, 1, 12])):
            body = helper.make_graph([_around(rng, helper, body, value, list(node.output))], "body", [], typed)
        added = [_around(rng, helper, body, value, list(node.output))]
    elif kind == "functions":
        opsets, fans = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)], rng.choice([1, 2, 30])
        for level in range(rng.choice([1, 3, 20])):
            called = f"f{rng.choice([level - 1, level - 1, level, level + 1])}"
            nodes = [helper.make_node(called, ["x"], ["y"], domain="own") for _ in range(fans)]
            nodes = nodes if level else [helper.make_node("Neg", ["x"], ["y"])]
            model.functions.append(helper.make_function("own", f"f{level}", ["x"], ["y"], nodes, opsets, []))
        model.opset_import.append(helper.make_opsetid("own", 1))
        added = [helper.make_node(f"f{rng.randrange(len(model.functions))}", [value], [name], domain="own")]
    elif kind == "growing":
        op, attrs = rng.choice([("Concat", {"axis": 0}), ("Mul", {}), ("Add", {}), ("Einsum", {"equation": "a,b->ab"}), ("Pow", {})])
        names = [value, *[f"{name}_{k}" for k in range(rng.choice([3, 12, 60]))]]
        added = [helper.make_node(op, [a, a], [b], **attrs) for a, b in pairwise(names)]
    elif kind == "sized":
        sizes = [rng.choice(NUMBERS) for _ in range(rng.choice([1, 1, 2, 70]))]
        added = [helper.make_node("Constant", [], [name], value_ints=sizes)]
        op = rng.choice(
            ["Expand", "Tile", "Reshape", "Pad", "Resize", "OneHot", "Range", "Slice", "TopK", "Split", "ConstantOfShape", "CumSum", "Size"]
        )
        inputs = [[name], [value, name], [value, name, name], [name, name, name], [value, "", "", name]][rng.randrange(5)]
        added.append(helper.make_node(op, inputs, [f"{name}_of"], **({} if rng.random() < 0.8 else {"axis": rng.choice(NUMBERS)})))
        if rng.random() < 0.5 and graph.output:
            graph.output[0].name = f"{name}_of"
    else:
        given = rng.choice([{"value_float": 1e38}, {"value_int": 2**62}, {"value_string": "x"}, {"value_ints": [-(2**63)] * 9}, {}])
        added = [helper.make_node("Constant", [], [value], **given)]
    for one in reversed(added):
        graph.node.insert(at, one)


def _around(rng: random.Random, helper: Any, body: Any, value: str, outputs: list[str]) -> Any:
    """A node that has a graph inside."""
    op = rng.choice(["If", "Loop", "Scan"])
    if op == "If":
        return helper.make_node("If", [value], outputs, then_branch=body, else_branch=body)
    if op == "Loop":
        return helper.make_node("Loop", [rng.choice([value, ""]), rng.choice([value, ""]), value], outputs, body=body)
    return helper.make_node("Scan", [value], outputs, body=body, num_scan_inputs=rng.choice([0, 1, -1, 2**40]))


def mutant(seed: int, models: list[Any]) -> bytes:
    """The bytes of a model that is not what it was."""
    rng = random.Random(seed)
    model = type(models[0])()
    model.CopyFrom(rng.choice(models))
    graph = model.graph
    for _ in range(rng.choice([1, 1, 2, 4])):
        kind = rng.random()
        if kind < 0.15:
            changed_structure(rng, model)
        elif kind < 0.6:
            changed_node(rng, graph)
        elif kind < 0.75 and graph.initializer:
            changed_tensor(rng, rng.choice(graph.initializer))
        elif kind < 0.85:
            shape = rng.choice(graph.input).type.tensor_type.shape if graph.input else None
            if shape is not None and shape.dim:
                one = rng.choice(shape.dim)
                if rng.random() < 0.5:
                    one.dim_value = rng.choice(NUMBERS)
                else:
                    one.dim_param = rng.choice([*NAMES, "batch", "time"])
        elif kind < 0.9:
            model.opset_import[0].version = rng.choice([1, 7, 9, 11, 12, 13, 17, 18, 21, 24, 99, -1])
        elif model.metadata_props:
            rng.choice(model.metadata_props).value = rng.choice(["batch 1 any 1", "batch -1 -1 0", "x\ny", "batch 5 2 1", "batch " + "9" * 30])
    raw = bytearray(model.SerializeToString())
    if rng.random() < 0.2:
        for _ in range(rng.choice([1, 3])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        del raw[rng.choice([len(raw), rng.randrange(len(raw))]) :]
    return bytes(raw)


def wrong(seed: int, models: list[Any]) -> str:
    """What is wrong with how this mutant is taken; "" if nothing is."""
    raw, start = mutant(seed, models), time.process_time()
    try:
        exported = calque.load_onnx(raw)
    except (CheckpointError, ExportError) as error:
        text, used = str(error), time.process_time() - start
        return "" if text.startswith(("[load_onnx]", "[export]")) and used < 20 else f"{used:.1f} s: {text}"
    except calque.base.errors.CalqueError as error:
        return f"{type(error).__name__}: {error}"
    entry = exported.__dict__["_entries"]["forward"]
    dims = {d.name: d for d in entry.dims}
    shapes = [[s if isinstance(s, int) else max(dims[s].min, 3 * dims[s].multiple) for s in spec.shape] for spec in entry.inputs]
    if any(calque.Size(shape).numel() > 1 << 20 for shape in shapes) or _largest(entry) > 1 << 26:
        return ""
    with warnings.catch_warnings(), contextlib.suppress(CalqueError):
        warnings.simplefilter("ignore")
        for t in _flat(exported(*[calque.ones(shape).to(spec.dtype) for shape, spec in zip(shapes, entry.inputs, strict=True)])):
            t.detach().numpy()
    return ""


def _largest(entry: Any) -> int:
    """Elements of the largest value of the program."""
    nodes = entry.variants[0].program.nodes
    return max(calque.Size([int(getattr(s, "value", s)) for s in node.shape]).numel() for node in nodes)


def _flat(x: Any) -> Any:
    return x if isinstance(x, tuple) else (x,)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    models = examples()
    raise SystemExit(main("tests.fuzz.onnx_models", __doc__, lambda seed: wrong(seed, models)[:600], 1000))
