"""Every public function, method and class beside PyTorch's of that name: names of parameters, their order, which go by name alone, defaults.

What differs on purpose is in `DIFFERENT`, with the reason; what does not differ any more has to leave it.
"""

from __future__ import annotations

import enum
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.signatures import EMPTY, UNKNOWN, Signature, from_python, overloads  # noqa: E402

pytestmark = pytest.mark.oracle

PLACES = [
    "",
    "Tensor",
    "amp",
    "autograd",
    "autograd.functional",
    "func",
    "linalg",
    "nn",
    "nn.functional",
    "nn.init",
    "nn.parallel",
    "nn.utils",
    "nn.utils.parametrizations",
    "nn.utils.parametrize",
    "nn.utils.rnn",
    "optim",
    "optim.lr_scheduler",
    "optim.swa_utils",
    "utils.checkpoint",
    "utils.data",
]

# Parameters that nothing here has a use for, wherever they are: refused as unknown keywords, with the function's own parameters in the text.
NOWHERE = {
    "out": "functions that take it do so in the frame that users call (calque/record/outputs.py), which shows the parameters of what it calls",
    "out_dtype": "PyTorch offers it on CUDA alone",
    "names": "named tensors are not offered",
    "cudnn_enabled": "there is no cuDNN",
    "cudnn_enable": "there is no cuDNN",
    "_disable_byteorder_record": "there is one byte order",
    "scalar": "names of PyTorch's overloads for numbers, which go by position",
    "scalar1": "as `scalar`",
    "scalar2": "as `scalar`",
    "element": "as `scalar`",
    "test_element": "as `scalar`",
    "tensor_indices_or_sections": "as `scalar`",
    "orig_func": "decorators take the function by position",
}

# Name -> reason.
DIFFERENT = {
    "Tensor.new": "any of the ways to call the old constructor",
    "compile": "records and replays; it has no back ends to choose from",
    "is_tensor": "takes its argument by position",
    "set_default_dtype": "takes its argument by position",
    "result_type": "PyTorch names the parameters of each overload",
    "set_num_threads": "takes its argument by position",
    "rrelu": "draws from the default generator",
    "rrelu_": "draws from the default generator",
    "tensor": "the stub shows as positional what PyTorch takes by name alone",
    "Tensor.new_tensor": "as `tensor`",
    "norm": "dtype by name alone",
    "Tensor.norm": "dtype by name alone",
    "Tensor.requires_grad_": "the stub says `mode`, PyTorch takes `requires_grad`",
    "amp.GradScaler": "there is no CUDA to be the default",
    "dtype": "nobody makes one", "layout": "nobody makes one", "memory_format": "nobody makes one",
    "Tensor.to": "another tensor goes by position, in PyTorch too",
    "linalg.matrix_power": "PyTorch takes `input`, whatever it documents",
}


def pairs() -> list[tuple[str, Any, list[Signature]]]:
    """Whatever both libraries have, with PyTorch's overloads."""
    found = []
    for place in PLACES:
        ours, theirs = calque, torch
        for part in filter(None, place.split(".")):
            ours, theirs = getattr(ours, part), getattr(theirs, part)
        for name in sorted(n for n in dir(ours) if not n.startswith("_") and hasattr(theirs, n)):
            function = getattr(ours, name)
            home = str(getattr(function, "__module__", ""))
            if callable(function) and home.startswith("calque") and not (isinstance(function, type) and issubclass(function, BaseException)):
                known = overloads(place, name, getattr(theirs, name))
                if known:
                    found.append((f"{place}.{name}".lstrip("."), function, known))
    return found


PAIRS = pairs()


def same(ours: Any, theirs: Any) -> bool:
    """Whether two defaults mean the same. `None`, `()` and False all say "not asked for", and an object that only PyTorch has is not compared."""
    plain = (None, (), False, EMPTY)
    if theirs is UNKNOWN or theirs is Ellipsis or ours == theirs or (ours in plain and theirs in plain):
        return True
    if isinstance(theirs, enum.Enum):
        return bool(ours == theirs.value)
    known = (bool, int, float, str, tuple, list)
    return not isinstance(theirs, known) or str(ours).rpartition(".")[2] == str(theirs).rpartition(".")[2] or not isinstance(ours, known)


def differences(function: Any, known: list[Signature]) -> list[str]:
    """What a caller of PyTorch's function would stumble over."""
    ours = from_python(function)
    own = dict((*ours.positional, *ours.named))
    wrong = []
    for theirs in known:
        given = [(n, d) for k, (n, d) in enumerate(theirs.positional) if n != "self" and not (k == 0 and n == "input")]
        missing = [n for n, _ in (*given, *theirs.named) if n not in own and n not in NOWHERE]
        wrong += [f"has no {n}" for n in missing]
        needed = [n for n, d in (*given, *theirs.named) if d is EMPTY]
        if not missing and not theirs.star and not NOWHERE.keys() & theirs.names:
            unasked = [n for n, d in ours.positional if d is EMPTY and n not in ("self", "input", *needed)]
            wrong += [f"needs {n} beside {needed}" for n in unasked]
        for name, default in (*given, *theirs.named):
            if name in own and default is not EMPTY and len(known) == 1:
                if own[name] is EMPTY:
                    wrong.append(f"needs {name}, whose default is {default!r}")
                elif not same(own[name], default):
                    wrong.append(f"{name}={own[name]!r} where PyTorch has {default!r}")
    wanted = [n for n, _ in max(known, key=lambda s: len(s.positional)).positional if n not in ("self", "input", *NOWHERE)]
    order = [n for n, _ in ours.positional if n not in ("self", "input")]
    if len(known) == 1 and not known[0].star and not ours.star and order[: len(wanted)] != wanted:
        wrong.append(f"takes {order} by position where PyTorch takes {wanted}")
    if ours.stars and not any(s.stars for s in known):
        wrong.append("takes any keyword")
    return list(dict.fromkeys(wrong))


def test_all_signatures() -> None:
    found = {name: text for name, function, known in PAIRS if (text := differences(function, known))}
    unsaid = {name: text for name, text in found.items() if name not in DIFFERENT}
    assert not unsaid, "\n".join(f"{name}: {', '.join(text)}" for name, text in unsaid.items())
    settled = sorted(name for name in DIFFERENT if name not in found)
    assert not settled, f"no longer different: {settled}"
    assert len(PAIRS) > 1150


def test_the_comparison_can_fail() -> None:
    def ours(input: Any, dims: Any, *, keep: bool = True, **more: Any) -> None: ...

    theirs = Signature((("input", EMPTY), ("dim", EMPTY), ("keep", False)), (("dtype", None),))
    text = "; ".join(differences(ours, [theirs]))
    for part in ("has no dim", "has no dtype", "keep=True where PyTorch has False", "by position", "takes any keyword"):
        assert part in text


# Keywords that a difference was found in, and what they do.
CALLS = [
    "T.flip(x, dims=(0,))",
    "x.flip(dims=[0, 1])",
    "T.tile(x, dims=(2, 1))",
    "x.permute(dims=(1, 0))",
    "x.reshape(shape=(3, 2))",
    "x.view(size=(3, 2))",
    "x.expand(size=(2, 2, 3))",
    "x.repeat(repeats=(2, 1))",
    "T.broadcast_to(x, size=(2, 2, 3))",
    "x.swapaxes(axis0=0, axis1=1)",
    "T.arange(end=3)",
    "x.split(split_size=1)",
    "T.split(x, split_size_or_sections=1)",
    "x.clone().copy_(other=x * 2)",
    "T.hsplit(x, sections=3)",
    "T.hsplit(x, indices=(1,))",
    "T.tensor_split(x, indices=(1,), dim=1)",
    "T.dropout(x, p=0.5, train=False)",
    "T.arange(3, out=T.empty(3, dtype=T.int64))",
    "T.zeros(2, out=T.ones(2))",
    "T.linalg.matrix_rank(s, atol=0.5)",
    "T.linalg.matrix_rank(s, rtol=0.5)",
    "T.linalg.matrix_rank(s, atol=0.5, rtol=0.1, hermitian=True)",
    "T.linalg.pinv(s, atol=0.5)",
    "T.linalg.pinv(s, rtol=0.3, hermitian=True)",
    "T.linalg.cond(s, 1)",
    "T.linalg.cond(s, 'fro')",
    "T.linalg.cond(T.ones(2, 2), 1)",
    "T.linalg.cholesky(s, upper=True)",
    "T.linalg.matrix_norm(x, dtype=T.float64)",
    "T.linalg.svd(s, driver=None).S",
    *[
        f"T.linalg.lstsq({a}, {b}, driver={d!r})"
        for a, b in (("x.T", "y.T"), ("x", "y"), ("s", "y[:, 0]"))
        for d in (None, "gels", "gelsy", "gelsd", "gelss")
    ],
    *[f"F.conv3d({i}, w, padding={p!r}, dilation=(1, 2, 1), groups=2)" for i in ("v", "v[0]") for p in ("same", "valid", 1, (0, 1, 2))],
    "T.zeros(2, layout=T.strided, pin_memory=False)",
    "T.randint_like(x, 1, dtype=T.int64, device='cpu')",
    "T.normal(size=(0,), mean=0.0, std=1.0)",
    "T.nn.Hardtanh(min_val=-0.5, max_val=0.5)(x)",
    "T.cdist(x, x, compute_mode='donot_use_mm_for_euclid_dist')",
    "F.softplus(x, beta=0.0)",
]
REFUSED = [
    ("T.linalg.svd(s, driver='gesvd')", "[linalg.svd] expected driver=None on a CPU, got 'gesvd'"),
    ("T.linalg.lstsq(s, s, driver='x')", "[linalg.lstsq] expected driver 'gels', 'gelsy', 'gelsd' or 'gelss', got 'x'"),
    ("T.hsplit(x)", "[hsplit] expected one of indices_or_sections, indices and sections, got 0"),
    ("T.cdist(x, x, compute_mode='x')", "[cdist] expected compute_mode as one of"),
    ("T.zeros(2, layout='x')", "[zeros] expected layout=calque.strided"),
    ("T.zeros(2, colour=1)", "got an unexpected keyword argument 'colour'"),
    ("x.reshape(colour=1)", "unexpected keyword argument 'colour'"),
    ("T.autograd.gradcheck(lambda t: t, (x.double().requires_grad_(),), colour=1)", "unexpected keyword argument 'colour'"),
]


def run(T: Any, call: str) -> Any:
    def grid(*shape: int) -> Any:
        count = 1
        for extent in shape:
            count *= extent
        return (T.arange(count, dtype=T.float32).reshape(shape) * 0.37).sin()

    x, y = grid(2, 3), grid(2, 3) * 0.5 + 1.0
    s = T.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.1], [0.0, 0.1, 0.3]])
    return eval(
        call, {"T": T, "F": T.nn.functional, "x": x, "y": y if "(s," not in call else y.T, "s": s, "v": grid(1, 4, 5, 6, 7), "w": grid(6, 2, 2, 3, 2)}
    )


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_keywords_do_what_they_do(call: str) -> None:
    found, wanted = run(calque, call), run(torch, call)
    several = isinstance(wanted, (tuple, list))
    assert isinstance(found, (tuple, list)) == several
    for ours, theirs in zip(found if several else (found,), wanted if several else (wanted,), strict=True):
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert str(ours.dtype) == str(theirs.dtype)
        torch.testing.assert_close(
            torch.tensor(ours.tolist(), dtype=theirs.dtype).reshape(theirs.shape), theirs, rtol=2e-5, atol=2e-6, equal_nan=True
        )


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_keywords_refused(call: str, text: str) -> None:
    with pytest.raises(Exception):  # noqa: B017
        run(torch, call)
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        run(calque, call)
