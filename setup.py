"""The compiled module of hot paths (`native/README.md`); everything else of the package is described in pyproject.toml.

It is optional: where there is no C compiler the installation goes on without it, and its Python twins run.
"""

from pathlib import Path

from setuptools import Extension, setup

try:
    import numpy
except ImportError:  # installed without build isolation, where NumPy is not there yet
    numpy = None

sources = sorted(str(path) for path in Path("native").glob("*.c"))
headers = sorted(str(path) for path in Path("native").glob("*.h"))
include = [numpy.get_include()] if numpy is not None else []
hot = Extension("calque._hot", sources, include_dirs=include, depends=headers, extra_compile_args=["-O2"], optional=True)

setup(ext_modules=[hot] if include else [])
