"""`torch.fx.passes` and `torch.fx.experimental.optimization`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = '''
import torch
from torch import fx, nn
from torch.fx.experimental.optimization import extract_subgraph, fuse, remove_dropout
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.fx.passes.infra.pass_manager import PassManager, pass_result_wrapper, this_before_that_pass_constraint
from torch.fx.passes.shape_prop import ShapeProp, TensorMetadata
from torch.fx.passes.split_module import split_module
from torch.fx.passes.tools_common import get_node_target, is_node_output_tensor, legalize_graph, stable_topological_sort

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.block = nn.Parameter(torch.rand(3, 4)), nn.Sequential(nn.Linear(4, 5))

    def forward(self, x, y=1.0):
        z = self.block(x + self.shift).clamp(min=0.0)
        w = self.block(x * y).tanh()
        return z + w, {"s": (z - w).sum()}


net, x = Net(), torch.rand(3, 4)
traced = fx.symbolic_trace(net)
for options in ({}, {"keep_original_order": True}, {"tuple_return": True}, {"partition_affix": "pp"}, {"keep_original_input_name": False}):
    names, seen = {}, []
    split = split_module(traced, net, lambda node: seen.append(node) or (len(seen) - 1) // 4, names, **options)
    prefix = "submod_pp_" if "partition_affix" in options else "submod_"
    assert split.meta["partition_names"] == {prefix + "0", prefix + "1", prefix + "2"} == {n for n, _ in split.named_children()}, split
    assert names[prefix + "0.block_0"] == "block.0"
    (a, rest), (b, other) = split(x, 2.0), net(x, 2.0)
    assert a.equal(b) and rest["s"].equal(other["s"])
assert [n.name for n in split.submod_0.graph.nodes if n.op == "placeholder"] == ["arg_0", "arg_1", "arg_2"]
try:
    split_module(traced, net, lambda node: seen.append(node) or len(seen) % 2)
except RuntimeError as error:
    assert "cycle exists between partitions" in str(error)
else:
    raise SystemExit("a cycle went through")

ShapeProp(traced).propagate(x, 2.0)
kinds = {n.name: n.meta["type"].__name__ for n in traced.graph.nodes}
assert kinds["y"] == "float" and kinds["output"] == "tuple"
found = next(n for n in traced.graph.nodes if n.name == "add").meta["tensor_meta"]
assert isinstance(found, TensorMetadata) and tuple(found.shape) == (3, 4) and found.memory_format is torch.contiguous_format
assert is_node_output_tensor(list(traced.graph.nodes)[0])

layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(128, 4), nn.BatchNorm1d(4))
with torch.no_grad():
    layers(torch.rand(2, 3, 6, 6))
layers.eval()
image = torch.rand(2, 3, 6, 6)
fused = fuse(layers)
assert not [m for m in fused.modules() if isinstance(m, (nn.BatchNorm2d, nn.BatchNorm1d))] and torch.allclose(fused(image), layers(image), atol=1e-5)
plain = remove_dropout(layers.train())
assert not [m for m in plain.modules() if isinstance(m, nn.Dropout)] and len(layers) == 7


class Multiply(PassBase):
    def call(self, module):
        adds = [n for n in module.graph.nodes if n.op == "call_function" and n.target.__name__ == "add"]
        for node in adds:
            node.target = torch.mul
        return PassResult(module, bool(adds))


sums = fx.symbolic_trace(lambda x: (x + 2) + x)
first, last = pass_result_wrapper(lambda module: module.graph.lint()), Multiply()
manager = PassManager([last, first], [this_before_that_pass_constraint(first, last)], steps=2)
assert manager(sums).modified and manager.passes == [first, last] and sums(torch.full((1,), 3.0)).tolist() == [18.0]


def fails(module):
    raise ValueError("no")


try:
    PassManager([first, fails])(sums)
except Exception as error:
    assert "when running the 'fails' pass after the following passes: [" in str(error), error

chain = fx.symbolic_trace(lambda x, y: torch.relu(x - y) * y)
nodes = list(chain.graph.nodes)
part = extract_subgraph(chain, nodes[2:4], nodes[:2], [nodes[3]])
assert part(torch.ones(1), torch.zeros(1))[0].tolist() == [1.0]
nodes[2].append(nodes[1])  # behind the node that uses it
for sort in (legalize_graph, stable_topological_sort):
    assert sort(chain)(torch.full((1,), 3.0), torch.ones(1)).tolist() == [2.0]
    chain.graph.lint()
assert get_node_target({}, list(chain.graph.nodes)[3]) == "torch.relu"
print("done")
'''


def test_passes_do_what_pytorchs_do(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "-m", "calque", "run", str(tmp_path / "program.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-3000:]
