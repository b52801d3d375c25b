"""`calque doctor`: what this installation is and what it can do."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil

import calque
from calque.base.config import available_cores, settings
from calque.base.native import hot

DISTRIBUTION = "calque-dl"  # what pip installs; the import and the command are `calque`
_PACKAGES = ("numpy", "llvmlite", "ml_dtypes", "safetensors")
_HELPERS = ("all", "dev")  # extras that no user's program asks for


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _optional() -> list[str]:
    """Packages of the extras, in the order of pyproject.toml; none if this is a source tree that was never installed."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    extras = [line.partition("extra ==") for line in lines if "extra ==" in line]
    return list(dict.fromkeys(re.split(r"[^\w.-]", text)[0] for text, _, extra in extras if extra.strip(" \"'") not in _HELPERS))


def _cache_line() -> str:
    files = [p for p in settings.cache_dir.rglob("*") if p.is_file()] if settings.cache_dir.is_dir() else []
    return f"{settings.cache_dir}: {len(files)} files, {sum(p.stat().st_size for p in files) / 2**20:.1f} MiB"


def doctor(cache_only: bool = False) -> int:
    """Print versions, machine, threads, cache and optional packages."""
    if cache_only:
        print(_cache_line())
        return 0
    print(f"calque {calque.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print(f"cores {available_cores()}, threads {settings.threads}, backend {settings.backend}")
    for package in _PACKAGES:
        print(f"  {package:14} {_version(package)}")
    print("optional:")
    for package in _optional():
        print(f"  {package:14} {_version(package)}")
    print(f"kernel cache {_cache_line()}")
    print(f"compiled module {'there' if hot is not None else 'missing: small operations take longer; install a C compiler, then calque-dl again'}")
    return 0


def clear_cache() -> int:
    """Delete the kernel cache."""
    line = _cache_line()
    shutil.rmtree(settings.cache_dir, ignore_errors=True)
    print(f"deleted {line}")
    return 0
