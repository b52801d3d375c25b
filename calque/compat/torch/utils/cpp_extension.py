"""`torch.utils.cpp_extension`: refused by name, for extensions are compiled against PyTorch's own headers."""

from __future__ import annotations

from calque.compat.refused import refused, refused_class

__all__ = [
    "BuildExtension", "CUDA_HOME", "CUDAExtension", "CppExtension", "IS_WINDOWS", "ROCM_HOME", "SyclExtension", "check_compiler_abi_compatibility",
    "include_paths", "is_ninja_available", "library_paths", "load", "load_inline", "verify_ninja_availability",
]  # fmt: skip

IS_WINDOWS = False
CUDA_HOME = ROCM_HOME = None
BuildExtension = refused_class("torch.utils.cpp_extension.BuildExtension")
CppExtension, CUDAExtension, SyclExtension, load, load_inline, include_paths, library_paths, verify_ninja_availability = (
    refused(f"torch.utils.cpp_extension.{name}")
    for name in (
        "CppExtension", "CUDAExtension", "SyclExtension", "load", "load_inline", "include_paths", "library_paths", "verify_ninja_availability",
    )
)


def is_ninja_available() -> bool:
    """False: nothing is built."""
    return False


def check_compiler_abi_compatibility(compiler: str) -> bool:
    """False: nothing is built."""
    return False
