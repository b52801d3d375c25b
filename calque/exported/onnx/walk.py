"""A walk through an ONNX graph, in which every node is computed by the function of its operator. While an export is traced, it becomes a program."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from calque.base.errors import CalqueError, ExportError, UnsafeFileError
from calque.base.extras import need
from calque.base.text import shown
from calque.exported.onnx import control, layers, operators, recurrent, shaping  # noqa: F401  # they fill the table
from calque.exported.onnx.builder import KINDS
from calque.exported.onnx.reading import LEVELS, Broken, OpFunction, OpGraph, OpModel, OpNode, Reader, Ref
from calque.exported.onnx.values import FOLDED, MOST_KNOWN, OPERATORS, Call, Refused, Value, as_value
from calque.ir.symint import SymInt

MOST_NODES = 200_000  # that are walked through, those of a loop as often as it turns
MOST_TERMS = 64  # of a size that is computed from free ones
LARGEST = 1 << 62

Scope = ChainMap[str, Value]


class Walk:
    """Computes a model's graph."""

    def __init__(self, model: OpModel) -> None:
        self.model, self.count, self.depth = model, 0, 0
        self.standard: dict[Any, OpFunction | None] = {}

    def run(self, values: dict[str, Value]) -> list[Value]:
        """The outputs, of inputs and constants by name."""
        self.count = self.depth = 0
        return self.graph(self.model.graph, ChainMap(values), [], self.model.opsets, {})

    def graph(self, graph: OpGraph, scope: Scope, given: list[Value], opsets: dict[str, int], attrs: dict[str, Any]) -> list[Value]:
        """A graph inside of a scope; `given`: its inputs in order."""
        own = scope.new_child({name: Value(array) for name, array in graph.values.items() if name not in scope.maps[0] or given})
        if given:
            if len(given) != len(graph.inputs):
                raise Broken(f"a graph with {len(graph.inputs)} inputs that is given {len(given)}")
            own.update({spec.name: value for spec, value in zip(graph.inputs, given, strict=True)})
        self.nodes(graph.nodes, own, opsets, attrs)
        return [self.found(own, name) for name in graph.outputs]

    def found(self, scope: Scope, name: str) -> Value:
        """A value by its name."""
        if name not in scope:
            raise Broken(f"nothing gives {shown(name)}")
        return scope[name]

    def nodes(self, nodes: list[OpNode], scope: Scope, opsets: dict[str, int], attrs: dict[str, Any]) -> None:
        """Nodes in order."""
        self.depth += 1
        if self.depth > LEVELS:
            raise Broken(f"graphs and functions inside of others, more than {LEVELS} deep")
        for node in nodes:
            self.count += 1
            if self.count > MOST_NODES:
                raise Refused(f"more than {MOST_NODES} nodes, loops included")
            results = self.applied(node, scope, opsets, attrs)
            for k, name in enumerate(node.outputs):
                value = results[k] if k < len(results) else None
                if name and value is not None:  # without a value, what uses the name says that there is none
                    scope[name] = value
        self.depth -= 1

    def applied(self, node: OpNode, scope: Scope, opsets: dict[str, int], outer: dict[str, Any]) -> list[Value | None]:
        """The results of a node."""
        inputs = [self.found(scope, name) if name else None for name in node.inputs]
        attrs = {name: outer.get(v.name) if isinstance(v, Ref) else v for name, v in node.attrs.items()}
        attrs = {name: v for name, v in attrs.items() if v is not None}
        function = self.model.functions.get((node.domain, node.op))
        if function is not None:
            return self.called(function, inputs, attrs)
        call = Call(node, inputs, attrs, opsets.get("", 1), lambda graph, given: self.graph(graph, scope, given, opsets, outer))
        try:
            with np.errstate(all="ignore"):
                return self.computed(call)
        except (Broken, Refused, ExportError, UnsafeFileError) as error:
            if isinstance(error, ExportError | UnsafeFileError) and "in the node" in str(error):
                raise
            kind = UnsafeFileError if isinstance(error, Broken) else ExportError
            raise kind(f"[load_onnx] expected a graph that is one program, but in the node {node} there is {error}") from None
        except CalqueError as error:
            raise ExportError(f"[load_onnx] expected operands that fit, but in the node {node}: {error}") from None
        except (Exception, RecursionError) as error:
            raise UnsafeFileError(f"[load_onnx] expected nodes as the standard has them, but in the node {node}: {error!r}") from None

    def computed(self, call: Call) -> list[Value | None]:
        """What the table says."""
        op, given = call.node.op, call.inputs
        result = None
        if op in FOLDED and given and all(v is not None and v.folds and v.known.size <= MOST_KNOWN for v in given):
            result = FOLDED[op](call)
        if result is None:
            if op not in OPERATORS or call.node.domain:
                function = self.of_standard(call)
                if function is None:
                    raise Refused("an operator that is not there")
                return self.called(function, given, call.attrs)
            result = OPERATORS[op](call)
        values: list[Value | None] = [as_value(r) for r in result] if isinstance(result, tuple) else [as_value(result)]
        for value in values:
            if value is not None and value.known is not None and value.known.dtype == object:
                _bounded(value.known)
        return values

    def called(self, function: OpFunction, inputs: list[Value | None], attrs: dict[str, Any]) -> list[Value | None]:
        """The results of a function."""
        if len(inputs) > len(function.inputs):
            raise Broken(f"a function with {len(function.inputs)} inputs that is given {len(inputs)}")
        scope: Scope = ChainMap({name: v for name, v in zip(function.inputs, inputs, strict=False) if v is not None})
        missing = [name for name in function.inputs if name not in scope]
        nodes = [_without(node, missing) for node in function.nodes] if missing else function.nodes
        self.nodes(nodes, scope, function.opsets, {**{k: v for k, v in function.attrs.items() if v is not None}, **attrs})
        return [scope.get(name) for name in function.outputs]

    def of_standard(self, call: Call) -> OpFunction | None:
        """What the standard writes an operator with, if it does."""
        onnx = need("onnx", "onnx", "onnx", "load_onnx")
        node = call.node
        if node.domain or not onnx.defs.has(node.op, call.opset):
            return None
        schema = onnx.defs.get_schema(node.op, call.opset, "")
        if schema.has_function:
            body = schema.function_body
        elif schema.has_context_dependent_function:
            for name, value in call.attrs.items():
                if name not in schema.attributes or type(value) not in (int, float, str, list):
                    raise Refused(f"the attribute {shown(name)}")
            if not schema.min_input <= len(call.inputs) <= schema.max_input:
                raise Broken(f"{len(call.inputs)} inputs")
            kinds = [None if v is None else onnx.helper.make_tensor_type_proto(KINDS[v.dtype.name], _plain(v.shape)) for v in call.inputs]
            types = [b"" if kind is None else kind.SerializeToString() for kind in kinds]
            body = onnx.FunctionProto()
            body.ParseFromString(schema.get_context_dependent_function(_resolved(onnx, node, call.attrs).SerializeToString(), types))
        else:
            return None
        reader = Reader(None)
        found = reader.function(body)
        found.attrs |= {name: reader.attribute(one.default_value, 1) for name, one in schema.attributes.items() if one.default_value.name}
        found.opsets = {"": call.opset, **{d: max(v, call.opset) for d, v in found.opsets.items() if not d}}
        return found


def _plain(shape: Any) -> list[Any]:
    return [None if isinstance(s, SymInt) else int(s) for s in shape]


def _resolved(onnx: Any, node: OpNode, attrs: dict[str, Any]) -> Any:
    """The node with values for attributes that are those of a function around it."""
    found = onnx.NodeProto()
    found.CopyFrom(node.source)
    if any(isinstance(v, Ref) for v in node.attrs.values()):
        del found.attribute[:]
        found.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attrs.items())
    return found


def _without(node: OpNode, missing: list[str]) -> OpNode:
    """A node of a function whose inputs of these names are left out."""
    if not any(name in missing for name in node.inputs):
        return node
    inputs = tuple("" if name in missing else name for name in node.inputs)
    return OpNode(node.op, node.domain, node.name, inputs, node.outputs, node.attrs, node.source)


def _bounded(array: Any) -> None:
    """Raise for sizes that grow beyond anything."""
    for x in array.reshape(-1).tolist():
        form = x.sizes.forms.get(x.row, {}) if isinstance(x, SymInt) else {}  # type: ignore[attr-defined]
        if len(form) > MOST_TERMS or any(len(factors) > 16 for factors in form):
            raise Refused("a size that is a polynomial of more terms than any size has")
        if isinstance(x, int) and not isinstance(x, SymInt) and abs(x) > LARGEST:
            raise Refused(f"a size of {x.bit_length()} bits")


def every_node(model: OpModel) -> Iterator[OpNode]:
    """All nodes of a model, those in graphs and functions as well."""
    pending = [model.graph.nodes, *[f.nodes for f in model.functions.values()]]
    while pending:
        for node in pending.pop():
            yield node
            for value in node.attrs.values():
                graphs = value if isinstance(value, list) else [value]
                pending += [g.nodes for g in graphs if isinstance(g, OpGraph)]


def require_known(model: OpModel) -> None:
    """Raise if there are operators that nothing computes, with all their names."""
    onnx = need("onnx", "onnx", "onnx", "load_onnx")
    opset = model.opsets.get("", 1)
    missing: Counter[str] = Counter()
    for node in every_node(model):
        if (node.domain, node.op) in model.functions or (not node.domain and node.op in OPERATORS):
            continue
        name = f"{node.domain}.{node.op}" if node.domain else node.op
        schema = onnx.defs.get_schema(node.op, opset, "") if not node.domain and onnx.defs.has(node.op, opset) else None
        if schema is None or not (schema.has_function or schema.has_context_dependent_function):
            missing[name] += 1
    if missing:
        named = ", ".join(f"{name} ({count} times)" if count > 1 else name for name, count in sorted(missing.items()))
        raise ExportError(f"[load_onnx] expected operators that there are, got {named}; write the model without them, or run it elsewhere")
