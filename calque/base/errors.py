"""Error classes. Each stands under the Python built-in a user would catch; messages follow `[op] expected ..., got ...; how to fix`."""

from __future__ import annotations

from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, ClassVar

from calque.base.text import clipped, type_name


class CalqueError(Exception):
    """Base of every error that Calque raises on purpose. However large the values in a text, it stays readable: a long one loses its middle."""

    longest = 1000  # characters

    def __init__(self, *args: object) -> None:
        if args and isinstance(args[0], str) and len(args[0]) > self.longest:
            args = (clipped(args[0], self.longest, False), *args[1:])
        super().__init__(*args)


class ShapeError(CalqueError, ValueError, RuntimeError):
    """Shapes do not fit. Also a RuntimeError, because that is what PyTorch raises for the same mistake."""


class RankError(ShapeError, IndexError):
    """A tensor has too few dims, or too many, or nothing along one. PyTorch looks for what is not there, and raises an IndexError."""


class DTypeError(CalqueError, TypeError, RuntimeError):
    """An element type is not accepted here."""


class UnsupportedTypeError(DTypeError, NotImplementedError):
    """A function is not defined for an element type, here as in PyTorch."""


class IndexTypeError(DTypeError, IndexError):
    """An index of an element type that says no places."""


class ArgumentError(CalqueError, ValueError, RuntimeError):
    """An argument has a value outside its documented range."""


class AssertedError(ArgumentError, AssertionError):
    """What PyTorch asserts of arguments. Also an AssertionError, for programs that catch that."""


class OverlapError(ArgumentError):
    """A write to a tensor that shows one element several times. Forms of functions whose result is defined all the same ask for it by `again`."""

    again: ClassVar[Callable[..., Any]]  # (error, name, function, form, arguments, keywords) -> what the call gives; a module above knows

    def __init__(self, name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        super().__init__(
            f"[{name}] unsupported operation: more than one element of the written-to tensor refers to a single memory location "
            f"(shape {shape}, strides {strides}); clone() the tensor before writing to it"
        )
        self.expanded = any(extent > 1 and not stride for extent, stride in zip(shape, strides, strict=True))


class LinAlgError(ArgumentError):
    """A matrix that is singular, or not positive-definite."""


class OutOfRangeError(CalqueError, IndexError, RuntimeError):
    """An index or label is outside the valid range."""


class MissingEntryError(CalqueError, KeyError, ValueError):
    """A result, or a configuration, has no entry of this name."""

    __str__ = Exception.__str__  # KeyError shows quotes


class DeviceError(CalqueError, RuntimeError):
    """A device is missing, or tensors live on different devices."""


class DistributedError(CalqueError, RuntimeError):
    """Several processes cannot do together what was asked: one is missing, gone or does something else, or they cannot be started."""

    longest = 6000  # every rank is named


class NotDense(CalqueError, NotImplementedError):
    """A function asked for a block of values what has none, a sparse tensor or an object of a class with a protocol of its own. Public functions ask
    for the `meaning` of the call then."""

    def __init__(self, tensor: object, name: str = "tensor") -> None:
        layout = getattr(tensor, "layout", None)
        super().__init__(f"[{name}] expected a dense tensor, got one of layout {layout}; convert it with .to_dense()")
        self.tensor = tensor

    def meaning(self, name: str, args: Any, keywords: Any, function: Any = None, module: str = "") -> Any:
        """What a public function of this name means for the tensor. What is no tensor of ours is asked by the frame of the function."""
        ask = getattr(type(self.tensor), "_meaning", None)
        if ask is None:
            raise self
        return ask(self.tensor, name, args, keywords, function, module)


class AutogradError(CalqueError, RuntimeError):
    """The autograd graph cannot do what was asked."""


class BatchError(CalqueError, RuntimeError):
    """`vmap` cannot do this for all slices at once."""


class StrategyError(CalqueError, AssertionError, ValueError):
    """A way to compute that there is not. Also an AssertionError, because that is what PyTorch raises."""


class ForwardModeError(CalqueError, NotImplementedError):
    """An operation has no forward-mode rule."""


class SharingError(AutogradError, BufferError):
    """Memory cannot be handed to another framework, or taken from one, as was asked."""


class InterruptedValueError(CalqueError, RuntimeError):
    """A value that nobody will compute: an exception came while its program was handed over."""


class OutOfMemoryError(CalqueError, MemoryError, RuntimeError):
    """An allocation does not fit; the process and every existing tensor stay usable."""

    sizes: tuple[str, str] | None = None  # what was asked for and what there was, as text
    nbytes: tuple[int, int] | None = None  # the same in bytes
    described = False  # whether the message names the operation


class MemoryPlanError(CalqueError, RuntimeError):
    """What a step holds cannot be said before it runs, or cannot be brought under a budget."""


class CompileError(CalqueError, TypeError):
    """A program cannot be compiled."""


class StateDictError(CalqueError, ValueError, RuntimeError):
    """A state dict does not fit the module or optimizer; nothing was loaded."""

    longest = 100_000  # every key that does not fit is named


class ExportError(CalqueError, RuntimeError):
    """A function cannot be exported, or an export is used in a way that it was not made for."""


class CheckpointError(CalqueError, OSError, RuntimeError):
    """A checkpoint cannot be written or read; what was saved before is untouched. Also a RuntimeError, as PyTorch raises for damaged files."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at this path; the message names the newest good one beside it."""


class UnsafeFileError(CheckpointError, UnpicklingError):
    """A file would need code execution to be read; it was not opened further. Also what PyTorch raises then."""


class CollateError(CalqueError, ValueError, RuntimeError):
    """Samples of a batch cannot be put together."""


class NonFiniteError(CalqueError, ArithmeticError, RuntimeError):
    """A NaN or infinity appeared where checked mode or `detect_anomaly` forbids it."""


class IntegerOverflowError(CalqueError, OverflowError):
    """An integer of Python has too many bits, or integers wrapped around where checked mode forbids it."""


class DataError(CalqueError, ValueError):
    """A dataset contradicts itself."""


class WorkerError(CalqueError, RuntimeError):
    """A worker of a data loader did not answer in time."""


class MissingExtraError(CalqueError, ImportError):
    """An optional dependency is not installed; the message holds the pip line."""


class LeakWarning(UserWarning, ResourceWarning):
    """Memory grows at every step because history is kept alive. (Python hides plain ResourceWarnings.)"""


class RepetitionWarning(UserWarning):
    """The programs of a loop do not come again: what was planned for one turn serves no other."""


class NonFiniteWarning(RuntimeWarning):
    """A loss became NaN or infinite."""


class ProfileError(CalqueError, RuntimeError):
    """A profile cannot be taken now, or holds nothing yet."""


class VerificationError(CalqueError, AssertionError):
    """A program broke an invariant of the IR: a bug in Calque, never in user code."""


_INSIDE_TENSORS = ("_layout", "_storage", "_requires_grad", "_grad_fn")


def no_tensor(name: str, error: AttributeError) -> DTypeError | None:
    """What to raise instead of `error` if it comes from something that is no Tensor in the place of one. Looking at types beforehand would cost every
    call."""
    if error.name not in _INSIDE_TENSORS:
        return None
    return DTypeError(f"[{name}] expected a Tensor, got {type_name(error.obj)}; {how_to_pass(error.obj)}")


def how_to_pass(value: object) -> str:
    """What to do with a value that is no Tensor, where one is expected."""
    if type_name(value).startswith("torch."):
        share = ", or share its memory with calque.from_dlpack(x.detach())" if hasattr(type(value), "__dlpack__") else ""
        return f"it belongs to PyTorch: import calque instead of torch where it is made{share}"
    if callable(getattr(type(value), "to_numpy", None)):
        numbers = ".select_dtypes('number')" if hasattr(type(value), "select_dtypes") else ""
        return f"convert it with calque.tensor(x{numbers}.to_numpy())"
    if value is None:
        return "pass a Tensor (a function or forward() without a return gives None)"
    if isinstance(value, (tuple, list)) and any(hasattr(v, "_layout") for v in value):
        return "pass one of its elements"
    if callable(value):
        return "pass a Tensor, such as the result of calling it"
    return "convert it with calque.as_tensor(...)"
