"""The reference backend: NumPy interpretation of programs, the definition that every other backend is tested against."""
