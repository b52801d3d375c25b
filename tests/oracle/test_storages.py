"""Memory behind tensors, and tensors that are laid into it: `storage()`, `untyped_storage()`, `set_`, `torch.utils.swap_tensors`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque

torch = pytest.importorskip("torch")

from tests.oracle.outcomes import outcome  # noqa: E402


def rows(T: Any) -> Any:
    return T.arange(6.0).reshape(2, 3)


def written(T: Any) -> Any:
    x, z = rows(T), T.empty(0)
    z.set_(x.untyped_storage(), 1, (2, 2), (3, 1))
    x.mul_(2)
    z[0, 0] = -1
    return x.tolist(), z.tolist(), z.stride(), z.storage_offset()


def through_storage(T: Any) -> Any:
    x = rows(T)
    x.storage()[4] = 9.0
    return x.tolist()


CALLS: dict[str, Callable[[Any], Any]] = {
    "untyped size": lambda T: [f(rows(T)[1:].untyped_storage()) for f in (lambda s: s.size(), len, lambda s: s.nbytes(), lambda s: s.element_size())],
    "typed size": lambda T: [f(rows(T)[1:].storage()) for f in (lambda s: s.size(), len, lambda s: s.nbytes(), lambda s: s.element_size())],
    "bytes": lambda T: (rows(T).untyped_storage().tolist(), rows(T).untyped_storage()[7], list(rows(T).untyped_storage())[-3:]),
    "elements": lambda T: (rows(T)[1:].storage().tolist(), rows(T).storage()[-1], list(rows(T).double().storage())[:2]),
    "facts": lambda T: [(str(s.device), s.is_cuda, s.is_shared(), s.is_pinned()) for s in (rows(T).storage(), rows(T).untyped_storage())],
    "dtype": lambda T: str(rows(T).long().storage().dtype),
    "untyped of typed": lambda T: rows(T).storage().untyped().size(),
    "clone": lambda T: rows(T)[1:].storage().clone().tolist(),
    "same memory": lambda T: (lambda x: x.untyped_storage().data_ptr() == x[1:].untyped_storage().data_ptr())(rows(T)),
    "written": written,
    "through storage": through_storage,
    "set_()": lambda T: (rows(T).set_().shape, str(rows(T).long().set_().dtype)),
    "set_(storage)": lambda T: T.empty(0).set_(rows(T)[1:].untyped_storage()).tolist(),
    "set_(typed)": lambda T: T.empty(0).set_(rows(T).storage(), 2, (2,), (2,)).tolist(),
    "set_(tensor)": lambda T: T.empty(0).set_(rows(T)[1:]).tolist(),
    "set_(tensor, offset)": lambda T: T.empty(0).set_(rows(T)[1:], 1, (2,)).tolist(),
    "set_(keywords)": lambda T: T.empty(0).set_(source=rows(T).untyped_storage(), storage_offset=1, size=(2,), stride=(3,)).tolist(),
    "set_(other dtype)": lambda T: T.empty(0, dtype=T.int32).set_(rows(T)),
    "set_(other typed)": lambda T: T.empty(0, dtype=T.int32).set_(rows(T).storage(), 0, (2,)),
    "set_(None)": lambda T: T.empty(0).set_(None),
    "set_(number)": lambda T: T.empty(0).set_(3),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_lies_in_memory(name: str) -> None:
    assert outcome(calque, CALLS[name]) == outcome(torch, CALLS[name])
