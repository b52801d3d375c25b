"""Classes with a `__torch_function__` are asked about the function that was called, with the operands that it was given, wherever PyTorch asks them.

Every function that PyTorch lets classes redefine is called with objects of such a class in the place of its tensors: once of one that is no tensor,
once of a subclass of `Tensor`. What PyTorch tells them is the reference. Numbers that a function wants beside its tensors are guessed; functions for
which no guess makes PyTorch ask are left out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = pytest.mark.oracle

ASKED: list[tuple[Any, tuple[Any, ...]]] = []
NUMBERS: dict[str, Any] = {
    "dim": 0, "dim0": 0, "dim1": 1, "size": (2, 2), "shape": (2, 2), "n": 1, "p": 0.5, "k": 1, "repeats": 2, "shifts": 1, "axis": 0, "axis0": 0,
    "axis1": 1, "chunks": 2, "split_size_or_sections": 1, "indices_or_sections": 1, "sections": 2, "exponent": 2, "q": 0.5, "kernel_size": 1,
    "output_size": 1, "pad": (1, 1), "normalized_shape": (2,), "num_classes": 3, "source": 0, "destination": 1, "dims": (0, 1), "upscale_factor": 1,
    "downscale_factor": 1, "num_groups": 1, "groups": 1, "start": 0, "length": 1, "sizes": (2, 1), "training": False, "min": 0.0, "decimals": 1,
    "diagonal": 1, "maxnorm": 1.0, "dim_size": 1, "step": 1, "index": 0,
}  # fmt: skip
SPACES = ("", "nn.functional", "linalg", "special", "fft")
# Aliases of one function of ours, and what is asked of Python objects: they have no frame in which a class could be asked.
LEFT_OUT = re.compile(
    r"^(sym_\w+|is_\w+|get_device|resolve_\w+|native_\w+|norm_except_dim|lobpcg|feature_\w*dropout\w*|(gru|lstm|rnn_\w+?)(_cell)?|lu|permute|hspmm"
    r"|nuclear_norm|frobenius_norm|multigammaln|gammaincc?|\w+_with_indices|affine_grid_generator|istft|embedding_bag)$"
)


class Other:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ASKED.append((func, args))
        return NotImplemented


def found(space: Any, path: str) -> Any:
    for part in filter(None, path.split(".")):
        space = getattr(space, part)
    return space


def guesses(function: Any, x: Any) -> Iterator[list[Any]]:
    """Arguments with which the function may be called."""
    wanted = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    yield [NUMBERS.get(p.name, [x, x] if p.name == "tensors" else x) for p in wanted]
    yield from ([x], [x, x], [x, x, x], [[x, x]], [x, 2], [x, 0])


def asked_about(function: Any, args: list[Any]) -> list[tuple[Any, tuple[Any, ...]]]:
    ASKED.clear()
    try:
        function(*args)
    except Exception:  # nobody answers: what was asked is looked at
        pass
    return ASKED[:]


def calls() -> Iterator[tuple[str, str, list[Any]]]:
    """Module, name and arguments of calls about which PyTorch asks first of all."""
    overrides = torch.overrides.get_testing_overrides()
    x = Other()
    for space in SPACES:
        for name, function in vars(found(torch, space)).items():
            if name.startswith("_") or not callable(function) or isinstance(function, type) or function not in overrides or LEFT_OUT.match(name):
                continue
            ours = getattr(found(calque, space), name, None)
            for args in guesses(overrides[function], x) if ours is not None else ():
                asked = asked_about(function, args)
                if asked and asked[0][0] is function:
                    yield space, name, [None if a is x else ["x"] if isinstance(a, list) else a for a in args]
                    break


def test_a_class_is_asked_about_what_was_called_with_what_it_was_given() -> None:
    class Subclass(calque.Tensor):
        __torch_function__ = Other.__torch_function__

    listed = list(calls())
    assert len(listed) > 400
    wrong = []
    for x in (Other(), calque.ones(2, 2).as_subclass(Subclass)):
        for space, name, described in listed:
            args = [x if a is None else [x, x] if isinstance(a, list) else a for a in described]
            function = found(calque, f"{space}.{name}" if space else name)
            asked = asked_about(function, args)
            if not asked:
                if isinstance(x, Other):
                    wrong.append(f"{space}.{name}: not asked")
                continue  # a subclass may be refused as the tensor that it is, before anybody asks it
            about, given = asked[0]
            same = [a is b or type(a) is type(b) and a == b for a, b in zip(args, given, strict=False)]
            alias = getattr(about, "__name__", "").removeprefix("_")
            if about is not function and alias not in (name, getattr(function, "__name__", "")) or not all(same) or len(given) > len(args):
                wrong.append(f"{type(x).__name__} {space}.{name}: asked about {alias} with {len(given)} of {len(args)} arguments")
    assert not wrong, "\n".join(wrong)


USES = {
    "x[0]": lambda x: x[0], "x[...] =": lambda x: x.__setitem__(0, 1.0), "len": len, "x == 1": lambda x: x == 1, "x ** 2": lambda x: x**2,
    "2 ** x": lambda x: 2**x, "1 - x": lambda x: 1 - x, "1 / x": lambda x: 1 / x, "x // 2": lambda x: x // 2, "2 // x": lambda x: 2 // x,
    "x % 2": lambda x: x % 2, "2 % x": lambda x: 2 % x, "x + 1": lambda x: x + 1, "1 * x": lambda x: 1 * x, "-x": lambda x: -x, "abs": abs,
    "x & x": lambda x: x.bool() & x.bool(), "x | x": lambda x: x.bool() | x.bool(), "x ^ x": lambda x: x.bool() ^ x.bool(),
    "x << 1": lambda x: x.int() << 1, "x >> 1": lambda x: x.int() >> 1, "x < 1": lambda x: x < 1, "x != 1": lambda x: x != 1,
    "x @ x": lambda x: x @ x,
    "bool": lambda x: bool(x.sum()), "float": lambda x: float(x.sum()), "int": lambda x: int(x.sum()), "1 in x": lambda x: 1.0 in x,
    "repr": repr, "format": lambda x: f"{x}", "reversed": reversed, "x.eq(1)": lambda x: x.eq(1), "x.pow(2)": lambda x: x.pow(2),
}  # fmt: skip


def test_operators_are_asked_about_by_the_names_that_pytorch_says() -> None:
    def asked(t: Any, use: Any) -> list[str]:
        class Subclass(t.Tensor):
            @classmethod
            def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                names.append(func.__name__)
                return super().__torch_function__(func, types, args, kwargs or {})

        names: list[str] = []
        use(t.ones(2, 2).as_subclass(Subclass))
        return [name for name in names if name not in ("as_subclass", "__get__", "dim")]  # attributes are read without asking

    for said, use in USES.items():
        assert asked(calque, use) == asked(torch, use), said
