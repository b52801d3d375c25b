"""Sparse tensors: the class, what public functions mean for it, products, and the functions that make them. Loads when one is first asked for."""

from calque.functional.blame import explaining
from calque.functional.sparse import products, rules
from calque.functional.sparse.making import (
    dsmm,
    hspmm,
    smm,
    sparse_compressed_tensor,
    sparse_coo_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
    spmm,
    sspaddmm,
)
from calque.functional.sparse.tensor import RULES, SparseTensor
from calque.tensor import Tensor

__all__ = [
    "SparseTensor", "dsmm", "hspmm", "products", "rules", "smm", "sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor",
    "sparse_csr_tensor", "spmm", "sspaddmm",
]  # fmt: skip

# Methods are the rules themselves: those of dense tensors need not fail first.
for _name, _rule in RULES.items():
    if hasattr(Tensor, _name) and _name not in vars(SparseTensor):
        setattr(SparseTensor, _name, explaining(_name, _rule, "calque.Tensor"))
for _name, _own in {"__neg__": "neg", "__pos__": "positive", "__abs__": "abs"}.items():
    setattr(SparseTensor, _name, RULES[_own])
for _name in ("add", "sub", "mul", "truediv", "floordiv"):
    setattr(SparseTensor, f"__i{_name}__", getattr(SparseTensor, {"truediv": "div_", "floordiv": "floor_divide_"}.get(_name, f"{_name}_")))
