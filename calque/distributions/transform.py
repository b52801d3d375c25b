"""`Transform`, the base of all, its inverse, and transforms made of others: one after the other, side by side, over more dims."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.shapes import Size
from calque.base.text import described, shown
from calque.distributions import constraints
from calque.distributions.utils import lazy_property, sum_rightmost


class Transform:
    """Base of all transforms. cache_size: 1 remembers the last pair (x, y), so that `inv(y)` of what was just computed is x itself.

    A subclass defines `_call`, `_inverse` and `log_abs_det_jacobian`, and says its `domain`, `codomain`, whether it is `bijective`, and the `sign` of
    its slope if that is the same everywhere.

    >>> import calque
    >>> from calque.distributions.transforms import ExpTransform
    >>> t = ExpTransform()
    >>> t(calque.zeros(2)).tolist(), t.inv(calque.ones(2)).tolist(), t.inv
    ([1.0, 1.0], [0.0, 0.0], _InverseTransform(ExpTransform()))
    """

    bijective: Any = False
    domain: Any
    codomain: Any

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ArgumentError(f"[Transform] cache_size must be 0 or 1, got {cache_size}")
        self._cache_size = cache_size
        self._inv: Any = None
        self._cached: tuple[Any, Any] = (None, None)
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_inv": None}

    @property
    def event_dim(self) -> Any:
        """Dims of one value, where domain and codomain have as many."""
        if self.domain.event_dim == self.codomain.event_dim:
            return self.domain.event_dim
        raise ArgumentError("[Transform] Please use either .domain.event_dim or .codomain.event_dim")

    @property
    def inv(self) -> Any:
        """The inverse transform."""
        if self._inv is None:
            self._inv = _InverseTransform(self)
        return self._inv

    @property
    def sign(self) -> Any:
        """1 or -1: the sign of the derivative of a monotone transform of numbers."""
        raise NotImplementedError(f"[{type(self).__name__}] expected a monotone transform of numbers for its sign, got one that is not")

    def with_cache(self, cache_size: int = 1) -> Any:
        """The same transform with another cache size."""
        if self._cache_size == cache_size:
            return self
        if type(self).__init__ is Transform.__init__:
            return type(self)(cache_size=cache_size)
        return self._again(cache_size)

    def _again(self, cache_size: int) -> Any:
        raise NotImplementedError(f"{type(self)}.with_cache is not implemented")

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __call__(self, x: Any) -> Any:
        if not self._cache_size:
            return self._call(x)
        known, value = self._cached
        if x is known:
            return value
        y = self._call(x)
        self._cached = (x, y)
        return y

    def _inv_call(self, y: Any) -> Any:
        if not self._cache_size:
            return self._inverse(y)
        value, known = self._cached
        if y is known:
            return value
        x = self._inverse(y)
        self._cached = (x, y)
        return x

    def _call(self, x: Any) -> Any:
        raise NotImplementedError

    def _inverse(self, y: Any) -> Any:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log |det dy/dx|, of the shape of x without its event dims."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        """Shape of y for an x of this shape."""
        return shape

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        """Shape of x for a y of this shape."""
        return shape


class _InverseTransform(Transform):
    """The inverse of another transform, which knows it."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(cache_size=transform._cache_size)
        self._inv = transform

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        return self._inv.codomain

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        return self._inv.domain

    @property
    def bijective(self) -> Any:  # type: ignore[override]
        return self._inv.bijective

    @property
    def sign(self) -> Any:
        return self._inv.sign

    def with_cache(self, cache_size: int = 1) -> Any:
        return self._inv.with_cache(cache_size).inv

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InverseTransform) and self._inv == other._inv

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inv!r})"

    def __call__(self, x: Any) -> Any:
        return self._inv._inv_call(x)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        return self._inv.forward_shape(shape)


class ComposeTransform(Transform):
    """Transforms one after the other; [] is the identity.

    >>> import calque
    >>> d = calque.distributions
    >>> t = d.ComposeTransform([d.AffineTransform(0.0, 2.0), d.ExpTransform()])
    >>> t(calque.zeros(1)).item(), t.inv(calque.ones(1)).item(), t.log_abs_det_jacobian(calque.zeros(1), calque.ones(1)).item() > 0.69
    (1.0, 0.0, True)
    """

    def __init__(self, parts: list[Transform], cache_size: int = 0) -> None:
        if not isinstance(parts, (list, tuple)) or not all(isinstance(part, Transform) for part in parts):
            raise DTypeError(f"[ComposeTransform] expected a list of Transforms, got {described(parts)}; put one transform into a list, too")
        super().__init__(cache_size=cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = object.__hash__

    @staticmethod
    def _widened(constraint: Any, dims: int) -> Any:
        more = dims - constraint.event_dim
        return constraints.independent(constraint, more) if more else constraint

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        if not self.parts:
            return constraints.real
        dims = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            dims = max(dims + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim)
        return self._widened(self.parts[0].domain, dims)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        if not self.parts:
            return constraints.real
        dims = self.parts[0].domain.event_dim
        for part in self.parts:
            dims = max(dims + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim)
        return self._widened(self.parts[-1].codomain, dims)

    @lazy_property
    def bijective(self) -> Any:
        return all(part.bijective for part in self.parts)

    @lazy_property
    def sign(self) -> Any:
        return functools.reduce(operator.mul, (part.sign for part in self.parts), 1)

    @property
    def inv(self) -> Any:
        if self._inv is None:
            self._inv = ComposeTransform([part.inv for part in reversed(self.parts)])
            self._inv._inv = self
        return self._inv

    def with_cache(self, cache_size: int = 1) -> Any:
        return self if self._cache_size == cache_size else ComposeTransform(self.parts, cache_size)

    def __call__(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        if not self.parts:
            return T.zeros_like(x)
        values = [x]
        for part in self.parts[:-1]:
            values.append(part(values[-1]))
        values.append(y)
        total, dims = None, self.domain.event_dim
        for part, before, after in zip(self.parts, values, values[1:], strict=False):
            term = sum_rightmost(part.log_abs_det_jacobian(before, after), dims - part.domain.event_dim)
            total = term if total is None else total + term
            dims += part.codomain.event_dim - part.domain.event_dim
        return total

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __repr__(self) -> str:
        inside = ",\n    ".join(map(repr, self.parts))
        return f"{type(self).__name__}(\n    {inside}\n)"


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """Another transform whose log determinant is summed over `reinterpreted_batch_ndims` more dims.

    >>> import calque
    >>> d = calque.distributions
    >>> t = d.IndependentTransform(d.ExpTransform(), 1)
    >>> t.log_abs_det_jacobian(calque.ones(3), None).item()
    3.0
    """

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    def _again(self, cache_size: int) -> Any:
        return IndependentTransform(self.base_transform, self.reinterpreted_batch_ndims, cache_size)

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    @property
    def bijective(self) -> Any:  # type: ignore[override]
        return self.base_transform.bijective

    @property
    def sign(self) -> Any:
        return self.base_transform.sign

    def _enough(self, x: Any, constraint: Any) -> Any:
        if x.dim() < constraint.event_dim:
            raise ShapeError(f"[IndependentTransform] Too few dimensions on input: expected at least {constraint.event_dim}, got {x.dim()}")
        return x

    def _call(self, x: Any) -> Any:
        return self.base_transform(self._enough(x, self.domain))

    def _inverse(self, y: Any) -> Any:
        return self.base_transform.inv(self._enough(y, self.codomain))

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return sum_rightmost(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_transform!r}, {self.reinterpreted_batch_ndims})"

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        return self.base_transform.inverse_shape(shape)


class ReshapeTransform(Transform):
    """Values of shape `in_shape` as values of shape `out_shape`, which has as many elements.

    >>> import calque
    >>> t = calque.distributions.ReshapeTransform((4,), (2, 2))
    >>> tuple(t(calque.zeros(3, 4)).shape), t.inverse_shape((3, 2, 2))
    ((3, 2, 2), torch.Size([3, 4]))
    """

    bijective = True

    def __init__(self, in_shape: Any, out_shape: Any, cache_size: int = 0) -> None:
        self.in_shape, self.out_shape = Size(in_shape), Size(out_shape)
        if self.in_shape.numel() != self.out_shape.numel():
            raise ShapeError(f"[ReshapeTransform] in_shape, out_shape have different numbers of elements: {self.in_shape} and {self.out_shape}")
        super().__init__(cache_size=cache_size)

    def _again(self, cache_size: int) -> Any:
        return ReshapeTransform(self.in_shape, self.out_shape, cache_size)

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.independent(constraints.real, len(self.in_shape))

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Any) -> Any:
        return T.reshape(x, (*x.shape[: x.dim() - len(self.in_shape)], *self.out_shape))

    def _inverse(self, y: Any) -> Any:
        return T.reshape(y, (*y.shape[: y.dim() - len(self.out_shape)], *self.in_shape))

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return T.zeros(tuple(x.shape[: x.dim() - len(self.in_shape)]), dtype=x.dtype, device=x.device)

    @staticmethod
    def _exchanged(shape: Any, old: Size, new: Size) -> Size:
        cut = len(shape) - len(old)
        if cut < 0:
            raise ShapeError(f"[ReshapeTransform] Too few dimensions on input: expected at least {len(old)}, got {len(shape)}")
        if tuple(shape[cut:]) != tuple(old):
            raise ShapeError(f"[ReshapeTransform] Shape mismatch: expected {tuple(old)} but got {tuple(shape[cut:])}")
        return Size((*shape[:cut], *new))

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        return self._exchanged(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        return self._exchanged(shape, self.out_shape, self.in_shape)


class _SideBySide(Transform):
    """Transforms of parts of a tensor along `dim`."""

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        if not tseq or not all(isinstance(t, Transform) for t in tseq):
            raise AssertionError(f"[{type(self).__name__}] expected a sequence of Transforms, got {shown(tseq)}")
        super().__init__(cache_size=cache_size)
        self.transforms = [t.with_cache(cache_size) for t in tseq] if cache_size else list(tseq)
        self.dim = dim

    def _checked(self, x: Any, size: int) -> Any:
        if not -x.dim() <= self.dim < x.dim() or x.shape[self.dim] != size:
            raise AssertionError(f"[{type(self).__name__}] expected a size of {size} in dim {self.dim}, got shape {tuple(x.shape)}")
        return x

    @property
    def bijective(self) -> Any:  # type: ignore[override]
        return all(t.bijective for t in self.transforms)


class CatTransform(_SideBySide):
    """Transforms of parts of a tensor, `lengths` long (default: 1 each), one behind the other along `dim`.

    >>> import calque
    >>> d = calque.distributions
    >>> t = d.CatTransform([d.ExpTransform(), d.identity_transform], lengths=[1, 2])
    >>> t(calque.zeros(3)).tolist()
    [1.0, 0.0, 0.0]
    """

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise AssertionError(f"[CatTransform] expected a length per transform, got {len(self.lengths)} for {len(self.transforms)}")

    @lazy_property
    def event_dim(self) -> Any:
        return max(t.event_dim for t in self.transforms)

    @lazy_property
    def length(self) -> int:
        return sum(self.lengths)

    def _again(self, cache_size: int) -> Any:
        return CatTransform(self.transforms, self.dim, self.lengths, cache_size)

    def _parts(self, x: Any) -> Any:
        return zip(self.transforms, T.split(self._checked(x, self.length), self.lengths, self.dim), strict=True)

    def _call(self, x: Any) -> Any:
        return T.cat([t(part) for t, part in self._parts(x)], self.dim)

    def _inverse(self, y: Any) -> Any:
        return T.cat([t.inv(part) for t, part in self._parts(y)], self.dim)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        pairs = zip(self._parts(x), self._parts(y), strict=True)
        terms = [sum_rightmost(t.log_abs_det_jacobian(a, b), self.event_dim - t.event_dim) for (t, a), (_, b) in pairs]
        dim = (self.dim - x.dim() if self.dim >= 0 else self.dim) + self.event_dim
        return T.cat(terms, dim) if dim < 0 else functools.reduce(operator.add, terms)

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)


class StackTransform(_SideBySide):
    """A transform for each slice of a tensor along `dim`.

    >>> import calque
    >>> d = calque.distributions
    >>> d.StackTransform([d.ExpTransform(), d.identity_transform])(calque.zeros(2, 2)).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    def _again(self, cache_size: int) -> Any:
        return StackTransform(self.transforms, self.dim, cache_size)

    def _parts(self, x: Any) -> Any:
        return zip(self.transforms, T.unbind(self._checked(x, len(self.transforms)), self.dim), strict=True)

    def _call(self, x: Any) -> Any:
        return T.stack([t(part) for t, part in self._parts(x)], self.dim)

    def _inverse(self, y: Any) -> Any:
        return T.stack([t.inv(part) for t, part in self._parts(y)], self.dim)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        pairs = zip(self._parts(x), self._parts(y), strict=True)
        return T.stack([t.log_abs_det_jacobian(a, b) for (t, a), (_, b) in pairs], self.dim)

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.stack([t.codomain for t in self.transforms], self.dim)
