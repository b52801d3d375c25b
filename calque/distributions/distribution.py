"""`Distribution`, the base of all, and `ExponentialFamily`, whose entropy follows from its normaliser."""

from __future__ import annotations

import warnings
from typing import Any

from calque import functional as T
from calque.autograd.api import grad
from calque.autograd.modes import enable_grad, no_grad
from calque.base.errors import ArgumentError, ShapeError
from calque.base.shapes import Size
from calque.base.text import shown, type_name
from calque.distributions import constraints
from calque.distributions.utils import holds, lazy_property
from calque.functional.common import is_tensor
from calque.tensor import Tensor

__all__ = ["Distribution"]

located: Any = property(lambda self: self.loc)  # the mean and mode of a distribution that is symmetric about its `loc`


class Distribution:
    """Base of all distributions.

    batch_shape: shape of the parameters: as many independent distributions. event_shape: shape of one sample. validate_args: whether parameters and
    values are checked (default: as `set_default_validate_args` said; at first True, but False under `python -O`). A check reads values.

    A subclass says its parameters in `arg_constraints`, its values in `support`, and in `_expands` which attributes `expand` is to expand.

    >>> import calque
    >>> d = calque.distributions.Normal(calque.zeros(3), 1.0)
    >>> d.batch_shape, d.event_shape, tuple(d.sample((2,)).shape)
    (torch.Size([3]), torch.Size([]), (2, 3))
    """

    has_rsample: Any = False
    has_enumerate_support: Any = False
    _validate_args = __debug__
    _expands: tuple[str, ...] | None = None  # attributes whose shape begins with the batch shape: Tensors and Distributions
    _copies: tuple[str, ...] = ()  # attributes that an expanded distribution shares

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions check their arguments from now on."""
        if value not in (True, False):
            raise ArgumentError(f"[Distribution] expected True or False as validate_args, got {shown(value)}")
        Distribution._validate_args = value

    def __init__(self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_parameters()
        super().__init__()

    def _check_parameters(self) -> None:
        try:
            wanted = self.arg_constraints
        except NotImplementedError:
            warnings.warn(
                f"{type(self)} does not define `arg_constraints`. Please set `arg_constraints = {{}}` or initialize the distribution with "
                "`validate_args=False` to turn off validation.",
                stacklevel=4,
            )
            return
        for name, constraint in wanted.items():
            computed = name not in self.__dict__ and isinstance(getattr(type(self), name, None), lazy_property)
            if constraints.is_dependent(constraint) or computed:
                continue
            value = getattr(self, name)
            if not holds(constraint.check(value)):
                raise ArgumentError(
                    f"[{type(self).__name__}] Expected parameter {name} ({type_name(value)} of shape {tuple(value.shape)}) of distribution "
                    f"{self!r} to satisfy the constraint {constraint!r}, but found invalid values:\n{value}"
                )

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """The distribution with its batch dims expanded to `batch_shape`, as `Tensor.expand` does: nothing is copied or checked."""
        if self._expands is None:
            raise NotImplementedError(f"[{type(self).__name__}] expand() is not defined")
        kinds = type(self).__mro__  # what a class of the user's makes in `__init__` is known to that class alone, unless it says so
        owner = next(cls for cls in kinds if "_expands" in cls.__dict__ or cls.__module__.startswith("calque.distributions."))
        new = self._get_checked_instance(owner, _instance)
        batch_shape, count = Size(batch_shape), len(self._batch_shape)
        for name in self._expands:
            value = self.__dict__.get(name)
            if value is not None:
                own = value.batch_shape if isinstance(value, Distribution) else value.shape
                new.__dict__[name] = value.expand(batch_shape + own[count:])
        for name in self._copies:
            new.__dict__[name] = self.__dict__[name]
        Distribution.__init__(new, batch_shape, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _get_checked_instance(self, cls: type, _instance: Any = None) -> Any:
        if _instance is None and type(self).__init__ is not cls.__init__:  # type: ignore[misc]
            raise NotImplementedError(
                f"[expand] Subclass {type(self).__name__} of {cls.__name__} that defines a custom __init__ method must also define a custom "
                ".expand() method."
            )
        return type(self).__new__(type(self)) if _instance is None else _instance

    @property
    def batch_shape(self) -> Size:
        """Shape of the parameters."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """Shape of one sample."""
        return self._event_shape

    @property
    def arg_constraints(self) -> dict[str, Any]:
        """Constraint of each parameter, by name."""
        raise NotImplementedError(f"[{type(self).__name__}] expected a distribution with `arg_constraints`, got one that does not define it")

    @property
    def support(self) -> Any:
        """Constraint of the values."""
        raise NotImplementedError(f"[{type(self).__name__}] expected a distribution with `support`, got one that does not define it")

    @property
    def mean(self) -> Tensor:
        """The mean, of shape batch_shape + event_shape."""
        raise NotImplementedError(f"[{type(self).__name__}] expected a distribution with `mean`, got one that does not define it")

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        raise NotImplementedError(f"[{type(self).__name__}] expected a distribution with `mode`, got one that does not define it")

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        raise NotImplementedError(f"[{type(self).__name__}] expected a distribution with `variance`, got one that does not define it")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each element."""
        return T.sqrt(self.variance)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Samples of shape sample_shape + batch_shape + event_shape, without gradients."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Samples that are a differentiable function of the parameters, for distributions with `has_rsample`."""
        raise NotImplementedError(f"[{type(self).__name__}] rsample is not implemented: expected a distribution with has_rsample; use sample()")

    def sample_n(self, n: int) -> Tensor:
        """`sample((n,))`; an older name."""
        warnings.warn("`sample_n(n)` will be deprecated. Use `sample((n,))` instead.", FutureWarning, stacklevel=2)
        return self.sample(Size((n,)))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density (or of the probability, if values are discrete) at `value`."""
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample that is at most `value`."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        """The value that a sample exceeds with probability 1 - `value`."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of a discrete distribution along dim 0; expand=False leaves batch dims of size 1."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """The entropy in nats, of shape batch_shape."""
        raise NotImplementedError(f"[{type(self).__name__}] expected a distribution with a known entropy, got one that does not define it")

    def perplexity(self) -> Tensor:
        """exp(entropy)."""
        return T.exp(self.entropy())

    def _extended_shape(self, sample_shape: Any = ()) -> Size:
        """Shape of samples."""
        if not isinstance(sample_shape, (tuple, list)):
            raise ArgumentError(f"[{type(self).__name__}] expected sample_shape as a tuple or list of sizes, got {shown(sample_shape)}")
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _filled(self, value: float, like: Tensor) -> Tensor:
        """One value for every element of a sample."""
        return T.full(tuple(self._extended_shape()), value, dtype=like.dtype, device=like.device)

    def _validate_sample(self, value: Any) -> None:
        """Raise unless `value` has a fitting shape and is in the support."""
        name = type(self).__name__
        if not is_tensor(value):
            raise ArgumentError(f"[{name}] The value argument to log_prob must be a Tensor, got {type_name(value)}")
        have, wanted = value.shape, self._batch_shape + self._event_shape
        if have[len(have) - len(self._event_shape) :] != self._event_shape:
            raise ShapeError(f"[{name}] The right-most size of value must match event_shape: {have} vs {self._event_shape}.")
        if any(i != 1 and j != 1 and i != j for i, j in zip(reversed(have), reversed(wanted), strict=False)):
            raise ShapeError(f"[{name}] Value is not broadcastable with batch_shape+event_shape: {have} vs {wanted}.")
        try:
            support = self.support
        except NotImplementedError:
            warnings.warn(
                f"{type(self)} does not define `support` to enable sample validation. Please initialize the distribution with "
                "`validate_args=False` to turn off validation.",
                stacklevel=3,
            )
            return
        if not holds(support.check(value)):
            raise ArgumentError(
                f"[{name}] Expected value argument ({type_name(value)} of shape {tuple(have)}) to be within the support ({support!r}) of the "
                f"distribution {self!r}, but found invalid values:\n{value}"
            )

    def _checked(self, value: Any) -> Any:
        """`value`, after `_validate_sample` if arguments are checked."""
        if self._validate_args:
            self._validate_sample(value)
        return value

    def __repr__(self) -> str:
        held = {name: self.__dict__[name] for name in self.arg_constraints if name in self.__dict__}
        return f"{type(self).__name__}({', '.join(f'{k}: {v if v.numel() == 1 else v.size()}' for k, v in held.items())})"


class ExponentialFamily(Distribution):
    """Distributions with density exp(t(x) . eta - A(eta) + k(x)): `_natural_params` are eta, `_log_normalizer` is A.

    A subclass that knows the mean of k(x) as `_mean_carrier_measure` need not define its entropy: it is computed from the gradient of A.

    >>> import calque
    >>> calque.distributions.Bernoulli(0.5).entropy().item() == calque.distributions.ExponentialFamily.entropy(
    ...     calque.distributions.Bernoulli(0.5)).item()
    True
    """

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def _log_normalizer(self, *natural_params: Any) -> Any:
        raise NotImplementedError

    @property
    def _mean_carrier_measure(self) -> Any:
        raise NotImplementedError(f"[{type(self).__name__}] expected a family with `_mean_carrier_measure` for its entropy, got one without")

    def entropy(self) -> Any:
        """The entropy by the Bregman divergence of the log normaliser."""
        carrier = self._mean_carrier_measure
        with enable_grad():
            parameters = [p.detach().requires_grad_() for p in self._natural_params]
            normaliser = self._log_normalizer(*parameters)
            slopes: Any = grad(T.sum(normaliser), parameters, create_graph=True)
        result = normaliser - carrier
        for parameter, slope in zip(parameters, slopes, strict=True):
            result = result - T.sum(T.reshape(parameter * slope, (*self._batch_shape, -1)), -1)
        return result
