"""`torch.utils.weak`: dictionaries whose keys are told apart by identity and not kept alive."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

__all__ = ["TensorWeakRef", "WeakIdKeyDictionary", "WeakIdRef", "WeakTensorKeyDictionary"]


class WeakIdRef(weakref.ref[Any]):
    """A weak reference that is compared, and hashed, by the identity of what it leads to."""

    __slots__ = ("_id",)

    def __init__(self, key: Any, callback: Any = None) -> None:
        super().__init__(key, callback)  # type: ignore[call-arg]
        self._id = id(key)

    def __call__(self) -> Any:
        return super().__call__()

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        mine, theirs = self(), other() if isinstance(other, weakref.ref) else None
        return mine is theirs if mine is not None and theirs is not None else self is other


class TensorWeakRef:
    """A weak reference to a tensor."""

    def __init__(self, tensor: Any) -> None:
        self.ref = weakref.ref(tensor)

    def __call__(self) -> Any:
        return self.ref()


class WeakIdKeyDictionary(MutableMapping[Any, Any]):
    """A dictionary whose keys are told apart by identity; an entry goes with its key."""

    def __init__(self, dict: Any = None, ref_type: Any = WeakIdRef) -> None:
        self.data: Any = {}
        self.ref_type = ref_type
        for key, value in (dict or {}).items():
            self[key] = value

    def _forget(self, ref: Any) -> None:
        self.data.pop(ref, None)

    def __getitem__(self, key: Any) -> Any:
        return self.data[self.ref_type(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.data[self.ref_type(key, self._forget)] = value

    def __delitem__(self, key: Any) -> None:
        del self.data[self.ref_type(key)]

    def __contains__(self, key: object) -> bool:
        try:
            return self.ref_type(key) in self.data
        except TypeError:  # of no class that can be referred to weakly
            return False

    def __iter__(self) -> Iterator[Any]:
        for ref in list(self.data):
            key = ref()
            if key is not None:
                yield key

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {len(self)} entries>"

    def copy(self) -> "WeakIdKeyDictionary":
        """The same entries in another one."""
        return type(self)(self, self.ref_type)

    def __deepcopy__(self, memo: Any) -> "WeakIdKeyDictionary":
        made = type(self)(None, self.ref_type)
        for key, value in self.items():
            made[key] = copy.deepcopy(value, memo)
        return made


WeakTensorKeyDictionary = WeakIdKeyDictionary
