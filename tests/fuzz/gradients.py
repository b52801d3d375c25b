"""Gradients beside PyTorch's: `python -m tests.fuzz.gradients --count 10000`.

A sample is one call of one public function (`gradient_cases`), decided by its seed. What is compared: which results require a gradient, their values,
whether a first and a second backward pass is refused, which gradients are None, and their values. A difference that is wanted is a row of `WANTED`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import calque
from tests.fuzz.command import main
from tests.fuzz.gradient_cases import FUNCTIONS, LINALG, METHODS, NN, Draw, Leaf

RTOL = 1e-6


@dataclass(frozen=True)
class Case:
    """A row of the table for one function: where it is (`""`, `nn.functional`, `linalg`, `Tensor`), its name, its arguments."""

    place: str
    name: str
    text: str

    def function(self, library: Any) -> Callable[..., Any]:
        found = library
        for part in filter(None, self.place.split(".")):
            found = getattr(found, part)
        return getattr(found, self.name)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return f"{self.place}.{self.name}".lstrip(".")


def cases() -> list[Case]:
    """Every row for every function of it."""
    found = []
    for place, table in (("", FUNCTIONS), ("nn.functional", NN), ("linalg", LINALG), ("Tensor", METHODS)):
        for line in filter(None, table.splitlines()):
            text, names = line.rsplit(" :: ", 1)
            found += [Case(place, name, text.strip()) for name in names.split()]
    return found


ALL = cases()


def in_place_form(name: str) -> bool:
    """Whether a method has one in both libraries."""
    return hasattr(calque.Tensor, name + "_") and name not in ("eq", "lt", "ge", "logical_not")


class Sample:
    """One call: the case, its arguments with `Leaf`s in the place of tensors, and the weights of the backward passes."""

    def __init__(self, seed: int, only: str = "") -> None:
        self.seed = seed
        rng = np.random.default_rng([seed, 15])
        among = [c for c in ALL if not only or c.name == only or str(c) == only]
        case = among[rng.integers(len(among))]
        draw = Draw(rng)
        self.arguments, self.keywords = eval(f"call({case.text})", draw.names())
        leaves = [leaf for leaf in self.leaves() if leaf.array.dtype.kind == "f"]
        if not any(leaf.needs for leaf in leaves) and leaves:
            leaves[0].needs = True
        self.case, self.name = case, case.name
        self.method = case.place == "" and rng.random() < 0.5 and isinstance(self.arguments[0], Leaf)
        if self.method and rng.random() < 0.3 and in_place_form(case.name):
            self.name = case.name + "_"
        self.weighted = bool(rng.random() < 0.5)  # whether the weights of the first pass require gradients themselves
        self.weights = np.random.default_rng([seed, 16])
        self.turns = int(np.random.default_rng([seed, 17]).choice([0, 0, 4]))  # so often it has been computed and differentiated once before

    def leaves(self) -> list[Leaf]:
        """All inputs, in order."""
        return list(_leaves((self.arguments, tuple(self.keywords.values()))))

    def __str__(self) -> str:
        keywords = "".join(f", {name}={value}" for name, value in self.keywords.items())
        return f"{self.case}{self.name[len(self.case.name):]}({', '.join(map(str, self.arguments))}{keywords}) [{self.case.text}]"


def _leaves(value: Any) -> Iterator[Leaf]:
    if isinstance(value, Leaf):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)


class Outcome:
    """What a library makes of a sample, stage by stage: (stage, facts) in order, until an error ends it."""

    def __init__(self, library: Any, sample: Sample) -> None:
        self.stages: list[tuple[str, Any]] = []
        self.error: BaseException | None = None
        self.weights = np.random.default_rng([sample.seed, 16])
        stage = "forward"
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                for _ in range(sample.turns if library is calque else 0):  # the code that runs is another one then
                    outputs, inputs = self._call(library, sample)
                    found = [t for t in outputs if t.requires_grad]
                    if found and inputs:
                        _arrays(library.autograd.grad(found, inputs, [library.ones_like(t) for t in found], allow_unused=True))
                for stage, facts in self._run(library, sample):
                    self.stages.append((stage, facts))
            except Exception as error:
                self.error = error
                self.stages.append(("error", None))

    def _call(self, library: Any, sample: Sample) -> tuple[list[Any], list[Any]]:
        """(results, inputs that require a gradient) of one call."""
        made: dict[int, Any] = {id(leaf): leaf.tensor(library) for leaf in sample.leaves()}
        inputs = [t for t in made.values() if t.requires_grad]
        name, first = sample.name, next(_leaves(sample.arguments), None)
        given = dict(made)
        if (name.endswith("_") and not name.endswith("__")) or name == "__setitem__":
            given[id(first)] = made[id(first)] * 1
        target = None if first is None else given[id(first)]

        def build(value: Any) -> Any:
            if isinstance(value, Leaf):
                return given[id(value)]
            return type(value)(build(v) for v in value) if isinstance(value, (tuple, list)) else value

        arguments, keywords = build(sample.arguments), {k: build(v) for k, v in sample.keywords.items()}
        if sample.method and hasattr(library.Tensor, name):
            result = getattr(library.Tensor, name)(*arguments, **keywords)
        else:
            result = sample.case.function(library)(*arguments, **keywords)
        outputs = list(_flat(target if name == "__setitem__" else result, library))
        if name == "lstsq":
            outputs = outputs[:1]
        return outputs, inputs

    def _run(self, library: Any, sample: Sample) -> Iterator[tuple[str, Any]]:
        outputs, inputs = self._call(library, sample)
        yield "requires_grad", [t.requires_grad for t in outputs]
        yield "values", [_array(t) for t in outputs]
        roots = [t for t in outputs if t.requires_grad]
        if not roots or not inputs:
            return
        weights = [self._weight(library, tuple(t.shape), sample.weighted) for t in roots]
        gradients = library.autograd.grad(roots, inputs, weights, create_graph=True, allow_unused=True)
        yield "first gradients", _arrays(gradients)
        weighted = [self._weight(library, tuple(t.shape), False) for t in inputs]
        again = [(g * weight).sum() for g, weight in zip(gradients, weighted, strict=True) if g is not None and g.requires_grad]
        wanted = [*inputs, *weights] if sample.weighted else inputs
        if not again:
            yield "second gradients", [None] * len(wanted)
            return
        total = again[0]
        for more in again[1:]:
            total = total + more
        yield "second gradients", _arrays(library.autograd.grad(total, wanted, allow_unused=True))

    def _weight(self, library: Any, shape: tuple[int, ...], needs: bool) -> Any:
        t = library.from_numpy(np.asarray(self.weights.uniform(0.5, 1.5, shape)))
        return t.requires_grad_() if needs else t


def _flat(result: Any, library: Any) -> Iterator[Any]:
    if isinstance(result, library.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from _flat(item, library)


def _array(t: Any) -> np.ndarray[Any, Any]:
    detached = t.detach()
    return np.array(detached.numpy(force=True) if hasattr(detached, "_is_zerotensor") else detached.numpy())


def _arrays(gradients: Any) -> list[Any]:
    return [None if g is None else _array(g) for g in gradients]


def difference(ours: Outcome, theirs: Outcome, empty: bool) -> str:
    """What differs first, or nothing."""
    for (stage, a), (there, b) in zip(ours.stages, theirs.stages):
        if stage != there:
            if stage == "error":
                return f"we refuse: {type(ours.error).__name__}: {' '.join(str(ours.error).split())[:400]}; PyTorch: {there} {_short(b)}"
            if there == "error":
                return f"PyTorch refuses: {type(theirs.error).__name__}: {' '.join(str(theirs.error).split())[:300]}; we: {stage} {_short(a)}"
            return f"we come to {stage} {_short(a)}, PyTorch to {there} {_short(b)}"
        if "gradients" in stage:
            a, b = _settled(stage, a, b, empty)
        if stage != "error" and not _equal(a, b):
            return f"{stage}: {_short(a)}, PyTorch's {_short(b)}"
    if len(ours.stages) != len(theirs.stages):
        longer, who = (ours, "we") if len(ours.stages) > len(theirs.stages) else (theirs, "PyTorch")
        stage, facts = longer.stages[min(len(ours.stages), len(theirs.stages))]
        return f"{who} alone come to {stage} {_short(facts)} {longer.error if stage == 'error' else ''}"
    return ""


def _settled(stage: str, a: list[Any], b: list[Any], empty: bool) -> tuple[list[Any], list[Any]]:
    """Gradients of both libraries without the differences that stay. PyTorch's formulas meet 0 * infinity at some kinks where ours do not; in second
    gradients they say zeros or nothing at random where all is zero (ours may say zeros, but not nothing, for a derivative that exists); and where
    there is nothing to differentiate, second gradients are 0 / 0 or 0."""
    settled = []
    for x, y in zip(a, b, strict=True):
        if x is not None and y is not None and x.shape == y.shape:
            y = np.where(np.isfinite(y) if stage == "second gradients" else ~np.isnan(y), y, x)
        if y is None and x is not None and not _size(x):
            x = None
        if stage == "second gradients":
            if (x is None or not x.size) and (y is None or not y.size):
                x = y = None
        settled.append((x, y))
    if stage == "second gradients" and empty:
        settled = [(None, None) if all(z is None or not _size(z) for z in pair) else pair for pair in settled]
    return [x for x, _ in settled], [y for _, y in settled]


def _size(x: np.ndarray[Any, Any]) -> float:
    """The largest number of a gradient, 0 for rounding errors."""
    size = float(np.max(np.abs(np.nan_to_num(x)), initial=0.0))
    return size if size > 1e-9 else 0.0


def _equal(a: Any, b: Any) -> bool:
    if len(a) != len(b):
        return False
    scale = max((float(np.max(np.abs(y[np.isfinite(y)]), initial=1.0)) for y in b if isinstance(y, np.ndarray) and y.dtype.kind == "f"), default=1.0)
    for x, y in zip(a, b):
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            if x.shape != y.shape or x.dtype != y.dtype:
                return False
            if x.dtype.kind == "f":
                if not np.allclose(x, y, rtol=RTOL, atol=1e-9 * scale, equal_nan=True):
                    return False
            elif not np.array_equal(x, y):
                return False
        elif isinstance(x, np.ndarray) or isinstance(y, np.ndarray) or x is not y:
            return False
    return True


def _short(facts: Any) -> str:
    if not isinstance(facts, list):
        return str(facts)
    return "; ".join(f"{x.dtype.name}{list(x.shape)} {np.round(x, 6).tolist()}" if isinstance(x, np.ndarray) else str(x) for x in facts)[:500]


# Public functions without a row, by reason.
WITHOUT: dict[str, str] = {
    name: reason
    for reason, names in {
        "makes something of nothing, or like something": """
            arange as_tensor asarray empty empty_like eye from_dlpack from_numpy frombuffer full full_like linspace logspace
            new new_empty new_full new_ones new_tensor new_zeros ones scalar_tensor tensor tril_indices triu_indices zeros
            """,
        "a staircase that the gradient goes straight through: tests/oracle/test_fake_quantise.py": """
            fake_quantize_per_channel_affine fake_quantize_per_tensor_affine
            """,
        "random": """
            bernoulli bernoulli_ dropout1d dropout2d dropout3d exponential_ gumbel_softmax multinomial normal normal_ rand
            rand_like randint randint_like randn randn_like random_ randperm uniform_
            """,
        "results or operands are integers or truths": """
            argwhere bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bool bucketize byte
            char gcd greater greater_equal gt int isin isneginf isposinf isreal lcm le less less_equal logical_and logical_or
            logical_xor long matrix_rank ne nonzero not_equal one_hot searchsorted short
            """,
        "PyTorch has no derivative": """
            floor_divide heaviside histc map_
            """,
        "signs of its vectors differ between LAPACKs: see tests/oracle/test_decompositions.py": """
            eigh svd
            """,
        "sparse tensors have comparisons of their own: see tests/oracle/test_sparse.py": """
            ccol_indices coalesce col_indices crow_indices dense_dim dsmm hspmm indices is_coalesced row_indices smm sparse_compressed_tensor
            sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor sparse_dim sparse_mask spmm sspaddmm to_dense to_sparse to_sparse_coo to_sparse_csc
            to_sparse_csr values
            """,
        "its parts have rows": """
            convolution max_pool1d_with_indices max_pool2d_with_indices multi_head_attention_forward upsample_bilinear upsample_nearest
            """,
        "rounds to 16 or 32 bits": """
            bfloat16 float half
            """,
        "gives no tensor, or asks or tells about one": """
            broadcast_shapes can_cast data_ptr dim element_size equal get_device is_complex is_conj is_contiguous
            is_floating_point is_inference is_neg is_nonzero is_pinned is_set_to is_shared is_signed is_tensor item ndimension
            nelement numel numpy promote_types result_type size storage storage_offset stride to_dlpack tolist type typed_storage
            untyped_storage
            """,
        "moves, or changes what a tensor is": """
            as_subclass cpu cuda pin_memory register_hook register_post_accumulate_grad_hook requires_grad_ resize_ retain_grad set_ to
            backward
            """,
        "compared on the samples of PyTorch's operator database, with gradients: see tests/oracle/opinfo.py": """
            adaptive_avg_pool3d adaptive_max_pool3d alias_copy as_strided_copy as_strided_scatter avg_pool3d cdouble cfloat
            cholesky_ex cholesky_inverse cholesky_solve complex conj_physical constant_pad_nd conv_transpose3d ctc_loss
            cumulative_trapezoid diagonal_copy eig eigvals expand_copy fill fractional_max_pool2d fractional_max_pool3d frexp
            gradient grid_sample grid_sampler_2d grid_sampler_3d householder_product i0 i0_ imag index_reduce index_reduce_ inv_ex
            istft linear_cross_entropy lu lu_factor lu_factor_ex lu_solve lu_unpack matrix_exp max_pool3d max_unpool1d
            max_unpool2d max_unpool3d multilabel_margin_loss mvlgamma mvlgamma_ narrow_copy native_batch_norm native_group_norm
            native_layer_norm nextafter nextafter_ orgqr ormqr pca_lowrank permute_copy polar polygamma polygamma_ renorm renorm_
            resolve_conj resolve_neg segment_reduce solve_ex solve_triangular split_with_sizes_copy squeeze_copy stft svd_lowrank
            t_copy tensorinv tensorsolve transpose_copy triangular_solve unbind_copy unfold_copy unsafe_chunk unsafe_split
            unsqueeze_copy vander view_as_complex view_as_complex_copy view_as_real view_as_real_copy view_copy
            """,
        "random as well": """
            binomial cauchy_ geometric_ log_normal_ poisson
            """,
        "has no gradient, or only of some operands, or is no function of tensors alone": """
            apply_ bartlett_window blackman_window detach_copy dim_order empty_permuted empty_strided geqrf hamming_window
            hann_window histogram histogramdd is_same_size kaiser_window ldl_factor ldl_factor_ex ldl_solve map2_
            new_empty_strided nonzero_static range resize_as_ share_memory_ unravel_index vmap igamma igamma_ igammac igammac_
            """,
        "no row yet, and not in the operator database under this name: values alone are tested, or the function that it is made of": """
            adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices affine_grid
            conv_tbc fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices grid_sampler lp_pool3d
            max_pool3d_with_indices native_channel_shuffle select_copy slice_copy split_copy unsafe_split_with_sizes
            """,
        "of the library, not of tensors": """
            are_deterministic_algorithms_enabled compile get_autocast_dtype get_default_device get_default_dtype
            get_float32_matmul_precision get_num_threads get_rng_state initial_seed is_autocast_enabled
            is_deterministic_algorithms_warn_only_enabled is_grad_enabled is_inference_mode_enabled load manual_seed save seed
            set_autocast_dtype set_autocast_enabled set_default_device set_default_dtype set_float32_matmul_precision
            set_num_threads set_printoptions set_rng_state use_deterministic_algorithms
            """,
    }.items()
    for name in names.split()
}

# Differences that stay: (name or "", part of the description) -> why.
WANTED: dict[tuple[str, str], str] = {
    ("", "PyTorch refuses: NotImplementedError"): "a kernel or a derivative that PyTorch does not have",
    ("", "is not implemented"): "the same, as a RuntimeError",
    ("", "is not differentiable with respect to argument"): "the same",
    ("copy_", "first gradients: None"): "what is overwritten is out of the graph (decision 0014)",
    ("fill_", "first gradients: None"): "what is overwritten is out of the graph (decision 0014)",
    ("trapezoid", "requires_grad: True, PyTorch's False"): "PyTorch's zeros of nothing have no history",
    ("trapz", "requires_grad: True, PyTorch's False"): "PyTorch's zeros of nothing have no history",
    ("corrcoef", "second gradients"): "of rows that are multiples of each other rounding decides whether the clip at 1 is reached",
    ("block_diag", "first gradients"): "PyTorch takes the gradient of the wrong rows after an empty vector",
    ("embedding", "second gradients"): "PyTorch's second pass forgets scale_grad_by_freq",
    ("median", "values: "): "PyTorch's median along a dim sorts expanded memory in place, and gives wrong values",
    ("nanmedian", "values: "): "the same",
    ("batch_norm", "PyTorch's None; None"): "PyTorch forgets the weight if the input is a constant",
    ("instance_norm", "PyTorch's None; None"): "PyTorch forgets the weight if the input is a constant",
    ("norm", "If dim is specified, it must be of length 1 or 2"): "the vector norm of three dims",
    ("layer_norm", "PyTorch's None; None"): "PyTorch forgets the weight if the input is a constant",
    ("dist", "Expected a proper Tensor but got None"): "PyTorch's backward pass fails for p=0",
    ("take_along_dim", "view size is not compatible"): "PyTorch needs contiguous memory without a dim",
    ("batch_norm", "Expected a proper Tensor but got None"): "PyTorch's second pass fails without a weight",
    ("scatter_add", "returned an invalid gradient at index"): "PyTorch forgets that the source may be larger than the index",
    ("kron", "view size is not compatible"): "PyTorch's backward pass fails for permuted operands",
    ("group_norm", "is invalid for input of size"): "PyTorch's second pass fails without a weight",
    ("group_norm", "Expected a proper Tensor but got None"): "PyTorch's second pass fails without a weight",
    ("instance_norm", "Expected a proper Tensor but got None"): "PyTorch's second pass fails without a weight",
    ("layer_norm", "Expected a proper Tensor but got None"): "PyTorch's second pass fails without a weight",
    ("embedding", "cannot reshape tensor of 0 elements"): "PyTorch's second pass fails without positions",
    ("channel_shuffle", "Number of groups to divide channels in must be positive"): "PyTorch's backward pass fails without channels",
}


def mismatch(seed: int, only: str = "") -> tuple[Sample, str]:
    """The sample of a seed, and how the libraries differ on it ("" if they agree)."""
    import torch

    sample = Sample(seed, only)
    text = difference(Outcome(calque, sample), Outcome(torch, sample), any(not leaf.array.size for leaf in sample.leaves()))
    if text and any(name in ("", sample.case.name) and part in text for name, part in WANTED):
        text = ""
    return sample, text


FOUND: Counter[str] = Counter()


def check(seed: int, only: str, shown: int) -> str:
    """"" or the difference of a seed; of each function so many are told."""
    sample, text = mismatch(seed, only)
    FOUND[str(sample.case)] += bool(text)
    return f"seed {seed}: {sample}\n    {text}" if text and FOUND[str(sample.case)] <= shown else ""


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.gradients", __doc__, check, also=lambda: str(dict((+FOUND).most_common())), only="", shown=2))
