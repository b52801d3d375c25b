"""What lies around a library for those who do not write C: C++ classes, a package for CMake, a wheel for Python."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path

from calque.exported.native.header import C_TYPES, RESERVED, TAKEN, c_name
from calque.exported.native.plan import DTYPES, Plan, Signature
from calque.exported.native.runtime import BUSY
from calque.exported.native.tables import most_threads

_FOLDER = Path(__file__).with_name("around")
_METHODS = {"run", "state", "reset", "instance", "with_weights", "create", "check", "sized", "destroy", "release", "held_", "memory_", "threads"}
_CPP = {"float32": "float", "float64": "double", "bool": "std::uint8_t"}  # the type that stands for one; halves are bits
TAGS = {
    "x86_64-linux-gnu": "linux_x86_64", "aarch64-linux-gnu": "linux_aarch64", "riscv64-linux-gnu": "linux_riscv64",
    "arm64-apple-macosx": "macosx_11_0_arm64", "x86_64-windows": "win_amd64",
}  # fmt: skip
"""Of wheels, by target."""


def _filled(file: str, name: str, **parts: str) -> str:
    """A file with these words exchanged, at once, so that no part is looked at for others."""
    text = (_FOLDER / file).read_text(encoding="utf-8")
    parts["NAME"] = name
    return re.sub("NAME|" + "|".join(f"@{part}@" for part in parts), lambda found: parts[found[0].strip("@")], text)


def classes(plan: Plan) -> str:
    """The C++ header."""
    name = plan.name
    constants: set[str] = {f"{name.upper()}_PROGRAMS", f"{name.upper()}_H"}
    functions = {f"{name}_{function}" for function in RESERVED}
    for s in plan.signatures:
        c_name(f"{name}_{s.name}".upper(), constants)
    methods = set(_METHODS)
    made = "".join(_method(c_name(f"{name}_{s.name}", functions), c_name(s.name, methods | set(TAKEN.split())), s) for s in plan.signatures)
    known = {_CPP.get(d, f"std::{d}_t"): d for d in ("float32", "float64", "int8", "int16", "int32", "int64", "uint8")}
    types = "".join(f"template <> constexpr std::int32_t dtype_of<{t}>() {{ return CALQUE_{d.upper()}; }}\n" for t, d in known.items())
    return _filled("classes.hpp", name, GUARD=f"{name.upper()}_HPP", TYPES=types, METHODS=made)


def _method(function: str, method: str, s: Signature) -> str:
    """A method with a span for each tensor; and one that returns a vector, if there is one output."""
    taken = set(TAKEN.split()) | _METHODS | {method}
    names = [c_name(spec.name, taken) for spec in (*s.inputs, *s.outputs)]
    specs = [*s.inputs, *s.outputs]
    types = [C_TYPES.get(spec.dtype.name, f"{spec.dtype.name}_t") for spec in specs]
    count = len(s.inputs)
    spans = [f"calque::span<{'const ' if k < count else ''}{t}> {n}" for k, (t, n) in enumerate(zip(types, names, strict=True))]
    numbers = [prod(int(size) for size in spec.shape) for spec in specs]
    shapes = "; ".join(f"{n}: {spec.dtype.name}[{', '.join(map(str, spec.shape))}]" for n, spec in zip(names, specs, strict=True))
    checks = "".join(f'        sized({n}.size(), {number}, "{n}");\n' for n, number in zip(names, numbers, strict=True))
    handed = ", ".join(["instance()", *[f"{n}.data()" for n in names]])
    found = f"\n    /* {shapes} */\n    void {method}({', '.join(spans)}) {{\n{checks}        check({function}({handed}));\n    }}\n"
    if len(names) == count + 1:
        kind, result = types[-1], names[-1]
        found += (
            f"    std::vector<{kind}> {method}({', '.join(spans[:-1])}) {{\n        std::vector<{kind}> {result}({numbers[-1]});\n"
            f"        {method}({', '.join(names)});\n        return {result};\n    }}\n"
        )
    return found


def cmake(name: str, static: str, shared: str) -> str:
    """What `find_package` reads."""
    return _filled("config.cmake", name, STATIC=static, SHARED=shared)


def wheel(plan: Plan, target: str, shared: str, files: Mapping[str, bytes]) -> tuple[str, bytes]:
    """The name and the bytes of a wheel: a package with the library and a module of ctypes and NumPy.

    Source: PyPA, "Binary distribution format" 1.0 (https://packaging.python.org/specifications/binary-distribution-format/).
    """
    name, version = plan.name, "1.0.0"
    threads = str(most_threads(plan.targets[0]))
    module = _filled("module.py.txt", name, SHARED=shared, DTYPES=repr(DTYPES), PROGRAM=plan.signatures[0].name, MOST=threads, BUSY=str(BUSY))
    tag, info = f"py3-none-{TAGS[target]}", f"{name}-{version}.dist-info"
    held = {f"{name}/__init__.py": module.encode(), **{f"{name}/{file}": data for file, data in files.items()}}
    held[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: A model as a native library\nRequires-Python: >=3.9\n"
        "Requires-Dist: numpy>=1.22\n"
    ).encode()
    held[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: calque\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    sums = [base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() for data in held.values()]
    rows = [f"{path},sha256={found},{len(data)}" for (path, data), found in zip(held.items(), sums, strict=True)]
    held[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for path, data in held.items():
            file.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return f"{name}-{version}-{tag}.whl", packed.getvalue()
