"""Exports as native libraries: object file, static library, C header, and a shared library where there is a linker."""
