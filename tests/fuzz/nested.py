"""Function transforms in random compositions: `python -m tests.fuzz.nested --count 1000`.

A program is a chain of functions of three numbers, each of which does some arithmetic, reductions, writes or linear algebra and applies a transform
to the one before, where gradients are wanted and where they are not, after it has been differentiated a few times or not. Values, views of them and
what `vjp` and `linearize` give are kept, and used when the transform around them has finished. It is run as written and by an obvious twin, in which
forward mode is reverse mode (`jvp`, `jacfwd`, `hessian` by `jacrev`), reverse mode is `autograd.grad`, which always keeps the graph, and
`vmap` is a loop over slices. Results and gradients agree, or both are refused.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np

import calque
from tests.fuzz.command import main, reported

HEAD = """
x, p, q = (T.tensor(v, dtype=T.float64) for v in ([0.3, -0.7, 0.9], [0.5, -0.2, 1.1], [1.5, 0.8, -0.4]))
M = T.tensor([[0.2, 0.5, -0.3], [0.1, -0.4, 0.6], [0.7, 0.2, 0.3]], dtype=T.float64)
I, index, kept, pulls = T.eye(3, dtype=T.float64), T.tensor([2, 0, 1]), [q * 1], [lambda v: (v * p,)]
"""
EXPRESSIONS = (
    "x.sin()", "x * x", "x.tanh() * p", "(x * q).cumsum(-1)", "x.flip(-1) * x", "x.exp() * 0.1", "(x * x + 1).log()", "x / (1 + x * x)",
    "x - x.mean()", "x.softmax(-1)", "T.where(x > 0, x, x * 0.3)", "x.clamp(-0.5, 0.6)", "T.stack([x[2], x[0], x[1]])", "x[index] * x",
    "M @ x", "T.outer(x, p).tril().sum(1)", "x.roll(1) * x", "x.gather(0, index)", "x.sort().values * p", "x.max() * x", "x.median() * x",
    "T.logsumexp(x, 0) * p", "x.expand(2, 3).sum(0)",
    "(x.square().sum() + 1).sqrt() * x", "x.prod() + x", "x.var() * x", "x.unfold(0, 2, 1).sum(-1).sum() * x",
    "T.cumprod(x, 0)", "x.amax() - x", "T.einsum('i,j,jk->k', x, p, M)", "T.linalg.solve(M + 4 * I, x)",
    "T.linalg.inv(T.outer(x, p) + 2 * I) @ x", "T.linalg.det(T.outer(x, x) + I) * x", "T.linalg.eigvalsh(T.outer(x, x) + M + M.mT) * x",
    "T.linalg.cholesky(T.outer(x, x) + I) @ p", "T.linalg.solve_triangular(M + 2 * I, x[:, None], upper=True)[:, 0]",
    "T.linalg.solve_triangular(T.outer(x, p) + 2 * I, p[:, None], upper=False)[:, 0] * x",
    "T.linalg.solve_triangular(T.outer(x, x) + 2 * I, T.stack([x, p]), upper=False, left=False, unitriangular=True).sum(0)",
    "T.cholesky_solve(x[:, None], T.linalg.cholesky(T.outer(x, x) + I))[:, 0]", "T.linalg.qr(T.outer(x, x) + M + 2 * I).R.diagonal() * x",
    "T.linalg.matrix_exp(T.outer(x, p) * 0.1) @ x", "x.view(3, 1)[:, 0] * x.view(1, 3)[0]", "x[1:].sum() * x[:2].view(-1).sum() + x",
    "T.nn.functional.softplus(x)", "T.nn.functional.gelu(x)", "T.nn.functional.linear(x, M, p)",
)  # fmt: skip
WRITES = (
    "y = x.clone(); y[0] = y[1] * 2", "y = x * 1.0; y.mul_(x)", "y = x + 0.0; y[1:].add_(p[1:])", "y = T.zeros_like(x); y[:2] = x[1:]",
    "y = x * 1; y.index_add_(0, index, x)", "y = x * 1; y.copy_(x.flip(0))", "y = x * 1; y.index_put_((index,), x * 2)",
    "y = x * 1; y.scatter_(0, index, x.sin())", "y = x.clone(); y[p > 0] = 0.25", "y = x * 1; y[1:].tanh_()",
    "y = x * 1; y.masked_fill_(x > 0.2, 0.7)", "y = x * 1; y[[0, 2]] = y[[2, 0]]",
)  # fmt: skip
KEEPS = (
    "kept.append(x)", "kept.append(x * 2)", "kept.append(x[1:])", "kept.append(x.view(3))", "kept.append(T.stack([x, p])[0])",
    "z = x.clone(); z[:2] = x[1:]; kept.append(z)", "z = q * 1; z.copy_(x); kept.append(z)",
)  # fmt: skip
USES = (
    "x * kept[-1].sum()", "F.grad(lambda v: (v * v * kept[-1].sum()).sum())(x)", "F.jvp(lambda v: v * v * kept[-1].sum(), (x,), (p,))[1]",
    "F.grad(lambda k: F.jvp(lambda v: v * v * k.sum(), (x,), (p,))[1].sum())(kept[-1]).sum() * x",
    "F.grad(lambda k: F.vjp(lambda v: v * v * k.sum(), x)[1](p)[0].sum())(kept[-1]).sum() + x",
    "F.jacrev(lambda k: F.grad(lambda v: (v.sin() * k.sum()).sum())(x))(kept[-1]).sum() * x", "pulls[-1](x)[0]", "pulls[-1](x * p)[0] + x",
    "F.grad(lambda v: (pulls[-1](v)[0] * x).sum())(p) * x",
)  # fmt: skip
PULLS = ("pulls.append(F.vjp({g}, x)[1])", "pulls.append(F.vjp({g}, x.view(3))[1])", "pulls.append(lambda v, l=F.linearize({g}, x)[1]: (l(v),))")
TRANSFORMS = (
    "F.grad(lambda v: {g}(v).sum())(x)", "F.grad(lambda v: ({g}(v) * p).sum())(x)", "F.jacrev({g})(x).sum(0)", "F.jacfwd({g})(x) @ p",
    "F.jvp({g}, (x,), (x * 0.5,))[1]", "F.jvp({g}, (x,), (p,))[1]", "F.vjp({g}, x)[1](p)[0]",
    "F.vmap({g})(T.stack([x, 2 * x, x + 1])).sum(0)", "F.vmap({g}, in_dims=1, out_dims=1)(T.stack([x, x * p], 1)).mean(1)",
    "F.vmap(lambda a, b: {g}(a) * b, in_dims=(0, None))(T.stack([x, p]), x).sum(0)",
    "F.vmap(lambda a: {g}(x) * a)(T.stack([x[0], p[1]])).sum(0)", "F.hessian(lambda v: {g}(v).sum())(x) @ p",
    "F.grad(lambda v: (x * {g}(v)).sum())(x)", "F.vmap(F.grad(lambda v: {g}(v).sum()))(T.stack([x, p])).sum(0)",
    "F.jacrev(lambda v: F.vmap({g})(T.stack([v, p])).sum(0))(x).sum(1)", "F.vmap(lambda a: F.jvp({g}, (x,), (a,))[1])(I).sum(0)",
    "F.jvp(lambda a, b: {g}(a) * b, (x, x), (p, x))[1]", "{g}(x) + {g}(x * 0.5)", "F.linearize({g}, x)[1](p)", "F.linearize({g}, p)[1](x)",
    "F.grad(lambda v: ({g}(v.view(1, 3)[0]) * v).sum())(x)", "F.grad(lambda v: {g}(T.cat([v[1:], x[:1]])).sum())(x[:3])",
    "F.grad(lambda v: (F.vjp({g}, v)[1](v)[0] * x).sum())(x)", "F.grad(lambda v: (F.vjp({g}, x)[1](v)[0] * x).sum())(p)",
    "F.vjp(lambda v: F.jvp({g}, (x,), (v,))[1], x)[1](x)[0]",
)  # fmt: skip
ENDS = (
    "out = [f(x)]",
    "x.requires_grad_(); q.requires_grad_(); y = f(x * q); y.sum().backward() if y.requires_grad else None; out = [y, x.grad, q.grad]",
    "out = [F.vmap(f)(T.stack([x, p]))]", "x.requires_grad_(); y = f(x); out = [y, *T.autograd.grad((y * p).sum(), x, allow_unused=True)]",
    "with T.no_grad(): out = [f(x)]", "with T.no_grad(): out = [F.vmap(f)(T.stack([x, p]))]", "with T.no_grad(): out = [F.jacfwd(f)(x)]",
    "with T.no_grad(): out = [F.vmap(lambda a: F.grad(lambda v: (f(v) * a).sum())(x))(T.stack([x, p]))]",
)  # fmt: skip
BEFORE = "_ = [y.tolist() for y in [f0(x.clone().requires_grad_()) for _ in range(4)] if y.requires_grad and not y.sum().backward()]"


def program(seed: int) -> list[str]:
    """The lines of the program of a seed."""
    r, lines = random.Random(seed), []
    depth = r.choice((1, 2, 2, 3, 3))
    for d in range(depth):
        lines += [f"def f{d}(x):", "    del kept[1:], pulls[1:]"]  # a loop calls more often than what it stands for
        for _ in range(r.randint(1, 2)):
            lines.append(f"    {r.choice(WRITES)}; x = y" if r.random() < 0.3 else f"    x = {r.choice(EXPRESSIONS)}")
            if r.random() < 0.15:
                lines.append(f"    {r.choice(KEEPS)}")
        if d and r.random() < 0.15:
            lines.append(f"    {r.choice(PULLS)}".replace("{g}", f"f{d - 1}"))
        if d:
            lines.append("    x = " + r.choice(TRANSFORMS).replace("{g}", f"f{d - 1}"))
        if r.random() < 0.25:
            lines.append(f"    x = {r.choice(USES)}")
        lines.append("    return x")
    end = r.choice(ENDS).split("; ")
    return [*lines, f"f = f{depth - 1}", *([BEFORE] if r.random() < 0.3 else []), *end]


def looped(function: Callable[..., Any], in_dims: Any = 0, out_dims: int = 0) -> Callable[..., Any]:
    """`vmap` as a loop."""

    def every(*args: Any) -> Any:
        dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
        rows = [a.unbind(d) if d is not None else None for a, d in zip(args, dims, strict=True)]
        count = len(next(r for r in rows if r is not None))
        return calque.stack([function(*[a if r is None else r[k] for a, r in zip(args, rows, strict=True)]) for k in range(count)], out_dims)

    return every


def pulled(function: Callable[..., Any], *primals: Any) -> Any:
    """`vjp` by `autograd.grad`."""
    with calque.enable_grad():
        own = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in primals]
        out = function(*own)

    def pull(weights: Any) -> tuple[Any, ...]:
        with calque.enable_grad():
            found = calque.autograd.grad(out, own, weights, create_graph=True, allow_unused=True) if out.requires_grad else [None] * len(own)
            return tuple(calque.zeros_like(x) if g is None else g for x, g in zip(own, found, strict=True))

    return out, pull


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """`grad` by `autograd.grad`."""
    return lambda x: pulled(function, x)[1](None)[0]


def pushed(function: Callable[..., Any], x: Any) -> Any:
    """`linearize` by a whole Jacobian."""
    jacobian = looped_jacobian(function)(x)
    return function(x), lambda v: jacobian @ v


def reverse(function: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """`jvp` by whole Jacobians."""
    jacobian = looped_jacobian(function, tuple(range(len(primals))))(*primals)
    return function(*primals), sum((j @ t for j, t in zip(jacobian, tangents, strict=True)), calque.zeros((), dtype=calque.float64))


def looped_jacobian(function: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    """`jacrev` without `vmap`: one gradient for each number of the result."""

    def rows(*args: Any) -> Any:
        out, pull = pulled(function, *args)
        units = calque.eye(out.numel(), dtype=out.dtype).reshape(-1, *out.shape)
        found = zip(*[pull(u) for u in units], strict=True)
        whole = tuple(calque.stack(list(column)).reshape(*out.shape, *a.shape) for column, a in zip(found, args, strict=True))
        return whole if isinstance(argnums, tuple) else whole[argnums]

    return rows


TWIN = types.SimpleNamespace(
    grad=gradient, vjp=pulled, vmap=looped, jvp=reverse, jacrev=looped_jacobian, jacfwd=looped_jacobian, linearize=pushed,
    hessian=lambda f: looped_jacobian(looped_jacobian(f)),
)  # fmt: skip


def run(lines: list[str], transforms: Any) -> Any:
    """The results of a program, or what it was refused with."""
    scope: dict[str, Any] = {"T": calque, "F": transforms}
    try:
        exec("\n".join([HEAD, *lines]), scope)  # noqa: S102 - generated here
        return [None if t is None else t.detach().numpy().copy() for t in scope["out"]]
    except Exception as error:
        return error


def mismatch(lines: list[str]) -> str:
    """"" if a program and its twin agree, else what differs. What only one of them can do is none: a loop reads values where `vmap` cannot."""
    found, expected = run(lines, calque.func), run(lines, TWIN)
    if isinstance(found, Exception):
        return f"internal error: {found}" if "bug of Calque" in str(found) else ""
    if isinstance(expected, Exception):
        return ""
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = (np.zeros(3) if t is None else t for t in (a, b))
        if np.abs(b).max() > 1e9:  # their sines are anything
            return ""
        if not np.allclose(a, b, rtol=1e-6, atol=1e-8 * max(1.0, float(np.abs(b).max())), equal_nan=True):
            return f"result {k}: {a.tolist()} instead of {b.tolist()}"
    return ""


def check(seed: int) -> str:
    """"" or the report of a seed."""
    with np.errstate(all="ignore"):
        return reported(seed, program(seed), mismatch, "tests.fuzz.nested")


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.nested", __doc__, check))
