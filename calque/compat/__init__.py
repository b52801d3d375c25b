"""PyTorch programs run unchanged: `import torch` and everything below it mean Calque.

`finder` is the door: it answers Python's import system, `importlib.util.find_spec` and `importlib.metadata` for the name `torch`. A module of
PyTorch is a `face.Face`, which looks a name up in the folder `torch/` here (names that exist only because programs written for PyTorch mention
them), then in the module of Calque of the same path, and says by `missing` what neither has. `run` runs programs, `site/` is how processes that
a program starts find the same door.
"""
