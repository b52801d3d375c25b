"""StableHLO text of exports, executed by XLA's CPU client without the model: what it computes is what the export computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError, ExportError
from tests.exported.models import CASES, apart, tensors

jax = pytest.importorskip("jax")


def executed(text: str, arrays: list[Any]) -> list[Any]:
    device = jax.local_devices(backend="cpu")[0]
    program = device.client.compile_and_load(text, [device])
    with jax.enable_x64(True):
        results = program.execute_sharded([jax.device_put(a, device) for a in arrays]).disassemble_into_single_device_arrays()
    return [np.asarray(one[0]) for one in results]


def sizes_of(exported: Any, given: Any) -> dict[str, int]:
    specs = exported.__dict__["_entries"]["forward"].inputs
    return {s: n for spec, t in zip(specs, given, strict=True) for s, n in zip(spec.shape, t.shape, strict=True) if isinstance(s, str)}


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_xla_computes_what_the_export_computes(case: Any) -> None:
    calque.manual_seed(0)
    exported = calque.export(case.make().train(case.train), case.inputs(*case.example), case.dynamic)
    values = dict(exported.named_parameters()) | dict(exported.named_buffers())
    given = case.inputs(*case.sizes[-1])
    text = exported.stablehlo(sizes=sizes_of(exported, given))
    entry = exported.__dict__["_entries"]["forward"]
    variant, _ = entry.variant(entry.sizes(given))
    names = [line.split(": ")[1] for line in text.splitlines() if line.startswith("// argument")]
    assert names[len(given) :] == list(variant.reads)
    held = [values[name].detach().numpy().copy() for name in variant.reads]
    found = executed(text, [*(t.numpy() for t in given), *held])
    wanted = [*tensors(exported(*given)), *(values[name] for name in variant.writes)]  # which the call has written
    assert bool(variant.writes) == case.train
    assert apart([calque.tensor(a) for a in found], wanted) < 2e-5


@pytest.mark.parametrize("bits", [8, 4])
def test_int8_and_int4_weights_stay_integers(bits: int) -> None:
    model = nn.utils.quantize_(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), bits=bits, group_size=8)
    for rows in (2, 9):
        x = calque.randn(rows, 16)
        text = calque.export(model, x).stablehlo()
        assert f"tensor<32x{2 * bits}xi8>" in text
        held = dict(model.named_buffers()) | dict(model.named_parameters())
        names = [line.split(": ")[1] for line in text.splitlines() if line.startswith("// argument")]
        (found,) = executed(text, [x.numpy(), *(held[name].detach().numpy() for name in names[1:])])
        assert apart(calque.tensor(found), model(x)) < 1e-5


def test_bools_are_added_at_positions() -> None:
    """JAX adds no bools: an export with such a sum raised a TypeError of JAX's."""
    x, i = calque.tensor([True, False, False, True]), calque.tensor([1, 1, 2, 3])
    for added in (lambda x, i: x.scatter_add(0, i, x), lambda x, i: (~x).index_add(0, i, x), lambda x, i: x.index_put((i,), x, accumulate=True)):
        assert executed(calque.export(added, (x, i)).stablehlo(), [x.numpy(), i.numpy()])[0].tolist() == added(x, i).tolist()


def test_what_is_refused() -> None:
    exported = calque.export(lambda x: x.relu(), calque.ones(2, 3), {"x": {0: calque.Dim("rows", 1, 8)}})
    with pytest.raises(ArgumentError, match="rows"):
        exported.stablehlo()
    with pytest.raises(ArgumentError, match="rows"):
        exported.stablehlo(sizes={"rows": 9})
    with pytest.raises(ArgumentError, match="'columns'"):
        exported.stablehlo(sizes={"rows": 2, "columns": 3})
    with pytest.raises(ArgumentError, match="'backward'"):
        exported.stablehlo("backward", {"rows": 2})
    with pytest.raises(ExportError, match=r"test_stablehlo\.py"):
        calque.export(lambda x: calque.fft.fft(x).abs(), calque.ones(8)).stablehlo()
