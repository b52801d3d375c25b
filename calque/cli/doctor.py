"""`calque doctor`: what this installation is and what it can do."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil

from calque.base.config import available_cores, settings

_PACKAGES = ("numpy", "llvmlite", "ml_dtypes", "safetensors")
_OPTIONAL = ("scikit-learn", "matplotlib", "tensorboardX", "pillow", "onnx", "ray", "optuna", "mpi4py")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cache_line() -> str:
    files = [p for p in settings.cache_dir.rglob("*") if p.is_file()] if settings.cache_dir.is_dir() else []
    return f"{settings.cache_dir}: {len(files)} files, {sum(p.stat().st_size for p in files) / 2**20:.1f} MiB"


def doctor(cache_only: bool = False) -> int:
    """Print versions, machine, threads, cache and optional packages."""
    if cache_only:
        print(_cache_line())
        return 0
    print(f"calque {_version('calque')}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print(f"cores {available_cores()}, threads {settings.threads}, backend {settings.backend}")
    for package in _PACKAGES:
        print(f"  {package:14} {_version(package)}")
    print("optional:")
    for package in _OPTIONAL:
        print(f"  {package:14} {_version(package)}")
    print(f"kernel cache {_cache_line()}")
    return 0


def clear_cache() -> int:
    """Delete the kernel cache."""
    line = _cache_line()
    shutil.rmtree(settings.cache_dir, ignore_errors=True)
    print(f"deleted {line}")
    return 0
