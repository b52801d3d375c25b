"""Random arguments for `tests.fuzz.arguments`: plausible ones by the name of a parameter or by a right call, and implausible ones of every type."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import calque
from calque import nn

INTS: list[Any] = [0, 1, 2, 3, 4, 5, 7, -1, -2, -3, -4, -7, True, False]
FAR_INTS: list[Any] = [64, -1000, 1 << 40, -(1 << 40), 1 << 62, 1 << 63, -(1 << 63), 1 << 70, 10**30]
FLOATS: list[Any] = [0.0, 1.0, -1.0, 0.5, 2.5, -0.3, 1e-12, 1e300, float("inf"), -float("inf"), float("nan")]
TEXTS: list[Any] = [
    "",
    "x",
    "mean",
    "sum",
    "none",
    "same",
    "valid",
    "zeros",
    "reflect",
    "replicate",
    "circular",
    "constant",
    "bilinear",
    "nearest",
    "bicubic",
    "linear",
    "tanh",
    "relu",
    "fro",
    "nuc",
    "cpu",
    "cuda",
    "meta",
    "cpu:1",
    "float32",
    "ij",
    "xy",
    "ij,jk->ik",
    "...i->i",
    "floor",
    "trunc",
    "amax",
    "prod",
    "left",
    "fan_in",
    "reduced",
    "complete",
    "r",
    "gelsd",
    "batchmean",
    "higher",
    "weight",
    "a b",
    "\0",
    "é" * 3,
]
SHAPES: list[Any] = [
    (),
    (1,),
    (3,),
    (4,),
    (2, 3),
    (3, 3),
    (1, 4),
    (2, 3, 4),
    (2, 4, 4),
    (2, 4, 8, 8),
    (1, 2, 4, 4, 4),
    (0,),
    (2, 0),
    (0, 3),
    (1, 1, 1, 1, 1, 1),
]
DTYPES: list[Any] = [calque.float32] * 6 + [
    calque.float64,
    calque.float16,
    calque.bfloat16,
    calque.int64,
    calque.int64,
    calque.int32,
    calque.int16,
    calque.int8,
    calque.uint8,
    calque.bool,
]
SIZE_NAMES = frozenset(
    """size shape sizes dim dims kernel_size stride padding dilation output_size output_padding normalized_shape split_size_or_sections shifts repeats
    axes source destination pad scale_factor hidden_size num_layers in_features out_features in_channels out_channels groups num_features num_groups
    num_embeddings embedding_dim start end step n k chunks indices_or_sections dim0 dim1 dim2 offset diagonal length milestones""".split()  # noqa: SIM905
)


class Anything:
    """An object that has no attribute anyone expects."""


def identity(*args: Any, **keywords: Any) -> Any:
    """A function of the user's that takes everything."""
    return args[0] if args else None


def hook(*args: Any, **keywords: Any) -> None:
    """A hook of the user's that changes nothing."""


class Values:
    """Arguments drawn with one generator of random numbers."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def tensor(self, shape: Any = None, dtype: Any = None) -> Any:
        """A small tensor; sometimes a view, of the other device, tracked."""
        draw = self.draw
        shape = draw.choice(SHAPES) if shape is None else shape
        dtype = draw.choice(DTYPES) if dtype is None else dtype
        rng = np.random.default_rng(draw.getrandbits(32))
        array = rng.integers(0, 5, shape) if not dtype.is_floating_point else rng.random(shape) * 2 - draw.choice([0, 1])
        found = calque.tensor(array.tolist(), dtype=dtype).reshape(shape)
        kind = draw.random()
        if kind < 0.1 and found.ndim:
            found = found.transpose(0, -1)
        elif kind < 0.15:
            found = found.expand(2, *found.shape)
        elif kind < 0.2:
            found = found.to("meta")
        elif kind < 0.25:
            found = found.to("cpu:1")
        elif kind < 0.45 and dtype.is_floating_point:
            found = found.requires_grad_()
        elif kind < 0.5 and dtype.is_floating_point:
            found = nn.Parameter(found)
        return found

    def number(self) -> Any:
        draw = self.draw
        return draw.choice(draw.choice([INTS, INTS, FLOATS, FAR_INTS]))

    def sizes(self) -> Any:
        """Ints, and what a program may hold in their place."""
        draw = self.draw
        few = [draw.choice(INTS) for _ in range(draw.choice([1, 1, 2, 2, 3, 4]))]
        kinds: list[Callable[[], Any]] = [
            lambda: draw.choice(INTS),
            lambda: draw.choice(INTS),
            lambda: tuple(few),
            lambda: tuple(few),
            lambda: few,
            lambda: np.array(few),
            lambda: calque.tensor(few),
            lambda: np.int64(few[0]),
            lambda: np.array(few[0]),
            lambda: calque.tensor(few[0]),
            lambda: calque.Size(few),
            lambda: tuple(np.int32(v) for v in few),
            lambda: [calque.tensor(v) for v in few],
            lambda: range(3),
            lambda: (),
            list,
            lambda: (v for v in few),
            lambda: set(few),
            lambda: {v: v for v in few},
            lambda: np.array([few]),
            lambda: [few],
            lambda: np.array(few, float),
            lambda: tuple(float(v) for v in few),
            lambda: calque.tensor(few).float(),
            lambda: (None,) * len(few),
            lambda: ("x", 2),
            lambda: [1] * 70,
            lambda: (draw.choice(FAR_INTS), 2),
            lambda: (calque.tensor([1, 2]), 2),
            lambda: (few, few),
            lambda: np.array([], int),
        ]
        return draw.choice(kinds)()

    def wild(self) -> Any:
        """Anything at all."""
        draw = self.draw
        kinds: list[Callable[[], Any]] = [
            self.tensor,
            self.tensor,
            self.tensor,
            self.number,
            self.number,
            self.sizes,
            self.sizes,
            lambda: draw.choice(TEXTS),
            lambda: None,
            lambda: draw.choice(DTYPES),
            lambda: draw.choice([float, int, bool, str, object, np.float32, np.dtype("int8"), "float32", complex]),
            lambda: np.ones(
                draw.choice(SHAPES), draw.choice([np.float32, np.float64, np.int64, np.bool_, np.complex64, np.uint16, np.object_, "U3"])
            ),
            lambda: draw.choice([np.float32(1.5), np.int8(3), np.bool_(True), np.complex64(1j), np.nan]),
            lambda: complex(1, 2),
            lambda: b"bytes",
            lambda: [self.tensor() for _ in range(draw.randint(0, 3))],
            lambda: (self.tensor(), None),
            lambda: [1.0, 2.0],
            lambda: {"a": self.tensor()},
            Anything,
            lambda: Anything,
            lambda: identity,
            lambda: slice(None),
            lambda: slice(2, 0, -1),
            lambda: Ellipsis,
            lambda: calque.Generator(),
            lambda: calque.device(draw.choice(["cpu", "meta"])),
            lambda: nn.Linear(3, 4),
            lambda: nn.Linear,
            lambda: [[1, 2], [3]],
            lambda: iter([1, 2]),
            lambda: [nn.ReLU(), nn.Linear(3, 3)],
            lambda: {1: 2},
            lambda: frozenset(),
            lambda: calque,
            lambda: NotImplemented,
            lambda: range(0),
        ]
        return draw.choice(kinds)()

    def by_name(self, parameter: inspect.Parameter) -> Any:
        """Something plausible for a parameter, most of the time."""
        draw, name, annotation = self.draw, parameter.name, str(parameter.annotation)
        if draw.random() < 0.15 and name != "hook":
            return self.wild()
        if name in SIZE_NAMES or annotation in ("int", "Sizes", "Dims", "Sequence[int]"):
            return self.sizes() if draw.random() < 0.5 else draw.choice([1, 2, 3, 4, 0, -1])
        if name in ("dtype",):
            return draw.choice(DTYPES)
        if name in ("device",):
            return draw.choice(["cpu", "cpu", "meta", "cpu:1", calque.device("cpu"), "cuda", 0, None])
        if name == "generator":
            return draw.choice([None, calque.Generator()])
        if name == "params":
            return draw.choice([[nn.Parameter(self.tensor(dtype=calque.float32))], nn.Linear(3, 4).parameters(), [{"params": [self.tensor()]}]])
        if name == "optimizer":
            return calque.optim.SGD(nn.Linear(3, 4).parameters(), lr=0.1, momentum=0.9)
        if name in ("module", "model", "layer", "encoder_layer", "decoder_layer"):
            return draw.choice([nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.Conv2d(4, 4, 3)])
        if "Tensors" in annotation or name == "tensors":
            return draw.choice([self.tensor(), [self.tensor(), self.tensor()]])
        if "Tensor" in annotation or "Operand" in annotation or name in ("input", "other", "target", "weight", "tensor"):
            return self.tensor()
        if "bool" in annotation or isinstance(parameter.default, bool):
            return draw.choice([True, False])
        if "str" in annotation or isinstance(parameter.default, str):
            return draw.choice(TEXTS)
        if "Callable" in annotation:
            return hook if name == "hook" else identity
        if "float" in annotation or "Number" in annotation or isinstance(parameter.default, (int, float)):
            return self.number()
        return self.wild() if parameter.default is parameter.empty or draw.random() < 0.3 else parameter.default

    def call(self, signature: inspect.Signature | None, bound: bool) -> tuple[list[Any], dict[str, Any]]:
        """Arguments by the signature; sometimes one too many, one too few, an unknown keyword, all of them wild."""
        draw = self.draw
        if signature is None or draw.random() < 0.1:
            return [self.wild() for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 4]))], {}
        args: list[Any] = []
        keywords: dict[str, Any] = {}
        for k, parameter in enumerate(signature.parameters.values()):
            if bound and k == 0:
                continue
            required = parameter.default is parameter.empty
            if parameter.kind is parameter.VAR_POSITIONAL:
                args += [self.by_name(parameter) for _ in range(draw.choice([0, 1, 2, 3]))] if not keywords else []
            elif parameter.kind is parameter.VAR_KEYWORD:
                continue
            elif required and draw.random() < 0.98 or draw.random() < 0.35:
                if parameter.kind is parameter.KEYWORD_ONLY or keywords or draw.random() < 0.3:
                    keywords[parameter.name] = self.by_name(parameter)
                else:
                    args.append(self.by_name(parameter))
            elif parameter.kind is not parameter.KEYWORD_ONLY and not keywords:
                keywords = dict.fromkeys((), None)
                break
        if draw.random() < 0.03:
            keywords[draw.choice(["colour", "out", "dim", "axis", "dtype", "keepdims", "inplace", "size_average"])] = self.wild()
        return args, keywords
