"""Functions of PyTorch's compiled half (`torch._VF`), and names that only its own source puts into `torch`."""

from __future__ import annotations

import math
import os
from collections import OrderedDict, namedtuple
from types import MappingProxyType

import pytest

import calque
from calque import nn
from calque.compat.face import face
from calque.compat.torch import _VF

torch = face("torch")


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("mode", "kind"), [("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn_tanh", nn.RNN)])
def test_recurrent_layers_over_weights_of_others(mode: str, kind: type, both: bool) -> None:
    layer = kind(3, 4, 2, bidirectional=both)
    x, h = calque.randn(5, 2, 3), calque.randn(4 if both else 2, 2, 4)
    hx = (h, h * 0.5) if mode == "lstm" else h
    expected, last = layer(x, hx)
    found = getattr(torch, mode)(x, hx, layer._flat_weights, True, 2, 0.0, False, both, False)
    assert found[0].equal(expected)
    assert found[1].equal(last[0] if mode == "lstm" else last)
    turned = getattr(_VF, mode)(x.transpose(0, 1), hx, layer._flat_weights, True, 2, 0.0, False, both, True)[0]
    assert calque.allclose(turned.transpose(0, 1), expected, atol=1e-6)  # another order in memory
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3])
    data = getattr(_VF, mode)(packed.data, packed.batch_sizes, hx, layer._flat_weights, True, 2, 0.0, False, both)[0]
    assert calque.allclose(data, layer(packed, hx)[0].data, atol=1e-6)
    data.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_wrong_numbers_of_weights() -> None:
    layer = nn.LSTM(3, 4, 2)
    with pytest.raises(ValueError, match=r"\[lstm\] expected weights of 3 directions and layers, got 8 tensors"):
        _VF.lstm(calque.ones(5, 2, 3), (calque.zeros(3, 2, 4),) * 2, layer._flat_weights, True, 3, 0.0, False, False, False)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind: type) -> None:
    cell, x, h = kind(3, 4), calque.randn(2, 3), calque.randn(2, 4)
    name = {nn.LSTMCell: "lstm_cell", nn.GRUCell: "gru_cell", nn.RNNCell: "rnn_tanh_cell"}[kind]
    state = (h, h + 1) if kind is nn.LSTMCell else h
    expected, found = cell(x, state), getattr(torch, name)(x, state, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    for ours, theirs in zip(found if kind is nn.LSTMCell else [found], expected if kind is nn.LSTMCell else [expected], strict=True):
        assert calque.allclose(ours, theirs, atol=1e-6)


def test_losses_take_numbers_as_reduction() -> None:
    x, y = calque.tensor([[0.2, 0.8], [0.6, 0.4]]), calque.tensor([[0.5, 0.5], [0.1, 0.9]])
    for code, word in ((0, "none"), (2, "sum")):
        assert torch.kl_div(x.log(), y, code).equal(nn.functional.kl_div(x.log(), y, reduction=word))
        found = torch.binary_cross_entropy_with_logits(x, y, None, None, code)
        assert found.equal(nn.functional.binary_cross_entropy_with_logits(x, y, reduction=word))
    assert torch.margin_ranking_loss(x, y, x.sign()).equal(nn.functional.margin_ranking_loss(x, y, x.sign()))
    with pytest.raises(ValueError, match=r"expected a reduction of 0 \(none\), 1 \(mean\) or 2 \(sum\), got 'mean'"):
        torch.kl_div(x, y, "mean")


def test_embeddings() -> None:
    weight, index = calque.arange(30.0).reshape(10, 3), calque.tensor([1, 2, 4, 5, 4, 3])
    assert torch.embedding(weight, index).equal(weight[index])
    out, bag, size, _ = torch.embedding_bag(weight, index, calque.tensor([0, 2]))
    assert out.tolist() == [[9.0, 11.0, 13.0], [48.0, 52.0, 56.0]]
    assert (bag.tolist(), size.tolist()) == ([0, 0, 1, 1, 1, 1], [2, 4])
    norms = torch.embedding_renorm_(weight, index, 2.0, 2.0).norm(dim=1)
    assert norms[index].tolist() == pytest.approx([2.0] * 6, rel=1e-5)
    assert norms[9].item() > 2.0


def test_dropout_of_channels() -> None:
    calque.manual_seed(0)
    x = torch.feature_dropout(calque.ones(8, 16, 5), 0.5, True)
    assert ((x == 0) | (x == 2)).all()
    assert (x.sum(2) % 10 == 0).all()
    y, kept = torch.native_dropout(calque.ones(100), 0.25, True)
    assert y.equal(kept / 0.75)
    assert torch.feature_dropout(x, 0.5, False) is x


def test_extreme_eigenvalues() -> None:
    calque.manual_seed(1)
    a, b = calque.randn(9, 9, dtype=calque.float64), calque.randn(9, 9, dtype=calque.float64)
    a, b = a @ a.mT, b @ b.mT + calque.eye(9, dtype=calque.float64)
    values, vectors = torch.lobpcg(a, k=2)
    assert calque.allclose(a @ vectors, vectors * values)
    values, vectors = torch.lobpcg(a, k=3, B=b, largest=False)
    assert calque.allclose(a @ vectors, b @ vectors * values)
    assert values.tolist() == sorted(values.tolist())
    with pytest.raises(ValueError, match=r"expected a matrix of at least 3 k = 12 rows, got 9"):
        torch.lobpcg(a, k=4)


def test_a_file_as_memory(tmp_path: object) -> None:
    path = f"{tmp_path}/numbers.bin"
    calque.arange(6.0).numpy().tofile(path)
    assert torch.from_file(path, size=4).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_norms() -> None:
    v = calque.arange(6.0).reshape(2, 3)
    assert torch.norm_except_dim(v, 2, 0).tolist() == [[pytest.approx(5**0.5)], [pytest.approx(50**0.5)]]
    assert torch.norm_except_dim(v, 2, -1).item() == pytest.approx(55**0.5)
    assert torch.frobenius_norm(v, (0, 1)).item() == pytest.approx(55**0.5)
    assert torch.nuclear_norm(calque.eye(3)).item() == pytest.approx(3.0)


def test_loops() -> None:
    assert torch.while_loop(lambda a, n: a < 100, lambda a, n: (a * 2, n + 1), (calque.tensor(1), calque.tensor(0)))[1].item() == 7


def test_what_source_leaves_in_the_module() -> None:
    assert torch.math is math
    assert not isinstance(calque.ones(1), torch.FloatStorage)
    assert torch.LongStorage.dtype is calque.int64
    assert repr(torch.per_tensor_affine) == "torch.per_tensor_affine"
    assert isinstance(torch.TensorType, type)
    with pytest.raises(RuntimeError, match=r"\[symeig\] .*use torch.linalg.eigh instead"):
        torch.symeig(calque.eye(2))
    with pytest.raises(AttributeError, match=r"calque\.nn\.utils\.quantize_\(model\) keeps weights as int8"):
        torch.quantize_per_tensor  # noqa: B018 - asking for it is the test
    assert not hasattr(torch, "nothing_of_the_sort")


def test_quantisation_is_named_and_refused() -> None:
    ao = face("torch.ao.quantization")
    assert not isinstance(nn.Linear(1, 1), ao.ObserverBase)
    with pytest.raises(NotImplementedError, match=r"calque\.nn\.utils\.quantize_\(model\) keeps weights as int8"):
        ao.prepare(nn.Linear(1, 1))
    assert face("torch.ao.quantization.observer").MinMaxObserver is ao.MinMaxObserver is face("torch.quantization.observer").MinMaxObserver
    assert face("torch.ao.quantization.qconfig").QConfig is ao.QConfig is face("torch.quantization.qconfig").QConfig
    fake = face("torch.quantization.fake_quantize")
    assert fake.FakeQuantize is ao.FakeQuantize is face("torch.ao.quantization.fake_quantize").FakeQuantize
    with pytest.raises(NotImplementedError, match=r"\[torch\.ao\.quantization\.FakeQuantize\] .*calque\.nn\.utils\.quantize_"):
        fake.FakeQuantize()


def test_batches_are_pinned_as_pytorch_does() -> None:
    pin = face("torch.utils.data._utils.pin_memory").pin_memory
    Pair = namedtuple("Pair", "a b")

    class Batch:
        def pin_memory(self) -> str:
            return "pinned"

    given = {"x": [calque.ones(2), Batch(), "text"], "y": Pair((Batch(), 1), range(2))}
    found = pin(given)
    assert found["x"][0] is given["x"][0] and found["x"][1:] == ["pinned", "text"] and found["y"] == Pair(("pinned", 1), [0, 1])
    assert type(found["y"]) is Pair and found is not given and isinstance(given["x"][1], Batch)
    kept = OrderedDict(a=Batch())
    assert pin(kept) == OrderedDict(a="pinned") and isinstance(pin(kept), OrderedDict) and isinstance(kept["a"], Batch)
    assert dict(pin(MappingProxyType({"a": Batch()}))) == {"a": "pinned"} and pin(b"bytes") == b"bytes"


def test_whether_a_device_was_used_is_asked_without_a_call() -> None:
    cuda = face("torch.cuda")
    assert bool(cuda._initialized) == cuda.is_initialized()


def test_slices_of_a_batch_are_told() -> None:
    seen = []
    calque.func.vmap(lambda x: (seen.append(face("torch._C._functorch").is_batchedtensor(x)), x)[1])(calque.ones(2))
    assert seen == [True]
    assert face("torch._functorch.vmap").vmap is calque.func.vmap


def test_functorch() -> None:
    functorch = face("functorch")
    model, x = nn.Linear(3, 2), calque.ones(4, 3)
    function, params = functorch.make_functional(model)
    assert function(params, x).equal(model(x))
    assert params[0] is not model.weight
    assert functorch.grad(lambda w: function((w, params[1]), x).sum())(params[0]).tolist() == [[4.0] * 3] * 2
    with pytest.raises(RuntimeError, match=r"expected a module without buffers, got one that has some; use make_functional_with_buffers"):
        functorch.make_functional(nn.BatchNorm1d(3))
    models = [nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval() for _ in range(3)]
    function, params, buffers = functorch.combine_state_for_ensemble(models)
    found = functorch.vmap(function, in_dims=(0, 0, None))(params, buffers, x)
    assert calque.allclose(found, calque.stack([m(x) for m in models]), atol=1e-6)


def test_keys_by_identity_that_are_not_kept_alive() -> None:
    weak = face("torch.utils.weak")
    table, a, b = weak.WeakIdKeyDictionary(), calque.ones(2), calque.ones(2)
    table[a], table[b] = "a", "b"
    assert (table[a], table[b], len(table), a in table, 3 in table) == ("a", "b", 2, True, False)
    del a
    assert list(table.values()) == ["b"]
    assert weak.TensorWeakRef(b)() is b


def test_another_tensor_under_a_name() -> None:
    swap = face("torch.nn.utils._named_member_accessor").swap_tensor
    layer = nn.Linear(2, 2)
    before, other = layer.weight, calque.zeros(2, 2)
    assert swap(layer, "weight", other) is before
    assert layer.weight is other
    assert swap(layer, "weight", None) is other
    with pytest.raises(AttributeError, match=r"pass allow_missing=True"):
        swap(layer, "weight", before)
    with pytest.raises(KeyError, match=r"expected the name of a tensor of the module itself, got 'a.b'"):
        swap(layer, "a.b", before)


def test_batches_of_other_classes() -> None:
    class Pair:
        def __init__(self, n: float) -> None:
            self.n = n

    table = face("torch.utils.data._utils.collate").default_collate_fn_map
    table[Pair] = lambda batch, collate_fn_map: calque.tensor([pair.n for pair in batch])
    try:
        found = calque.utils.data.default_collate([{"p": Pair(1.0), "k": 1}, {"p": Pair(2.0), "k": 2}])
        assert (found["p"].tolist(), found["k"].tolist()) == ([1.0, 2.0], [1, 2])
    finally:
        del table[Pair]
    with pytest.raises(TypeError, match=r"got .*Pair in sample"):
        calque.utils.data.default_collate([Pair(1.0)])


def test_batches_of_tensors_of_another_class() -> None:
    """The function in the table puts the tensors together as such, and adds what they carry: as classes of images with metadata do."""

    class Noted(calque.Tensor):
        note = 0

    module = face("torch.utils.data._utils.collate")

    def noted(batch, *, collate_fn_map=None):
        found = module.collate_tensor_fn(batch).as_subclass(Noted)
        found.note = sum(sample.note for sample in batch)
        return found

    samples = [calque.ones(2).as_subclass(Noted), calque.zeros(2).as_subclass(Noted)]
    samples[0].note = 3
    module.default_collate_fn_map[Noted] = noted
    try:
        found = calque.utils.data.default_collate([{"x": sample} for sample in samples])["x"]
    finally:
        del module.default_collate_fn_map[Noted]
    assert (type(found), found.note, found.tolist()) == (Noted, 3, [[1, 1], [0, 0]])
    assert module.collate([(samples[0], 1)], collate_fn_map={Noted: noted})[0].note == 3


def test_the_first_form_of_local_response_normalisation() -> None:
    """By PyTorch's own steps: what enters and leaves the sum from channel to channel."""
    calque.manual_seed(0)
    x = calque.randn(2, 7, 3, 2, dtype=calque.float64, requires_grad=True)
    for size in (1, 3, 4, 5, 9):
        layer = face("torch.nn.modules").CrossMapLRN2d(size, 0.1, 0.6, 1.5)
        squares, reach = x * x, int((size - 1) / 2 + 1)
        total, sums = squares[:, :reach].sum(1), []
        for c in range(7):
            if c and c + reach - 1 < 7:
                total = total + squares[:, c + reach - 1]
            if c > reach:
                total = total - squares[:, c - reach]
            sums.append(total)
        expected = x * (1.5 + 0.1 / size * calque.stack(sums, 1)) ** -0.6
        assert calque.allclose(layer(x), expected), size
    assert calque.autograd.gradcheck(layer, (x,))


def test_trees_tell_kinds_of_tuples() -> None:
    trees = face("torch.utils._pytree")
    assert trees.is_structseq(os.stat_result)
    assert not trees.is_namedtuple(os.stat_result)
    assert trees.is_namedtuple_instance(trees.SequenceKey(1))
    assert trees.tree_is_leaf(3)
    assert not trees.tree_is_leaf([3])


def test_a_module_has_other_tensors_in_a_block() -> None:
    reparametrized = face("torch.nn.utils.stateless")._reparametrize_module
    layer, given = calque.nn.Linear(2, 1), {"weight": calque.ones(1, 2), "bias": calque.zeros(1)}
    before = layer.weight
    with reparametrized(layer, given, tie_weights=True):
        assert layer(calque.ones(2)).item() == 2.0 and layer.weight is given["weight"]
    assert layer.weight is before


def test_samples_of_gamma_and_dirichlet_distributions() -> None:
    torch = face("torch")
    concentration = calque.tensor([0.5, 2.0, 7.0]).expand(4000, 3).clone().requires_grad_()
    drawn = torch._standard_gamma(concentration)
    assert (drawn > 0).all() and calque.allclose(drawn.mean(0), concentration[0], rtol=0.1)
    drawn.sum(0).sum().backward()
    assert calque.allclose(concentration.grad.mean(0), calque.ones(3), rtol=0.1)  # the mean is the concentration
    shares = torch._sample_dirichlet(concentration.detach())
    assert calque.allclose(shares.sum(-1), calque.ones(4000)) and calque.allclose(shares.mean(0), concentration[0] / 9.5, atol=0.02)
    with pytest.raises(ValueError, match="expected no generator"):
        torch._standard_gamma(concentration, generator=calque.Generator())


def test_what_libraries_of_minimisers_take_from_the_inside() -> None:
    """A line search over any function, the older `vmap`, and the parts of which PyTorch makes Jacobians."""
    search = face("torch.optim.lbfgs")
    assert search.LBFGS is calque.optim.LBFGS
    assert search._cubic_interpolate(0.0, 1.0, -1.0, 2.0, 0.5, 0.3) == pytest.approx(1.3333333333333335)

    def bowl(x: calque.Tensor, t: float, d: calque.Tensor) -> tuple[calque.Tensor, calque.Tensor]:
        return ((x + t * d - 3) ** 2).sum(), 2 * (x + t * d - 3)

    x = calque.zeros(2, dtype=calque.float64)
    value, gradient = bowl(x, 0.0, x)
    found, slope, step, calls = search._strong_wolfe(bowl, x, 1.0, -gradient, value, gradient, -gradient.dot(gradient))
    assert (float(found), slope.tolist(), step, calls) == (0.0, [0.0, 0.0], 0.5, 2)
    with pytest.raises(ValueError, match=r"\[_strong_wolfe\] expected c1=0.0001 and c2=0.9"):
        search._strong_wolfe(bowl, x, 1.0, -gradient, value, gradient, -18.0, c1=0.5)
    inside = face("torch.autograd.functional")
    assert inside.jacobian is calque.autograd.functional.jacobian
    first, second = inside._construct_standard_basis_for((calque.ones(1), calque.ones(2, dtype=calque.float64)), (1, 2))
    assert first.tolist() == [[1], [0], [0]] and second.tolist() == [[0, 0], [1, 0], [0, 1]] and second.dtype is calque.float64
    with pytest.raises(ValueError, match=r"expected tensors and as many sizes, got 1 and 2"):
        inside._construct_standard_basis_for((x,), (1, 2))
    assert inside._as_tuple((x,), "inputs", "f") == (True, (x,)) and inside._as_tuple(x) == (False, (x,))
    with pytest.raises(TypeError, match=r"\[f\] expected a Tensor or a tuple of Tensors as inputs, got"):
        inside._as_tuple(3, "inputs", "f")
    assert inside._tuple_postprocess(((1,), (2,)), (True, False)) == (1, 2) and inside._tuple_postprocess((3,), False) == 3
    assert not inside._grad_postprocess((calque.ones(1, requires_grad=True),), False)[0].requires_grad
    batched = face("torch._vmap_internals")
    assert batched._vmap(lambda a: a * 2)(calque.ones(2)).tolist() == [2, 2] and batched.vmap is calque.func.vmap
    with pytest.raises(ValueError, match="expected allow_none_pass_through=False, got True"):
        batched._vmap(lambda a: a, allow_none_pass_through=True)
    torch = face("torch")
    assert torch._has_compatible_shallow_copy_type(x, calque.ones(3)) and not torch._has_compatible_shallow_copy_type(x, x.to_sparse())


def test_types_of_python_have_limits() -> None:
    """`finfo(float)` is that of float64, `iinfo(int)` that of int64, as where such a type stands for a dtype."""
    assert calque.finfo(float).eps == calque.finfo(complex).eps == calque.finfo(calque.float64).eps
    assert calque.iinfo(int).max == calque.iinfo(calque.int64).max
    for wrong in (lambda: calque.finfo(int), lambda: calque.finfo(bool), lambda: calque.iinfo(float), lambda: calque.iinfo(str)):
        with pytest.raises(TypeError, match="info"):
            wrong()


def test_the_dicts_of_a_module_are_dicts_to_pytrees() -> None:
    pytree, layer = face("torch.utils._pytree"), torch.nn.Linear(2, 2)
    assert len(pytree.tree_leaves([layer._parameters, layer._buffers])) == 2
    assert pytree.tree_structure(layer._parameters) == pytree.tree_structure({"weight": 0, "bias": 1})
    assert type(pytree.tree_map(lambda p: p.sum(), layer._parameters)) is dict


def test_a_scaler_says_how_long_its_scale_has_been_good() -> None:
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    for expected in (1, 2, 0):
        w = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        scaler.scale(w.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler._get_growth_tracker() == expected == scaler.state_dict()["_growth_tracker"]
    assert torch.amp.GradScaler("cpu", enabled=False)._get_growth_tracker() == 0


def test_the_states_of_a_scaler_are_named_in_its_file() -> None:
    found = face("torch.amp.grad_scaler")
    assert [state.name for state in found.OptState] == ["READY", "UNSCALED", "STEPPED"]
    assert found.GradScaler is torch.amp.GradScaler is face("torch.amp").GradScaler is calque.amp.GradScaler
    assert face("torch.amp").autocast is calque.amp.autocast
