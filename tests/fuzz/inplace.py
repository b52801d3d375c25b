"""Random in-place writes between a function and the backward pass: which of them PyTorch minds, and what the gradients are then.

A case makes leaves and values that depend on them, applies functions, writes in place to an operand, a result, a view of either, `.data` or a
detached alias, or applies the in-place form of a function, and differentiates. Where PyTorch gives gradients, Calque gives the same. Where PyTorch
refuses, Calque may have kept what the gradient needs (see docs/decisions/0014): then the gradients are those of the values that were saved.

`python -m tests.fuzz.inplace --count 10000` needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import calque
from tests.fuzz.beside import Case, Operand, checked, different, run
from tests.fuzz.command import main

ONE = (
    "{0}.relu()", "{0}.sigmoid()", "{0}.tanh()", "{0}.exp()", "{0}.sin()", "{0}.abs()", "{0}.sqrt()", "{0}.rsqrt()", "{0}.reciprocal()",
    "{0}.log()", "{0}.log1p()", "{0}.expm1()", "{0}.square()", "{0}.neg()", "{0} ** 2", "{0} ** 3", "{0} ** 1.5", "{0} ** 0.5", "{0} * 2",
    "2 / {0}", "{0} / 2", "{0} + 1", "1 - {0}", "{0}.clamp(0.5, 1.5)", "{0}.clamp_min(0.7)", "F.silu({0})", "F.gelu({0})",
    "F.gelu({0}, approximate='tanh')", "F.hardswish({0})", "F.mish({0})", "F.elu({0})", "F.selu({0})", "F.celu({0}, 0.5)",
    "F.leaky_relu({0}, 0.1)", "F.hardtanh({0})", "F.softplus({0})", "F.logsigmoid({0})",
    "F.softsign({0})", "F.tanhshrink({0})", "F.softshrink({0})", "F.hardshrink({0})", "F.relu6({0})", "F.softmax({0}, -1)",
    "F.log_softmax({0}, 0)", "{0}.sum(0, keepdim=True)", "{0}.mean(1, keepdim=True)", "{0}.cumsum(0)", "{0}.cumprod(1)",
    "{0}.prod(1, keepdim=True)", "{0}.logsumexp(0, keepdim=True)", "{0}.amax(0, keepdim=True)", "{0}.max(1, keepdim=True)[0]",
    "{0}.std(0, keepdim=True)", "{0}.var(1, keepdim=True)", "{0}.norm(dim=1, keepdim=True)", "{0}.norm()", "{0}.sort(1)[0]", "{0}.flip(0)",
    "{0}.roll(1, 0)", "{0}.tril()", "{0}.clone()", "{0}.t().contiguous().t()", "{0}.gather(1, T.tensor([[0, 2, 1], [1, 1, 0]]))",
    "{0}[:, [0, 0, 2]]", "{0}.index_select(0, T.tensor([1, 0]))", "F.layer_norm({0}, (3,))", "F.group_norm({0}, 1)", "F.normalize({0})",
    "F.dropout({0}, 0.0)", "{0}.masked_fill({0} > 1, 0.5)", "{0}.lerp({0} * 2, 0.3)", "{0}.tan()", "{0}.asin()", "{0}.atan()", "{0}.cosh()",
    "{0}.erf()", "{0}.erfinv()", "{0}.digamma()", "{0}.lgamma()", "{0}.frac()", "{0}.round()", "{0}.sign()", "{0}.nan_to_num()",
    "{0}.log2()", "{0}.log10()", "{0}.logit()", "{0}.sinc()", "F.threshold({0}, 0.7, 0.2)", "F.glu(T.cat([{0}, {0}], 1))",
    "{0}.diff(dim=1, prepend={0}[:, :1])", "{0}.float().double()", "{0}.median(1, keepdim=True)[0]",
    "F.avg_pool1d({0}[None], 2)[0].repeat(1, 3)", "F.max_pool1d({0}[None], 2)[0].repeat(1, 3)", "{0}.repeat(2, 1)[1:3]",
    "F.pad({0}, (1, 0))[:, :3]", "F.rms_norm({0}, (3,))", "{0}.topk(2, 1)[0][:, :1]",
    "{0}.unsqueeze(0).squeeze(0)", "{0}.view(3, 2).t()", "{0}.expand(2, 3)", "{0}.where({0} > 1, {0} * 3)", "{0}.pow({0})", "{0}.float_power(2)",
    "{0}.deg2rad()", "{0}.logcumsumexp(0)", "T.exp2({0})", "T.erfc({0})", "T.sinh({0})", "T.asinh({0})", "T.atanh({0})", "T.acosh({0} + 1)",
    "T.acos({0})", "T.cos({0})", "{0}.ceil()", "{0}.floor()", "{0}.trunc()", "{0}.sgn()", "T.pow({0}, 0.5)", "T.pow({0}, -1)", "{0} ** -2",
    "{0} ** 1", "{0} ** 0", "2 ** {0}", "T.pow(2, {0})", "{0}.rad2deg()", "{0} % 0.7", "T.fmod({0}, 0.7)", "F.softmin({0}, 0)",
    "{0}.div(0.3, rounding_mode='floor')", "T.ldexp({0}, T.tensor(2))", "F.hardsigmoid({0})", "F.tanh({0})", "F.sigmoid({0})", "F.rrelu({0})",
    "F.prelu({0}, T.tensor([0.3], dtype=T.float64))", "{0}.cummax(0)[0]", "{0}.cummin(1)[0]", "{0}.amin(0, keepdim=True)",
    "{0}.aminmax(dim=0, keepdim=True)[0]", "{0}.nanmean(0, keepdim=True)", "{0}.nansum(0, keepdim=True)", "{0}.quantile(0.3)",
    "{0}.kthvalue(1, 1, keepdim=True)[0]", "{0}.mode(1, keepdim=True)[0]", "{0}.trace()", "{0}.diag()[:, None]", "F.instance_norm({0}[None])[0]",
    "{0}.dist({0} * 2)", "{0}.clamp_max(0.7)", "{0}.clip(0.2, 0.8)", "{0}.scatter(1, T.tensor([[0], [1]]), 0.5)",
    "{0}.index_add(0, T.tensor([0]), {0}[:1])", "{0}.index_fill(0, T.tensor([0]), 0.5)", "{0}.take(T.tensor([0, 3, 1]))",
    "F.pad({0}[None], (1, 1), mode='reflect')[0, :, :3]", "F.local_response_norm({0}[None], 2)[0]", "T.trapezoid({0})", "{0}.hypot({0})",
)  # fmt: skip
TWO = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "{0} ** {1}", "T.maximum({0}, {1})", "T.minimum({0}, {1})",
    "T.where({0} > {1}, {0}, {1})", "T.lerp({0}, {1}, 0.3)", "T.lerp({0}, {1}, {0})", "T.addcmul({0}, {1}, {0})", "T.addcdiv({0}, {1}, {0})",
    "{0} @ {1}.t() @ {0}", "T.atan2({0}, {1})", "T.hypot({0}, {1})", "T.add({0}, {1}, alpha=2)", "T.sub({0}, {1}, alpha=0.5)",
    "T.cat([{0}, {1}])[1:3]", "T.stack([{0}, {1}]).sum(0)", "F.mse_loss({0}, {1})", "F.l1_loss({0}, {1})", "F.smooth_l1_loss({0}, {1})",
    "F.huber_loss({0}, {1})", "F.kl_div({0}, {1})", "F.cosine_similarity({0}, {1})[:, None]", "F.linear({0}, {1}).repeat(1, 2)[:, :3]",
    "T.logaddexp({0}, {1})", "T.xlogy({0}, {1})", "T.copysign({0}, {1})", "T.fmod({0}, {1})", "T.remainder({0}, {1})", "T.fmax({0}, {1})",
    "{0}.masked_fill({1} > 1, 2.0)", "T.baddbmm({0}[None], {1}[None], T.eye(3, dtype=T.float64)[None])[0]",
    "T.addmm({0}, {1}, T.eye(3, dtype=T.float64))", "T.einsum('ij,kj->ik', {0}, {1}) @ {0}", "F.poisson_nll_loss({0}, {1})",
    "F.margin_ranking_loss({0}, {1}, {0}.detach().sign())", "F.prelu({0}, {1}[0, :1])",
    "F.layer_norm({0}, (3,), {1}[0], {1}[1])", "F.conv1d({0}[None], {1}.unsqueeze(2)[:, :2])[0]", "F.embedding(T.tensor([0, 1]), {0})",
    "T.div({0}, {1}, rounding_mode='floor')", "T.div({0}, {1}, rounding_mode='trunc')", "T.logaddexp2({0}, {1})", "T.ldexp({0}, {1})",
    "T.fmin({0}, {1})", "F.binary_cross_entropy({0}, {1})", "F.binary_cross_entropy_with_logits({0}, {1})",
    "F.gaussian_nll_loss({0}, {1}, {0}.detach().abs())", "F.hinge_embedding_loss({0}, {1}.detach().sign())",
    "F.cosine_embedding_loss({0}, {1}, T.tensor([1, -1]))", "F.triplet_margin_loss({0}, {1}, {0} * 2)", "F.pairwise_distance({0}, {1})[:, None]",
    "F.cross_entropy({0}, {1})", "T.linalg.cross({0}, {1})", "T.tensordot({0}, {1})", "T.inner({0}, {1})[:, :1]", "T.dot({0}[0], {1}[0])",
    "T.mv({0}, {1}[0])[:, None]", "T.dist({0}, {1})", "{0}.clamp({1}, {1} + 1)", "{0}.index_add(0, T.tensor([1, 0]), {1})",
    "{0}.scatter_add(1, T.tensor([[0, 1, 2], [1, 1, 0]]), {1})", "{0}.masked_scatter({1} > 0.3, {1})", "{0}.type_as({1})",
    "{0}.index_copy(0, T.tensor([1, 0]), {1})", "T.addr({0}, {1}[:, 0], {1}[0])", "T.addmv({0}[0][:2], {1}, {0}[0])[:, None]",
    "F.bilinear({0}, {1}, T.ones(3, 3, 3, dtype=T.float64))", "{0}.where({1} > 0.4, {1})",
    "T.outer({0}[0], {1}[1])[:2]", "T.cdist({0}, {1}).repeat(1, 2)[:, :3]",
    "F.batch_norm({0}, None, None, {1}[0].contiguous(), {1}[1].contiguous(), True)",
)  # fmt: skip
FORMS = (
    "relu_()", "sigmoid_()", "tanh_()", "exp_()", "sin_()", "abs_()", "sqrt_()", "rsqrt_()", "reciprocal_()", "log_()", "square_()", "neg_()",
    "pow_(2)", "pow_(1.5)", "mul_(2)", "div_(3)", "add_(1)", "sub_(0.5)", "clamp_(0.4, 1.4)", "clamp_min_(0.6)", "expm1_()", "log1p_()",
    "erf_()", "cumsum_(0)", "tril_()", "masked_fill_(T.tensor([True, False, True]), 0.5)", "fill_(0.3)", "zero_()",
    "copy_(T.full((2, 3), 0.25, dtype=T.float64))", "lerp_(T.ones(2, 3, dtype=T.float64), 0.3)", "round_()",
    "index_fill_(0, T.tensor([1]), 0.5)", "cosh_()", "atan_()", "hardtanh_()", "nan_to_num_()", "exp2_()",
    "mul_(T.full((3,), 1.5, dtype=T.float64))", "fmod_(0.7)", "remainder_(0.4)", "cumprod_(1)", "logit_(0.1)", "digamma_()", "lgamma_()",
    "xlogy_(T.ones(3, dtype=T.float64))", "tan_()", "asin_()",
)  # fmt: skip
ACTIVATIONS = (
    "F.relu({0}, inplace=True)", "F.relu6({0}, inplace=True)", "F.silu({0}, inplace=True)", "F.hardswish({0}, inplace=True)",
    "F.mish({0}, inplace=True)", "F.elu({0}, inplace=True)", "F.selu({0}, inplace=True)", "F.celu({0}, inplace=True)",
    "F.leaky_relu({0}, 0.2, inplace=True)", "F.hardtanh({0}, -0.5, 0.9, inplace=True)", "F.threshold({0}, 0.8, 0.1, inplace=True)",
    "F.rrelu({0}, inplace=True)", "F.relu_({0})", "F.elu_({0})", "F.leaky_relu_({0})", "F.dropout({0}, 0.5, False, True)",
    "T.nn.SiLU(inplace=True)({0})", "T.nn.Hardswish(inplace=True)({0})", "T.nn.Mish(inplace=True)({0})",
)  # fmt: skip
WRITTEN = ("{0}", "{0}", "{0}", "{0}[0]", "{0}[:, 1:]", "{0}.t()", "{0}.data", "{0}.data[0]", "{0}.detach()", "{0}.view(-1)")
WRITES = (".add_(0.25)", ".mul_(1.25)", ".fill_(0.75)", ".relu_()", ".exp_()", ".zero_()", ".copy_(T.tensor(0.625))", ".sqrt_()")


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng([seed, 12])

    def draw(choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    operands = {
        name: Operand(rng.uniform(0.05, 0.95, (2, 3)).round(4).tolist(), "float64", grad=grad)
        for name, grad in (("p", True), ("q", bool(rng.integers(2))))
    }
    lines, pool = ["u = p * 1.5", "v = q * 0.75 + 0.1"], ["p", "q", "u", "v"]
    results: list[str] = []
    for number in range(rng.integers(2, 6)):
        kind, name = rng.integers(10), f"r{number}"
        if kind < 3:
            lines.append(f"{name} = {draw(ONE).format(draw(pool))}")
        elif kind < 5:
            lines.append(f"{name} = {draw(TWO).format(draw(pool), draw(pool))}")
        elif kind < 6:
            lines.append(f"{name} = {draw(pool[2:])}.{draw(FORMS)}")
        elif kind < 7:
            lines.append(f"{name} = {draw(ACTIVATIONS).format(draw(pool[2:]))}")
        else:
            target, write = draw(WRITTEN).format(draw(pool if rng.integers(3) else pool[2:])), draw(WRITES)
            lines += ["with T.no_grad():", f"    {target}{write}"] if rng.integers(3) == 0 else [f"{target}{write}"]
            continue
        pool.append(name)
        results.append(name)
    loss = " + ".join(f"({name} * {name}).sum()" for name in results[-2:]) or "(u * v).sum()"
    lines += [f"loss = {loss}", "loss.backward()", "out = [loss, p.grad, q.grad, p._version, u._version]"]
    ulps = 1e9 if any("hardsigmoid" in line for line in lines) else 1e8  # PyTorch's sixth has 24 bits
    return Case("\n".join(lines), operands, ulps=ulps, signs=False, scaled=True)


def each() -> Iterator[Case]:
    """Every function alone: an operand or the result, a leaf or not, is written under `no_grad` before the backward pass."""
    operands = {name: Operand([[0.31, 0.52, 0.73], [0.24, 0.85, 0.46 if name == "p" else 0.16]], "float64", grad=True) for name in "pq"}
    for text in (*ONE, *TWO):
        for first, second in (("p", "q"), ("u", "v")):
            for target in (first, second, "r") if "{1}" in text else (first, "r"):
                lines = [
                    "u = p * 1.5", "v = q * 0.75 + 0.1", f"r = {text.format(first, second)}", "w = r.detach() + 1", "with T.no_grad():",
                    f"    {target}.mul_(0.875)", "(r * w).sum().backward()", "out = [r, p.grad, q.grad]",
                ]  # fmt: skip
                yield Case("\n".join(lines), operands, ulps=1e8, signs=False, scaled=True)


HUGE = 1e12
TRAPS = ("would broadcast to", "expected targets in the range", "expected (N, D), (N, D) and (N)")  # that losses refuse


def blurred(one: Case, mine: Any, theirs: Any) -> bool:
    """Whether operands that differ in their last bits change the results about as much as the two differ: `asin` beside 1, say."""
    change = 1 + 2.0**-52 * np.array([[0, 3, 1], [2, -3, 4]])
    kind, other = run(calque, replace(one, operands={k: replace(o, values=(np.array(o.values) * change).tolist()) for k, o in one.operands.items()}))
    if kind != "value":
        return False
    apart = [three for three in zip(mine[1], theirs[1], other, strict=True) if different(three[0], three[1], one.ulps, False, True)]
    return all(isinstance(b, tuple) and not np.max(np.abs(a[2] - b[2])) > 64 * np.max(np.abs(a[2] - c[2])) for a, b, c in apart)  # NaN: outside


def kept(one: Case, mine: Any, theirs: Any) -> bool:
    """Whether PyTorch refuses because something was written that Calque has kept. What a write through `.data` changes in a gradient depends on what
    PyTorch happens to save."""
    for kind, found in (theirs, mine):
        if kind == "value" and any(isinstance(x, tuple) and np.isnan(x[2]).any() for x in found):  # outside of a function's domain
            return True
    if mine[0] == theirs[0] == "value" and all(any(isinstance(x, tuple) and (np.abs(x[2]) > HUGE).any() for x in f) for f in (mine[1], theirs[1])):
        return True  # a quotient by what is zero but for rounding
    if mine[0] == "value" and theirs[0] == "error" and "should be between 0 and 1" in str(theirs[1]):  # nobody reads that loss, so it is not computed
        return True
    if mine[0] == "error" and any(part in str(mine[1]) for part in TRAPS):
        return True
    if mine[0] == theirs[0] == "value":
        if blurred(one, mine, theirs):
            return True
        if "kthvalue" in one.text and not different(mine[1][0], theirs[1][0], one.ulps, False, True):  # which of several equal elements it is
            return True
        jumps = any(step in one.text for step in ("ceil", "floor", "trunc", "round", "frac", "sgn", "sign"))
        if jumps and ("cosine_similarity" in one.text or "cross(" in one.text):  # rounding decides beside 1, and beside 0 for parallel vectors
            return True
        if "F.binary_cross_entropy(" in one.text and any(np.isinf(x[2]).any() for x in theirs[1] if isinstance(x, tuple)):  # docs/decisions/0014
            return True
    return (theirs[0] == "error" and "modified by an inplace operation" in str(theirs[1])) or (mine[0] == theirs[0] and ".data" in one.text)


def check(seed: int) -> str:
    """"" or the report of a seed."""
    return checked(seed, case(seed), "tests.fuzz.inplace", kept)


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.inplace", __doc__, check))
