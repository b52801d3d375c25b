"""LLVM IR with addresses written where they are used, as in C: a field some bytes behind a pointer, or an element of an array.

    %size = load i64, ptr %list + 16          the field 16 bytes behind %list
    store ptr %item, ptr %items[%k]           element %k, counted in values of the type that is stored
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"^( +)((?:%[\w.]+ = load|store) (?:atomic )?(\w+)[^,\n]*, ptr )(%[\w.]+)(?: \+ (%?\w+)|\[([%\w.-]+)\])", re.MULTILINE)


def with_addresses(text: str) -> str:
    """The text with an instruction of its own for each such address."""
    count = 0

    def expanded(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        indent, access, kind, base, offset, index = found.groups()
        unit = "i8" if offset else kind
        return f"{indent}%at.{count} = getelementptr {unit}, ptr {base}, i64 {offset or index}\n{indent}{access}%at.{count}"

    return _ADDRESS.sub(expanded, text)
