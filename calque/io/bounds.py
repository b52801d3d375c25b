"""How much memory a header may become: one rule for the reader, which has to survive any file, and for the writer, which must not write what is then
refused.

Everything is charged to a `Budget` before it is made: the copies of the text, the index entry by entry, the tensors, and the values of the structure,
which are counted in its text. The figures are those of 64-bit CPython; a test compares them with what is really allocated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from calque.io.structure import decoder

MEMORY_ALLOWANCE = 61 << 20  # bytes that a header may become beyond the size of its file
PER_ENTRY = 420  # an entry of the index, with its name
PER_TENSOR = 640  # what a tensor of few elements takes beyond its entry and its node in the structure: storage, buffer, arrays
_PER_NAME = 300  # an item of the metadata
_PER_PLACE = 9  # of a value in a list
_PER_NUMBER = 32
_PER_STRING = 64
_PER_LIST = 104
_PER_OBJECT = 200  # with five keys at most
_PER_KEY = 140  # its pair while the object is read, its place in the dict
_ENTRY_TEXT = 8192  # characters of an entry: 64 extents and two offsets take less than half of them
_PIECE = 1 << 18  # bytes of text that are looked at together
_BLANK = re.compile(r"[ \t\n\r]*")
_NUMERIC = np.isin(np.arange(256), np.frombuffer(b"+-.0123456789eE", np.uint8))
_DECODER = decoder()


class Damaged(Exception):
    """A file that does not follow the layout; the reader adds the path and raises CheckpointError."""


class Budget:
    """Bytes that may still be taken. Raises Damaged instead of going below zero."""

    def __init__(self, size: int, what: str) -> None:
        self.left, self.what = size, what

    def take(self, size: int) -> None:
        """So many bytes will be allocated."""
        self.left -= size
        if self.left < 0:
            raise Damaged(f"{self.what}, more than can be read safely")


def parsed_size(text: bytes) -> int:
    """At least the bytes that the values of a JSON text take, without parsing it.

    >>> parsed_size(b"[" + 1000 * b"1.5," + b"1.5]") > 1000 * (24 + 8)
    True
    """
    inside = False
    made = keys = objects = 0
    for piece in _pieces(text):
        bare = piece.replace(b"\\\\", b"")
        parts = bare.replace(b'\\"', b"").split(b'"')
        plain = b'"'.join(parts[inside::2])
        keys, objects, lists = keys + plain.count(b":"), objects + plain.count(b"{"), plain.count(b"[")
        made += _PER_LIST * lists + _PER_PLACE * (lists + plain.count(b",") + plain.count(b"{"))
        digits = _NUMERIC[np.frombuffer(plain, np.uint8)]
        made += _PER_NUMBER * (1 + int(np.count_nonzero(digits[1:] & ~digits[:-1])))
        made += _PER_STRING * (len(parts) // 2 + 1)
        inside ^= len(parts) % 2 == 0
    made += _PER_OBJECT * objects + _PER_KEY * max(keys - objects, 0)  # text behind a fault cannot lower it: a brace costs more than a key
    return made + _strings_size(text)


def _strings_size(text: bytes) -> int:
    """At least the bytes of all strings in a JSON text. Those with escapes grow while they are read: by a quarter more than is needed, and anew when
    a wide character comes."""
    if b"\\" not in text:
        return len(text) * (1 if text.isascii() else 4)
    wide = not text.isascii() or any(b"\\u" in piece.replace(b"\\\\", b"") for piece in _pieces(text))
    return len(text) * 25 // 4 if wide else len(text) * 5 // 4


def _pieces(text: bytes) -> Iterator[bytes]:
    """The text in pieces that end behind no half of an escape."""
    start = 0
    while start < len(text):
        piece = text[start : start + _PIECE]
        start += len(piece)
        if start < len(text) and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece, start = piece[:-1], start - 1
        yield piece


class Index:
    """The index of a header, read entry by entry: `metadata`, and `entries` as JSON has them, made into something smaller by `make` at once."""

    def __init__(self, text: bytes, budget: Budget, make: Any) -> None:
        budget.take(len(text) * (2 if text.isascii() else 5) + _strings_size(text))  # the text, decoded, and whatever strings are in it
        self.text, self.budget, self.make = text.decode("utf-8"), budget, make
        self.metadata: dict[str, str] = {}
        self.entries: dict[str, Any] = {}
        if self._next(0) != "{":
            json.loads(self.text[:_ENTRY_TEXT])
            raise Damaged("its header is not a JSON object")
        end = self._object(self._skip(0) + 1, self._entry)
        if self._skip(end) != len(self.text):
            raise json.JSONDecodeError("Extra data", self.text[:0], 0)

    def _skip(self, at: int) -> int:
        return _BLANK.match(self.text, at).end()  # type: ignore[union-attr]

    def _next(self, at: int) -> str:
        at = self._skip(at)
        return self.text[at : at + 1]

    def _expect(self, mark: str, at: int) -> int:
        """The place behind a mark."""
        at = self._skip(at)
        if self.text[at : at + 1] != mark:
            raise ValueError(f"expected {mark!r} at character {at:,}")
        return at + 1

    def _object(self, at: int, value: Any) -> int:
        """Read the items of an object from behind its brace; returns the place behind it."""
        if self._next(at) == "}":
            return self._skip(at) + 1
        while True:
            name, at = _DECODER.raw_decode(self.text, self._expect('"', at) - 1)
            at = value(name, self._skip(self._expect(":", at)))
            if self._next(at) == "}":
                return self._skip(at) + 1
            at = self._expect(",", at)

    def _entry(self, name: str, at: int) -> int:
        if name in self.entries or (name == "__metadata__" and self.metadata):
            raise ValueError(f"the key {name[:80]!r} stands twice")
        if name == "__metadata__":
            if self._next(at) != "{":
                raise Damaged("its metadata is not a map from text to text")
            return self._object(at + 1, self._metadatum)
        self.budget.take(PER_ENTRY)
        text = self.text[at : at + _ENTRY_TEXT]
        try:
            value, end = _DECODER.raw_decode(text)
        except (json.JSONDecodeError, RecursionError):
            if len(text) < _ENTRY_TEXT:
                raise
            end = len(text)
        if end == _ENTRY_TEXT:
            raise Damaged(f"the entry of tensor {name[:80]!r} takes more than {_ENTRY_TEXT:,} characters or is nested too deeply")
        self.entries[name] = self.make(name, value)
        return at + int(end)

    def _metadatum(self, name: str, at: int) -> int:
        if name in self.metadata:
            raise ValueError(f"the key {name[:80]!r} stands twice")
        if self.text[at : at + 1] != '"':
            raise Damaged("its metadata is not a map from text to text")
        self.budget.take(_PER_NAME)
        self.metadata[name], at = _DECODER.raw_decode(self.text, at)
        return at
