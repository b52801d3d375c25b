"""Functions and methods that few programs name: a module below loads when one of its names is first asked for, so that no import pays for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import FunctionType
from typing import Any

from calque.base.text import no_attribute
from calque.functional.blame import framed
from calque.tensor import Tensor

# Module beside this one -> (names of the namespace, methods of Tensor).
MODULES: dict[str, tuple[str, str]] = {
    "bessel": ("i0 i0_", "i0 i0_"),
    "copies": (
        "alias_copy as_strided_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy select_copy slice_copy split_copy "
        "split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsafe_chunk unsafe_split unsafe_split_with_sizes "
        "unsqueeze_copy view_copy",
        "narrow_copy unsafe_chunk unsafe_split unsafe_split_with_sizes",
    ),
    "sampled": (
        "cumulative_trapezoid frexp gradient histogram histogramdd nextafter",
        "frexp histogram nextafter nextafter_",
    ),
    "placements": (
        "as_strided_scatter empty_permuted empty_strided fill index_reduce nonzero_static range=range_ renorm resize_as_ segment_reduce "
        "_segment_reduce=segment_reduce unravel_index",
        "as_strided_scatter index_reduce index_reduce_ new_empty_strided nonzero_static renorm renorm_ resize_as_",
    ),
    "draws": ("binomial poisson", "cauchy_ geometric_ log_normal_"),
    "handles": ("is_same_size", "apply_ dim_order is_same_size map2_ share_memory_"),
    "lu": ("lu lu_solve lu_unpack triangular_solve", "lu lu_solve triangular_solve"),
    "matrices": (
        "cholesky_inverse cholesky_solve geqrf matrix_exp orgqr ormqr pca_lowrank qr=old_qr svd=old_svd svd_lowrank vander",
        "cholesky_inverse cholesky_solve geqrf matrix_exp orgqr ormqr qr svd",
    ),
    "gamma": ("igamma igammac mvlgamma polygamma", "igamma igamma_ igammac igammac_ mvlgamma mvlgamma_ polygamma polygamma_"),
    "sparse": (
        "dsmm hspmm smm sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor spmm sspaddmm",
        "_indices _nnz _values ccol_indices coalesce col_indices crow_indices dense_dim indices is_coalesced row_indices smm sparse_dim "
        "sparse_mask sspaddmm to_dense to_sparse to_sparse_coo to_sparse_csc to_sparse_csr values",
    ),
    "spectra": ("istft stft", "istft stft"),
    "tapers": ("bartlett_window blackman_window hamming_window hann_window kaiser_window", ""),
}

# Functions of other layers that PyTorch also has in the namespace: their modules.
LAYERS = {
    "calque.nn.functional.native": "_chunk_cat _native_batch_norm_legit _softmax_backward_data _unsafe_masked_index "
    "_unsafe_masked_index_put_accumulate constant_pad_nd grid_sampler grid_sampler_2d grid_sampler_3d native_batch_norm native_channel_shuffle "
    "native_group_norm native_layer_norm",
    "calque.nn.functional.volumes": "conv_tbc conv_transpose3d max_pool3d",
}


def resolver(space: dict[str, Any], modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module for names that others of our modules define (`name`, or
    `name=the name there`): it looks once, and leaves what it found in the module."""
    home = {name: (module, own or name) for module, names in modules.items() for name, _, own in (n.partition("=") for n in names.split())}
    place = space["__name__"]

    def find(name: str) -> Any:
        if name not in home:
            raise no_attribute(place, name)
        module, own = home[name]
        found = getattr(loaded(module), own)
        if isinstance(found, FunctionType):
            found = framed({name: found}, place).get(name, found)
        space[name] = found
        return found

    find.__dict__["names"] = list(home)
    return find


def loaded(module: str) -> Any:
    """A module, whose methods of `Tensor` users see in frames however it came to be loaded."""
    found, name = import_module(module), module.removeprefix("calque.functional.")
    methods = {name: vars(Tensor)[name] for name in MODULES.get(name, ("", ""))[1].split()}
    for name, function in framed(methods, "calque.Tensor").items():
        setattr(Tensor, name, function)
    return found


def namespace() -> dict[str, str]:
    """Module -> its names in the namespace, for `resolver`."""
    return {f"calque.functional.{module}": names for module, (names, _) in MODULES.items() if names} | LAYERS


class LaterMethod:
    """What stands for a method until its module is loaded."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        loaded(f"calque.functional.{self.module}")
        found = vars(Tensor)[self.name]
        if found is self:
            raise AttributeError(f"'Tensor' object has no attribute {self.name!r}")
        return found.__get__(instance, owner)


for _module, (_, _methods) in MODULES.items():
    for _name in _methods.split():
        setattr(Tensor, _name, LaterMethod(_module, _name))
