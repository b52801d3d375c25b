"""The files around a WebAssembly module: a JavaScript module with types, a package, and a page that works from the disk."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

from calque.exported.native.plan import Plan

_FOLDER = Path(__file__).with_name("web")


def web_files(plan: Plan, wasm: bytes, weights: bytes) -> dict[str, bytes]:
    """By name. The page holds all that it needs, since browsers read nothing beside a page that comes from the disk."""
    name = plan.name
    module = (_FOLDER / "module.mjs").read_text(encoding="utf-8").replace("NAME", name)
    programs = " | ".join(json.dumps(s.name) for s in plan.signatures)
    types = (_FOLDER / "module.d.ts").read_text(encoding="utf-8").replace("NAME", name).replace("PROGRAMS", programs)
    files = [f"{name}.{ending}" for ending in ("mjs", "d.ts", "wasm", *(["weights"] if weights else []))]
    package = {"name": name.lower(), "version": "1.0.0", "type": "module", "main": f"{name}.mjs", "types": f"{name}.d.ts", "files": files}
    page = (_FOLDER / "page.html").read_text(encoding="utf-8").replace("NAME", name)
    page = page.replace("MODULE", module.replace("export ", "")).replace('"WASM"', f'"{b64encode(wasm).decode()}"')
    page = page.replace('"WEIGHTS"', f'"{b64encode(weights).decode()}"')
    made = {f"{name}.mjs": module, f"{name}.d.ts": types, "package.json": json.dumps(package, indent=2) + "\n", "index.html": page}
    return {file: text.encode() for file, text in made.items()}
