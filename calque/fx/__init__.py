"""`torch.fx`: a module's steps as a graph of nodes, traced by running it on proxies, changed in Python, and run again as generated code.

`node` and `graph` are the data and their text, `proxy` and `tracer` make them, `module` runs them, `interpreter` walks through them, `rewriter`
replaces pieces. `functions` knows which functions of Calque are nodes, and what code calls them.
"""

import sys

from calque.functional.blame import publish as _publish
from calque.fx.functions import public_functions
from calque.fx.graph import Graph, PythonCode
from calque.fx.interpreter import Interpreter, Transformer
from calque.fx.module import GraphModule
from calque.fx.node import Node, has_side_effect, immutable_dict, immutable_list, map_aggregate, map_arg
from calque.fx.proxy import Attribute, GraphAppendingTracer, Proxy, TraceError, TracerBase
from calque.fx.rewriter import Match, replace_pattern
from calque.fx.tracer import PH, PHBase, Tracer, symbolic_trace, wrap

__all__ = [
    "Attribute", "Graph", "GraphAppendingTracer", "GraphModule", "Interpreter", "Match", "Node", "PH", "PHBase", "Proxy", "PythonCode", "TraceError",
    "Tracer", "TracerBase", "Transformer", "has_side_effect", "immutable_dict", "immutable_list", "map_aggregate", "map_arg", "public_functions",
    "replace_pattern", "symbolic_trace", "wrap",
]  # fmt: skip

_publish(sys.modules[__name__])
