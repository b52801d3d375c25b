"""What is known of Python's own modules, functions and classes: which of them depend on, or change, what no guard compares."""

from __future__ import annotations

import dis
import queue
import re
import threading
import types
from operator import attrgetter, itemgetter, methodcaller

IMPURE_MODULES = {"random", "time", "datetime", "secrets", "uuid", "os", "socket", "threading", "subprocess", "shutil", "tempfile", "logging", "gc"}
OF_PROCESS = {
    "initial_seed", "stats", "get_num_threads", "get_float32_matmul_precision", "get_autocast_dtype", "is_anomaly_enabled",
    "is_anomaly_check_nan_enabled", "are_deterministic_algorithms_enabled", "is_deterministic_algorithms_warn_only_enabled", "memory_allocated",
    "max_memory_allocated", "memory_reserved", "memory_stats", "memory_summary",
}  # fmt: skip
OF_INTERPRETER = {"getrefcount", "_getframe", "getrecursionlimit", "getswitchinterval", "exc_info", "modules", "argv", "stdout", "stderr", "stdin"}
IMPURE_BUILTINS = {"print", "input", "open", "next", "exec", "eval", "globals", "locals", "vars", "breakpoint", "id"}
ASKING = {"getattr", "hasattr", "vars", "__dict__", "AttributeError", "Exception", "BaseException"}
CALLED = ("forward", "backward", "setup_context", "hybrid_forward", "update_group")
EXACT_BUILTINS = {
    "abs", "all", "any", "bool", "callable", "classmethod", "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "getattr",
    "hasattr", "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "min", "object", "pow", "property", "range", "repr",
    "reversed", "round", "set", "setattr", "slice", "sorted", "staticmethod", "str", "sum", "super", "tuple", "zip", "Ellipsis", "NotImplemented",
    "__build_class__", "__name__", "__debug__",
}  # fmt: skip
TRANSPARENT = (  # objects without state that could change
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.CodeType, types.GenericAlias, types.UnionType, types.NotImplementedType, property,
    staticmethod, classmethod, super, re.Pattern, type(threading.Lock()), type(threading.RLock()), itemgetter, attrgetter,
    methodcaller, type(vars(dis.Instruction.__base__)["opname"]),  # a field of a named tuple
)  # fmt: skip
LOCKS = (
    type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, threading.Semaphore, threading.Barrier, queue.Queue,
)  # fmt: skip
TRANSPARENT_MODULES = {"datetime", "decimal", "fractions", "pathlib", "typing", "zoneinfo"}
OF_FILES = {
    "exists", "is_file", "is_dir", "is_symlink", "stat", "lstat", "read_text", "read_bytes", "open", "iterdir", "glob", "rglob", "walk", "cwd",
    "resolve", "write_text", "write_bytes", "unlink", "mkdir", "touch", "rename", "replace", "samefile",
}  # fmt: skip
