"""The parts of a tensor's text, which classes that hold a tensor print theirs with."""

from calque.functional.printing import OPTIONS as PRINT_OPTS
from calque.functional.printing import closed as _add_suffixes
from calque.functional.printing import contents as _tensor_str

__all__ = ["PRINT_OPTS", "_add_suffixes", "_tensor_str"]
