"""Random arguments for everything public: a few hundred calls here, any number with `python -m tests.fuzz.arguments`. What it found stands below."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import audio, fx, hub, monitor, nn, train, vision
from calque import distributions as d
from calque.base import text
from calque.compat import missing
from calque.functional import blame
from calque.vision.transforms import v2
from tests.fuzz.arguments import CLASSES, TARGETS, Call, finding, leak

F = nn.functional


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called may write files of any name."""
    monkeypatch.chdir(tmp_path)


V = vision.transforms.functional
ONE, RGB = calque.ones(2, 3), calque.ones(3, 4, 5)


@pytest.mark.usefixtures("two_devices", "little_memory")
@pytest.mark.parametrize("part", range(4))
def test_every_answer_is_a_value_or_an_error_of_ours(part: int, seed: int) -> None:
    first = (seed + part) * 100_000
    wrong = [text for number in range(first, first + 100) if (text := finding(number))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.usefixtures("two_devices", "little_memory")
def test_twenty_thousand_calls(seed: int) -> None:
    wrong = [text for number in range(seed, seed + 20_000) if (text := finding(number))]
    assert not wrong, "\n".join(wrong)


def test_all_that_is_public_is_called() -> None:
    """The list is made from the modules themselves; a gap would go unnoticed."""
    names = {str(t) for t in TARGETS}
    assert {"calque.view_as", "Tensor.reshape", "nn.functional.conv3d", "linalg.svd", "nn.LSTM", "optim.Adam", "lr_scheduler.StepLR"} <= names
    assert {"utils.data.DataLoader", "nn.init.normal_", "autograd.grad", "nn.utils.rnn.pad_sequence", "random.manual_seed"} <= names
    assert len(TARGETS) > 1600 and len(CLASSES) >= 7


def test_the_classification_can_fail() -> None:
    call = Call(0)
    call.target, call.args, call.keywords = next(t for t in TARGETS if str(t) == "calque.flip"), [], {}
    for error in (StopIteration(), KeyError("x"), AttributeError("x"), IndexError("x"), AssertionError(), ValueError("[x] this is a bug of Calque")):
        assert leak(error, call)
    assert not leak(calque.base.errors.ShapeError("[x] expected ..."), call)
    assert not leak(KeyError("[x] expected ..."), call)
    assert not leak(TypeError("flip() missing 1 required positional argument: 'input'"), call)


SIZES = [
    lambda s: calque.ones(6).reshape(s), lambda s: calque.ones(6).view(s), lambda s: calque.zeros(s), lambda s: calque.rand(s),
    lambda s: calque.ones(1, 1).expand(s), lambda s: calque.ones(1, 1).repeat(s), lambda s: calque.tile(ONE, s), lambda s: calque.flip(ONE, s),
    lambda s: ONE.permute(s), lambda s: calque.randint(5, s), lambda s: calque.broadcast_to(calque.ones(1, 1), s), lambda s: ONE.new_zeros(s),
    lambda s: ONE.sum(s), lambda s: ONE.squeeze(s), lambda s: calque.movedim(ONE, s, s), lambda s: F.max_pool2d(calque.ones(1, 1, 6, 6), s),
    lambda s: F.conv2d(calque.ones(1, 1, 6, 6), calque.ones(1, 1, 2, 2), stride=s), lambda s: F.unfold(calque.ones(1, 1, 6, 6), s),
]  # fmt: skip


@pytest.mark.parametrize("call", SIZES)
@pytest.mark.parametrize("several", [np.array([3, 2]), calque.tensor([3, 2]), np.array([3.0, 2.0]), calque.tensor(2.0), {3, 2}])
def test_arrays_and_tensors_are_no_sizes(call: Any, several: Any) -> None:
    """As in PyTorch. A StopIteration left here, which `map`, `list` and loops take for the end."""
    with pytest.raises(TypeError, match=r"^\[\w+\] expected"):
        call(several)
    with pytest.raises(TypeError):
        list(map(call, [several]))


@pytest.mark.parametrize("call", [SIZES[0], SIZES[2], SIZES[8], *SIZES[12:]])
def test_what_counts_as_one_int_is_a_size(call: Any) -> None:
    for one in (np.int64(0), np.array(0), calque.tensor(0), calque.tensor([0])):
        try:
            wanted = call(0).shape
        except Exception as error:
            with pytest.raises(type(error), match=re.escape(str(error)[:20])):
                call(one)
        else:
            assert call(one).shape == wanted


class Nothing:
    """Takes no arguments."""


def LBFGS() -> Any:
    return calque.optim.LBFGS([calque.ones(2, requires_grad=True)])


def closed_form(t_max: int) -> None:
    optimizer = calque.optim.SGD([calque.ones(2)], lr=1.0)
    optimizer.step()
    with pytest.warns(UserWarning):
        calque.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=t_max).step(3)


def encoder(norm: Any) -> Any:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 4), 1, norm=norm)


def distance(function: Any) -> Any:
    return nn.TripletMarginWithDistanceLoss(distance_function=function)


def polynomial(power: float) -> None:
    optimizer = calque.optim.SGD([calque.ones(2)], lr=1.0)
    schedule = calque.optim.lr_scheduler.PolynomialLR(optimizer, power=power)
    optimizer.step()
    schedule.step()


WRONG = [
    (lambda: d.Chi2("x"), "[Chi2] expected a Tensor or a number, got str 'x' as 'df'"),
    (lambda: d.constraints.interval(None, 1.0).check(ONE), "[Interval] expected a Tensor or a number, got NoneType as 'lower_bound'"),
    (lambda: d.Independent(ONE, 1), "[Independent] expected a Distribution, got Tensor as 'base_distribution'; pass a Distribution"),
    (lambda: d.ComposeTransform(ONE), "[ComposeTransform] expected a list of Transforms, got Tensor of shape (2, 3); put one transform into a list"),
    (lambda: d.kl_divergence("a", ONE), "[kl_divergence] expected a Distribution, got str 'a' as 'p'; pass a Distribution"),
    (lambda: vision.ops.nms(calque.ones(3, 3), calque.ones(3), 0.5), "[nms] expected boxes of shape (N, 4), got (3, 3)"),
    (lambda: vision.transforms.CenterCrop([]), "[transforms] expected a size as an int or as (height, width), got []"),
    (lambda: vision.transforms.RandomRotation({1: 2}), "[RandomRotation] expected degrees as a number or as (lowest, highest), got {1: 2}"),
    (lambda: vision.transforms.functional.get_dimensions(calque.ones(3)), "[get_dimensions] expected img with at least 2 dims, got shape (3,)"),
    (lambda: vision.datasets.MNIST(5), "[MNIST] expected a str or a path, got int 5 as 'root'; pass a str or a path"),
    (lambda: vision.io.decode_image(ONE), "[decode_image] expected an image and a format that Pillow takes, got an error of Pillow's"),
    (lambda: audio.functional.compute_deltas(calque.tensor(1.0)), "[compute_deltas] expected specgram with at least 1 dims, got shape ()"),
    (lambda: audio.functional.mu_law_encoding(ONE, 0), "[mu_law_encoding] expected numbers that the result can hold, got (Tensor (2, 3)"),
    (lambda: fx.Graph().output_node(), "[output_node] expected a graph with an output, got one without; call graph.output(value) first"),
    (lambda: fx.Tracer((3,)), "[Tracer] expected autowrap_modules as a tuple of Python modules, got tuple (3,)"),
    (lambda: monitor.Meter("a", "meta"), "[Meter] expected fmt as a format of a number, such as '.4f', got str 'meta'"),
    (lambda: monitor.progress(3), "[progress] expected something to walk through, got int 3"),
    (lambda: hub.list([1]), "[list] expected a str or a path, got list as 'github'; pass a str or a path"),
    (lambda: calque.special.legendre_polynomial_p(ONE, 1 << 70), "[legendre_polynomial_p] expected an order of at most 100000, one step of its"),
    (lambda: calque.cat(np.array(1.0)), "[cat] expected a tuple or list of Tensors, got numpy.ndarray"),
    (lambda: nn.TransformerDecoder(None, 2), "[TransformerDecoder] expected a layer as its first argument, got NoneType None; pass an"),
    (lambda: calque.fake_quantize_per_tensor_affine(ONE, None, 0, 0, 255), "[fake_quantize_per_tensor_affine] expected a Tensor or a number, got"),
    (lambda: F.pixel_shuffle(calque.ones(2, 2), 1), "[pixel_shuffle] expected input with at least 3 dims, got shape (2, 2)"),
    (lambda: F.unfold(calque.ones(4), 1), "[unfold] expected input with 3 to 4 dims, got shape (4,); add some with unsqueeze(...)"),
    (lambda: F.fold(calque.ones(4), 2, 1), "[fold] expected input with 2 to 3 dims"),
    (lambda: calque.bilinear(ONE, ONE, calque.ones(5)), "[bilinear] expected weight with 3 dims, got shape (5,)"),
    (lambda: calque.promote_types(1, calque.int8), "[promote_types] expected a dtype, got int 1 as 'type1'"),
    (lambda: calque.can_cast(None, "x"), "[can_cast] expected a dtype, got NoneType None as 'from_'"),
    (lambda: calque.trapz(calque.tensor(1.0)), "[trapezoid] expected y with at least 1 dims"),
    (lambda: calque.hstack([]), "[hstack] expected a non-empty list of Tensors"),
    (lambda: calque.cat(1.5), "[cat] expected a tuple or list of Tensors, got float"),
    (lambda: calque.zeros(2, colour=1), "got an unexpected keyword argument 'colour'"),
    (lambda: calque.zeros(2, layout="sparse"), "[zeros] expected layout=calque.strided, got str 'sparse'"),
    (lambda: calque.flip(ONE, (0,), out=ONE), "out= is not offered here: assign the result"),
    (lambda: ONE.clone().add_(), "[add_] expected arguments (input, other, *, alpha=1), got others: missing a required argument: 'other'"),
    (lambda: ONE.clone().uniform_([]), "[uniform_] expected a number, got list as 'from_'"),
    (lambda: calque.ones(1, 1).tile((1 << 50, 1 << 50)), "[memory] expected a tensor of less than 2**63 bytes"),
    (lambda: nn.Linear(3), "[Linear] expected arguments (in_features, out_features, bias=True"),
    (lambda: nn.ReflectionPad1d(calque.float32), "[ReflectionPad1d] expected padding as an int or a tuple of ints, got DType"),
    (lambda: nn.LPPool2d("x", 2)(calque.ones(1, 1, 4, 4)), "[LPPool2d] expected a number, got str 'x' as 'norm_type'"),
    (lambda: nn.MSELoss()(ONE), "[MSELoss] expected arguments (input, target), got others: missing a required argument"),
    (lambda: nn.Linear(2, 2).get_submodule("a"), "[get_submodule] Linear has no attribute `a`"),
    (lambda: nn.init.normal_(ONE.clone(), std="x"), "[normal_] expected a number, got str 'x' as 'std'"),
    (lambda: nn.utils.clip_grad_norm_(3, 1.0), "[clip_grad_norm_] expected Tensors, got int 3 as 'parameters'"),
    (lambda: nn.utils.spectral_norm(nn.Linear(2, 2), "w"), "[spectral_norm] expected a parameter named 'w'"),
    (lambda: calque.optim.lr_scheduler.StepLR(3, 1), "[StepLR] expected an Optimizer, but int is not an Optimizer"),
    (lambda: calque.utils.data.Subset([1], 3), "[Subset] expected indices as a sequence of ints, got int"),
    (lambda: nn.RNNBase("x", 3, 4), "[RNNBase] expected mode as one of LSTM, GRU, RNN_TANH, RNN_RELU, got str 'x'; use nn.RNN"),
    (lambda: nn.ModuleDict([nn.ReLU()]), "[ModuleDict.update] expected a dict or (name, value) pairs, got ReLU() at index 0; for values without"),
    (lambda: nn.ParameterDict([nn.Parameter(ONE)]), "[ParameterDict.update] expected a dict or (name, value) pairs, got Parameter of shape (2, 3)"),
    (lambda: nn.ParameterDict().update(ONE), "[ParameterDict.update] expected a dict or (name, value) pairs, got Tensor of shape (2, 3)"),
    (lambda: nn.ModuleList(np.array(-7)), "[ModuleList.extend] ModuleList.extend should be called with an iterable"),
    (lambda: LBFGS().step(lambda: None), "[LBFGS] expected the closure to return the loss, got NoneType None; end it with `return loss`"),
    (lambda: LBFGS().step(lambda: "a"), "[LBFGS] expected the closure to return the loss, got str 'a'"),
    (lambda: LBFGS().step(5), "[LBFGS] expected a function that evaluates the model and returns the loss, got int 5 as 'closure'"),
    (lambda: calque.optim.SGD([ONE.clone()], lr=0.1).step(5), "[SGD] expected a function or None as 'closure', got int 5; leave it out"),
    (lambda: calque.from_dlpack(np.array(["a"])), "[from_dlpack] expected memory that can be shared, got numpy.ndarray of shape (1,): DLPack only"),
    (lambda: closed_form(0), "[CosineAnnealingLR] expected T_max >= 1, the number of epochs from the highest to the lowest rate, got 0"),
    (lambda: nn.Dense(1, np.ones((2, 3))), "[Dense] expected the name of an activation such as 'relu', 'sigmoid' or 'tanh', got numpy.ndarray of"),
    (lambda: nn.LazyLinear(3)(calque.tensor(1.0)), "[LazyLinear] expected input with at least 1 dims, got shape ()"),
    (lambda: calque.chunk(calque.ones(0), 1 << 63), "[chunk] expected integers of 64 bits, got 9223372036854775808 as 'chunks'; pass a smaller one"),
    (lambda: calque.round(ONE, decimals=int), "[round] expected an int, got type as 'decimals'"),
    (lambda: calque.sub(calque.ones(2).int(), 1, alpha=...), "[sub] expected alpha as a number, got ellipsis Ellipsis"),
    (lambda: calque.logspace(0, 1, 3, pin_memory=np.ones(3)), "[logspace] expected pin_memory as a bool, got numpy.ndarray"),
    (lambda: nn.init.dirac_(calque.ones(2, 3, 4), 0), "[dirac_] dim 0 must be divisible by groups, got 2 and groups=0"),
    (lambda: calque.promote_types(Path, np.float32), "[promote_types] expected a dtype, got type <class 'pathlib.Path'> as 'type1'"),
    (lambda: F.adaptive_avg_pool2d(calque.ones(2, 2, 0), 4), "[adaptive_avg_pool2d] Expected input to have non-zero size for non-batch dimensions"),
    (lambda: calque.unique(calque.tensor(1.0), dim=-1), "[unique] expected input with at least 1 dims, got shape ()"),
    (lambda: calque.cat([ONE, ONE], 1, out=[ONE]), "[cat] expected out as a Tensor, got list; leave it out to get a new one"),
    (lambda: calque.call_when_ready("x", ONE), "[call_when_ready] expected a function, got str 'x'; pass the function itself, not its result"),
    (lambda: ONE.std(correction=...), "[std] expected a Tensor or a number or None, got ellipsis as 'correction'"),
    (lambda: ONE.short().le(10**30), "[le] expected an integer of 64 bits, got 1000000000000000000000000000000; int too big to convert"),
    (lambda: ONE.kthvalue(1.5), "[kthvalue] expected k as an int, got float 1.5"),
    (lambda: F.lp_pool1d(calque.ones(1, 2, 4), 0, 2), "[lp_pool1d] expected norm_type as a number other than 0, got 0; use 1 or 2"),
    (lambda: F.interpolate(calque.ones(2, 3, 4), scale_factor=(1.0, 2.0)), "[interpolate] expected one scale_factor or 1, one for each spatial dim"),
    (lambda: nn.UninitializedParameter(dtype=nn.Linear), "[UninitializedParameter] expected a dtype, got <class"),
    (lambda: nn.Parameter(ONE, requires_grad=np.ones(2)), "[Parameter] expected requires_grad as a bool, got numpy.ndarray of shape (2,)"),
    (lambda: list(nn.Linear(1, 1).buffers(np.ones(2))), "[named_buffers] expected recurse as a bool, got numpy.ndarray of shape (2,)"),
    (lambda: nn.SELU(inplace=np.ones(2)), "[SELU] expected inplace as a bool, got numpy.ndarray of shape (2,); pass True or False"),
    (lambda: nn.ELU(1.0, ONE), "[ELU] expected inplace as a bool, got a Tensor; a layer is made first and then called: ELU()(input)"),
    (lambda: calque.sum_to_shape(ONE, (1,) * 5), "[sum_to_shape] expected at most 2 sizes for a tensor of shape (2, 3), got (1, 1, 1, 1, 1)"),
    (lambda: F.max_pool2d(calque.ones(1, 2, 8, 8), 2, stride=np.int64(-3)), "[max_pool2d] expected stride as an int or 2 ints >= 1, got "),
    (lambda: nn.EmbeddingBag(3, 4)(calque.zeros(4).long(), calque.ones(0)), "[embedding_bag] expected offsets as integers, got torch.float32"),
    (lambda: calque.not_equal(10**4000, ONE), "[ne] expected a Tensor, got int; convert it with calque.as_tensor(...)"),
    (lambda: calque.utils.checkpoint.checkpoint(Nothing, ONE, use_reentrant=False), "[checkpoint] expected a function of the arguments"),
    (lambda: calque.optim.SGD([{"a": ONE}], lr=0.1), "[SGD] expected a group with 'params', got the keys ['a']; add the Tensors"),
    (lambda: polynomial(-(1 << 63)), "[PolynomialLR] expected a power that leaves the rate finite, got -9223372036854775808"),
    (lambda: calque.optim.swa_utils.AveragedModel(3), "[AveragedModel] expected a Module as model, got int"),
    (lambda: calque.optim.SGD([ONE], lr=0.1).count_step([1]), "[count_step] expected a Tensor, got list as 'parameter'"),
    (lambda: calque.asarray(np.dtype("int8")), "[tensor] expected a number at index (), got numpy.Int8DType dtype('int8')"),
    (lambda: calque.linalg.lu_solve(calque.eye(3), calque.ones(4).int(), calque.ones(3, 1)), "[lu_solve] number of pivots per batch should be same"),
    (lambda: calque.lu_unpack(calque.eye(3), calque.ones(4).int()), "[lu_unpack] number of pivots per batch should be same as the dimension of"),
    (lambda: calque.linalg.ldl_solve(calque.eye(3), calque.ones(4).int(), calque.ones(3, 1)), "[ldl_solve] number of pivots per batch should be"),
    (lambda: calque.utils.data.RandomSampler(np.array(-1)), "[ndarray] expected a dataset with __len__, got ndarray without; define"),
    (lambda: encoder(norm=7)(calque.ones(2, 4)), "[TransformerEncoder] expected a function or None, got int 7 as 'norm'"),
    (lambda: encoder(norm=Nothing)(calque.ones(2, 4)), "as 'norm': Nothing() takes no arguments; make an object of the class and pass that"),
    (lambda: nn.Transformer(4, 2, custom_encoder=nn.ReLU)(calque.ones(2, 1, 4), calque.ones(2, 1, 4)), "; make an object of the class and pass that"),
    (lambda: distance(nn.PairwiseDistance)(ONE, ONE, -ONE), "expected a function or None, got type as 'distance_function'"),
    (lambda: calque.linalg.ldl_solve(calque.eye(3), calque.ones(3).int(), calque.ones(7)), "[linalg.ldl_solve] expected B with 3 rows, got shapes"),
    (lambda: F.hardtanh_(calque.ones(2).long(), max_val=float("nan")), "[hardtanh] value cannot be converted to torch.int64 without overflow: nan"),
    (lambda: F.cross_entropy(calque.tensor(2.0), calque.tensor(0.5)), "[cross_entropy] expected scores with a class dim, got a 0-d input"),
    (lambda: nn.LayerNorm(None), "[LayerNorm] expected normalized_shape as an int or a tuple of ints, got NoneType None"),
    (lambda: calque.lu_unpack(calque.eye(3), calque.ones(3)), "[lu_unpack] expected pivots as integers, got float32; pass those that"),
    (lambda: calque.frombuffer(b"abc", dtype=calque.float32), "[frombuffer] expected a number of bytes that 4, the size of an element of"),
    (lambda: calque.sparse.spdiags(calque.ones(2, 3), calque.tensor([0, 1]), 3), "[spdiags] expected one offset for each diagonal and a shape of"),
    (lambda: F.linear_cross_entropy(calque.ones(4, 3), calque.tensor(1.0), calque.zeros(4).long()), "expected linear_weight with at least 1 dims"),
    (lambda: calque.signal.windows.gaussian(1 << 62, std=2), "[gaussian] expected memory for the result of"),
    (lambda: train.lr_find(nn.Linear(3, 3), calque.optim.SGD([ONE], lr=0.1), F.mse_loss, []), "[lr_find] expected at least one batch, got an empty"),
    (lambda: train.cached_features(nn.Linear(3, 3), [ONE]), "[cached_features] expected batches (inputs, labels), got Tensor"),
    (lambda: train.finetune(nn.Linear(3, 3), {1: 2}), "[finetune] expected a dataset or loader of (input, label), got dict"),
    (lambda: train.reuse_classifier(3, nn.Linear(1, 1), ["a"], ["a"]), "[reuse_classifier] expected a Module, got int 3 as 'old'"),
    (lambda: calque.fft.ifft2(calque.ones(2, 3), s=np.float32(1.5)), "[ifft2] expected"),
    (lambda: calque.export(nn.Linear(1, 1), (ONE,), entries="a"), "[export] expected"),
    (lambda: calque.distributed.batch_isend_irecv(7), "[batch_isend_irecv] expected"),
    (lambda: calque.ones(1, 4).map_(ONE[0, 0], None), "[map_] expected a function of two numbers, got NoneType None"),
    (lambda: calque.data.BatchSampler(np.array(2), 1, True), "[BatchSampler] expected a sampler or other indices to walk through, got"),
    (lambda: calque.compile(nn.ReLU(), backend=np.zeros(3)), "[compile] expected backend as one of"),
    (lambda: calque.compile(nn.ReLU(), mode=np.zeros(3)), "[compile] expected mode as one of"),
    (lambda: nn.Upsample(2, ["a"]), "[Upsample] expected scale_factor as a number or a tuple of numbers, got ['a']"),
    (lambda: calque.distributed.batch_isend_irecv(np.zeros(0)), "[batch_isend_irecv] expected one P2POp or more"),
    (lambda: nn.ConvTranspose2d(3, 2, 2)(calque.ones(1, 3, 4, 4), 8), "[ConvTranspose2d] expected output_size as a list of 2 ints, got int 8"),
    (lambda: nn.ConvTranspose2d(3, 2, 2)(calque.ones(1, 3, 4, 4), (8,)), "[ConvTranspose2d] output_size must have 2 or 4 elements, got (8,)"),
    (lambda: calque.optim.lr_scheduler.LambdaLR(calque.optim.SGD([calque.ones(1)], lr=0.1), Nothing), "expected lr_lambda as a function of an epoch"),
    (lambda: calque.linalg.ldl_solve(calque.eye(3), calque.ones(0).int(), calque.ones(3, 1)), "Expected LD.shape[:-1] and pivots.shape to be"),
    (lambda: calque.can_cast(calque.int64, Nothing), "[can_cast] expected a dtype, got type"),
    (lambda: calque.fft.fftshift(calque.tensor(1.0), (k for k in (0,))), "[fftshift] expected"),
    (lambda: ONE.to_sparse(range(0)), "[to_sparse] expected sparse_dim as an int, got range"),
    (lambda: ONE.to_sparse(np.ones((3, 3), object)), "[to_sparse] expected sparse_dim as an int, got"),
    (lambda: v2.CutMix(num_classes=2).mix(calque.ones(2, 3, 4, 4), 1 << 40), "[CutMix] expected the share of an image between 0 and 1, got"),
    (lambda: v2.MixUp(num_classes=2).mix(calque.ones(2, 3, 4, 4), -0.5), "[MixUp] expected the share of an image between 0 and 1, got"),
    (lambda: list(nn.ReLU().modules(np.zeros(2))), "[named_modules] expected remove_duplicate as a bool, got"),
    (lambda: calque.signal.windows.hann(3, out=[]), "[hann] expected out as a Tensor (or one for each result), got list []"),
    (lambda: calque.trapz(y=bytearray(8), axis=1), "[trapz] expected a Tensor, got bytearray as 'y'; convert it with calque.as_tensor(...)"),
    (lambda: calque.zeros_like(None, out=calque.ones(1)), "[zeros_like] expected a Tensor, got None"),
    (lambda: calque.relu(ONE, out=[]), "[relu] expected out as a Tensor (or one for each result), got list []"),
    (lambda: SCHEDULES[1](calque.optim.SGD([calque.ones(1)], lr=0.1)).load_state_dict({1: 2}), "[StepLR] expected what state_dict() returned, got"),
    (lambda: d.CumulativeDistributionTransform(ONE), "[CumulativeDistributionTransform] expected a distribution, got Tensor"),
    (lambda: nn.parallel.parallel_apply([1.0], [ONE]), "[parallel_apply] expected modules or functions, got float 1.0 among them"),
    (lambda: F.hardtanh(calque.ones(2).byte()), "[hardtanh] cannot do hardtanh on an unsigned type with negative limits"),
    (lambda: calque.full((2,), calque.ones((), requires_grad=True)), "[full] expected fill_value as a number, got a Tensor that requires"),
    (lambda: calque.add(ONE, ONE, alpha=ONE), "[add] expected a number or a 0-d tensor, got a Tensor of shape (2, 3)"),
    (lambda: calque.zeros(3).scatter_reduce(0, calque.tensor([0, 1]), calque.ones(1), "amax"), "[scatter_reduce] Expected index (2,) to be"),
    (lambda: nn.Linear(2, 2).load_state_dict({1: 2}), "[load_state_dict] expected names as keys, got int 1; pass what"),
    (lambda: nn.Linear(2, 2).load_state_dict({"weight": ONE, None: ONE}, strict=False), "[load_state_dict] expected names as keys, got None"),
    (lambda: calque.polygamma(1 << 40, ONE), "[polygamma] expected n <= 170, got 1099511627776"),
    (lambda: calque.linalg.solve_triangular(calque.eye(2), ONE.half(), upper=True), "[solve_triangular] expected a float32 or float64 matrix, got"),
    (lambda: calque.linalg.ldl_solve(calque.eye(3), calque.ones(1, 1).int(), calque.ones(3, 1)), "Expected LD.shape[:-1] and pivots.shape to be"),
    (lambda: nn.ParameterDict().fromkeys(...), "[fromkeys] expected something to walk through, got ellipsis as 'keys'; pass"),
    (lambda: d.RelaxedOneHotCategorical(ONE, 0.5), "[Categorical] expected probs as a Tensor (..., K), got float 0.5; "),
    (lambda: d.OneHotCategorical(logits=[0.5]), "[Categorical] expected logits as a Tensor (..., K), got list [0.5]; "),
    (lambda: fx.GraphAppendingTracer(7).to_bool(frozenset()), "[to_bool] expected a Proxy, got frozenset"),
    (lambda: fx.TracerBase().keys(7), "[keys] expected a Proxy, got int 7; pass what"),
    (lambda: fx.TracerBase().iter(7), "[iter] expected a Proxy, got int 7; pass what"),
    (lambda: fx.TracerBase().proxy(7), "[proxy] expected a Node, got int 7; pass one of"),
    (lambda: vision.datasets.FakeData()[np.array([], int)], "[FakeData] expected index as an int, got"),
    (lambda: fx.Graph().call_function(calque.relu, kwargs=[[1, 2], [3]]), "[call_function] expected args as a tuple and kwargs as a dict, got"),
    (lambda: V.to_pil_image(RGB, "x"), "[to_pil_image] expected other arguments, got (Tensor (3, 4, 5) torch.float32, 'x'): Val"),
    (lambda: V.to_pil_image(ONE.long()), "[to_pil_image] expected other arguments, got"),
    (lambda: V.to_pil_image(V.to_pil_image(RGB)), "[to_pil_image] expected a Tensor or an array, got"),
    (lambda: V.adjust_contrast(V.to_pil_image(RGB).convert("1"), 0), "[adjust_contrast] expected other arguments, got"),
    (lambda: V.adjust_hue(calque.ones(5, 3, 3), 0), "[adjust_hue] expected (..., 1 or 3, H, W), got shape (5, 3, 3)"),
    (lambda: V.adjust_saturation(calque.ones(3, 3), 0), "[adjust_saturation] expected (..., 1 or 3, H, W), got shape (3, 3)"),
    (lambda: V.rgb_to_grayscale(calque.ones(5, 3, 3)), "[rgb_to_grayscale] expected (..., 1 or 3, H, W), got shape (5, 3, 3)"),
    (lambda: V.center_crop(RGB, "x"), "[center_crop] expected output_size as an int or a tuple of ints, got str"),
    (lambda: V.center_crop(RGB, -1), "[center_crop] expected output_size as one or two ints from 0 to"),
    (lambda: V.five_crop(RGB, (1, 2, 3)), "[five_crop] expected size as one or two ints from 0 to"),
    (lambda: V.resize(RGB, 0), "[resize] expected size as one or two ints from 1 to"),
    (lambda: V.resize(calque.ones(3, 0, 2), 3), "[resize] expected an image with pixels, got 0 rows of 2"),
    (lambda: V.gaussian_blur(RGB, ""), "[gaussian_blur] expected kernel_size as an int or a tuple of ints, got str"),
    (lambda: V.gaussian_blur(RGB, 3, (1.0, 0.0)), "[gaussian_blur] expected sigma as one or two numbers above 0, got (1.0, 0.0)"),
    (lambda: V.pad(V.to_pil_image(RGB), -1), "[pad] expected padding >= 0 for an image of Pillow's, got -1; use crop"),
    (lambda: V.pad(V.to_pil_image(RGB), 1, (1, 2)), "[pad] expected one number as fill, or 3, got (1, 2); one for each channel"),
    (lambda: V.pad(V.to_pil_image(RGB).convert("I"), 1, 1 << 40), "[pad] expected numbers that the result can hold, got"),
    (lambda: V.pad(RGB, -1, padding_mode="edge"), "[pad] expected padding >= 0 where padding_mode is 'edge', got -1; use crop"),
    (lambda: vision.models.resnet34(dtype=3), "[ResNet] expected arguments (block, layers, num_classes=1000, zero_init_residual=False"),
    (lambda: vision.io.write_file("\0", ONE), "[write_file] expected names of files without null bytes, got ('\\x00', Tensor (2, 3)"),
    (lambda: train.Checkpoints("nowhere").save({}, ONE, 3), "[save] expected epoch and step as ints, got"),
    (lambda: vision.ops.DeformConv2d(0, 4, 5), "[DeformConv2d] "),
    (lambda: calque.div(ONE, ONE, rounding_mode=np.ones(3), out=calque.ones(2, 3)), "[div] expected rounding_mode None, 'trunc' or 'floor', got"),
    (lambda: v2.Lambda(abs, 3), "[Lambda] expected classes behind the function, got 3"),
    (lambda: monitor.table_row(1, width=-1), "[table_row] expected width as an int of at least 0, got -1"),
    (lambda: monitor.SummaryWriter("runs").add_images("a", ONE), "[add_images] expected other arguments, got"),
    (lambda: F.ctc_loss(ONE, calque.tensor(0), {1: 2}, [1], 1), "[ctc_loss] expected input_lengths as integers (must be integral), got dict"),
    (lambda: F.ctc_loss(ONE, calque.tensor([0]), [2], calque.ones(1)), "[ctc_loss] expected target_lengths as integers (must be integral), got"),
    (lambda: F.affine_grid(ONE, np.int64(-3), False), "[affine_grid] affine_grid only supports 4D and 5D sizes of positive ints, got size (-3,)"),
    (lambda: F.affine_grid(ONE, ["a"], False), "[affine_grid] expected integers, got str 'a'"),
    (lambda: nn.ReLU().register_forward_hook(print, with_kwargs=np.zeros((0, 3))), "[register_forward_hook] expected a bool, got numpy.ndarray"),
    (lambda: nn.ReLU().register_forward_hook(print, always_call=np.zeros(2)), "[register_forward_hook] expected a bool, got numpy.ndarray"),
    (lambda: nn.ReLU().register_forward_pre_hook(print, prepend=np.zeros(2)), "[register_forward_pre_hook] expected a bool, got numpy.ndarray"),
    (lambda: calque.sum_to_shape(ONE, np.int64(-2)), "[reshape] expected sizes >= 0 or one -1, got shape (-2,)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WRONG)
def test_what_the_fuzzer_found(call: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError, MemoryError, OverflowError)) as caught:
        call()
    assert text in str(caught.value)


def test_what_is_written_into_out_is_not_left_out() -> None:
    """A sparse tensor has a meaning of its own for `zeros_like`, which is no value for a dense `out`."""
    with pytest.raises(TypeError, match="expected an out of the result's layout"):
        calque.zeros_like(calque.eye(2).to_sparse(), out=calque.ones(2, 2))


@pytest.mark.filterwarnings("ignore:Detected call")
@pytest.mark.parametrize("epoch", [iter([]), "1", float("nan"), float("inf"), np.float32("inf"), ONE])
def test_a_schedule_steps_to_a_number(epoch: Any) -> None:
    for make in SCHEDULES:
        schedule = make(calque.optim.SGD([calque.ones(1)], lr=0.1))
        with pytest.raises(TypeError, match=rf"^\[{type(schedule).__name__}\] expected epoch as a finite number or None, got"):
            schedule.step(epoch)


SCHEDULES: list[Any] = [
    lambda o: calque.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 4), lambda o: calque.optim.lr_scheduler.StepLR(o, 2),
    lambda o: calque.optim.lr_scheduler.CosineAnnealingLR(o, 4), lambda o: calque.optim.lr_scheduler.LambdaLR(o, lambda k: 1.0),
]  # fmt: skip


def test_settings_of_any_type_are_shown() -> None:
    assert repr(vision.transforms.Pad(("x", 2.00001))) == "Pad(padding=(x, 2.0), fill=0, padding_mode=constant)"  # type: ignore[arg-type]


def test_elements_of_different_types_are_found() -> None:
    """As in PyTorch. NumPy has no common type of bfloat16 and integers."""
    halves = calque.tensor([1.0, 2.5, 3.0], dtype=calque.bfloat16)
    assert halves.isin(calque.tensor([3, 1])).tolist() == [True, False, True]
    assert calque.tensor([3, 1, 2]).isin(halves).tolist() == [True, True, False]


def test_a_folder_that_no_system_has() -> None:
    with pytest.raises(calque.base.errors.CheckpointError, match="expected a folder that can be written"):
        train.Checkpoints("\0")


def test_a_size_of_numpy_is_summed_to() -> None:
    for size in (3, np.int64(3), (3,), [3]):
        assert calque.sum_to_shape(ONE, size).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_a_cell_without_a_state_works(cell: Any) -> None:
    """As in PyTorch; its gates were looked for in pieces that there are none of."""
    found = cell(2, 0)(calque.ones(3, 2))
    assert (found[0] if isinstance(found, tuple) else found).shape == (3, 0)


@pytest.mark.parametrize("fill", [nn.init.xavier_uniform_, nn.init.xavier_normal_])
def test_nothing_to_initialise_is_initialised(fill: Any) -> None:
    """0 of 0 is no reason to divide by it."""
    assert fill(calque.ones(0, 0)).shape == (0, 0)


NOWHERE = [calque, nn, F, nn.utils, calque.optim, calque.autograd, nn.Linear(1, 1), LBFGS()]


@pytest.mark.parametrize("owner", NOWHERE, ids=lambda o: getattr(o, "__name__", type(o).__name__))
def test_a_long_name_is_said_shortly(owner: Any) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, "x" * 10_000)
    assert len(str(caught.value)) < 400


def test_no_like_name_is_looked_for_where_the_text_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes a time that grows with its square."""
    def asked(name: str, known: list[str], *_: Any) -> list[str]:
        assert len(name) < 1000 and all(len(k) < 1000 for k in known)
        return []

    monkeypatch.setattr(text.difflib, "get_close_matches", asked)
    assert text.nearest("x" * 10_000, ["y" * 9_999], 0.6) == ""
    with pytest.raises(AttributeError) as caught:
        raise missing.refusal("torch", "x" * 10_000, dir(calque))
    assert len(str(caught.value)) < 800
    with pytest.raises(RuntimeError) as refused:
        nn.Linear(1, 1).load_state_dict({"y" * 10_000: ONE})
    assert len(str(refused.value)) < 800


def test_what_has_no_bags_and_no_dims_works() -> None:
    """As in PyTorch; both were errors from inside."""
    bag = nn.EmbeddingBag(3, 4)
    out = bag(calque.zeros(4).long(), calque.zeros(0).long())
    assert out.shape == (0, 4) and out.requires_grad
    assert F.gumbel_softmax(calque.tensor(1.0), 1.0, True).item() == 1.0


def test_what_a_class_does_not_define_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"^\[enumerate_support\] expected a Dirichlet that defines it, got one that does not"):
        d.Dirichlet(calque.ones(3)).enumerate_support()
    with pytest.raises(AssertionError, match="^mine$"):
        calque.testing.assert_close(calque.ones(1), calque.zeros(1), msg="mine")
    with pytest.raises(FileNotFoundError):
        vision.io.read_file("missing")


def test_a_right_call_that_fails_inside_says_so() -> None:
    """The last resort names every argument, and gives way to whoever outside knows which one was wrong."""

    def inner(value: Any) -> Any:
        return blame.answer("inner", inner, (value,), {}, KeyError("x"))

    with pytest.raises(ValueError, match=r"\[inner\] expected other arguments, got \(3\): KeyError: 'x'") as caught:
        try:
            {}["x"]
        except KeyError as error:
            error.__traceback__.tb_frame  # noqa: B018
            raise blame.explained("inner", lambda value: None, (3,), {}, _from_inside()) from None
    assert blame.is_guess(caught.value)
    named = blame.explained("outer", _outer, ("x",), {}, caught.value)
    assert str(named).startswith("[outer] expected a Tensor, got str 'x' as 'value'")


def _outer(value: "calque.Tensor") -> None:
    """A function with an annotation."""


_outer.__annotations__["value"] = "Tensor"


def _from_inside() -> Exception:
    """An error that our code has raised, as code of ours that called it sees it."""
    try:
        calque.base.shapes.prod(None)  # type: ignore[attr-defined]
    except TypeError:
        pass
    try:
        calque.functional.options.size_of("x", None)  # type: ignore[attr-defined]
    except Exception as error:
        found = KeyError("x")
        return found.with_traceback(error.__traceback__.tb_next)  # type: ignore[union-attr]
    raise AssertionError
