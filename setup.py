"""The compiled module of hot paths (`native/README.md`); everything else of the package is described in pyproject.toml.

It is optional: where there is no C compiler the installation goes on without it, and its Python twins run.
"""

from pathlib import Path

import numpy
from setuptools import Extension, setup

sources = sorted(str(path) for path in Path("native").glob("*.c"))
headers = sorted(str(path) for path in Path("native").glob("*.h"))
hot = Extension("calque._hot", sources, include_dirs=[numpy.get_include()], depends=headers, extra_compile_args=["-O2"], optional=True)

setup(ext_modules=[hot])
