"""Functions and methods that few programs name: a module below loads when one of its names is first asked for, so that no import pays for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import FunctionType
from typing import Any

from calque.base.text import no_attribute
from calque.functional.blame import framed
from calque.functional.declared import SPACES
from calque.tensor import Tensor

# Module -> namespace, or "Tensor" for methods -> names that it declares there, or defines: what a name loads must be known before anything is loaded.
MODULES: dict[str, dict[str, str]] = {
    "calque.functional.bessel": {"calque": "i0 i0_", "Tensor": "i0 i0_"},
    "calque.functional.copies": {
        "calque": "alias_copy as_strided_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy select_copy slice_copy split_copy "
        "split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsafe_chunk unsafe_split unsafe_split_with_sizes "
        "unsqueeze_copy view_as_complex_copy view_as_real_copy view_copy",
        "Tensor": "narrow_copy unsafe_chunk unsafe_split unsafe_split_with_sizes",
    },
    "calque.functional.sampled": {
        "calque": "cumulative_trapezoid frexp gradient histogram histogramdd nextafter",
        "Tensor": "frexp histogram nextafter nextafter_",
    },
    "calque.functional.placements": {
        "calque": "as_strided_scatter empty_permuted empty_strided fill index_reduce nonzero_static range renorm resize_as_ segment_reduce "
        "_segment_reduce unravel_index",
        "Tensor": "as_strided_scatter index_reduce index_reduce_ new_empty_strided nonzero_static renorm renorm_ resize_as_",
    },
    "calque.functional.draws": {"calque": "binomial poisson", "Tensor": "cauchy_ geometric_ log_normal_"},
    "calque.functional.handles": {"calque": "is_same_size", "Tensor": "apply_ dim_order is_same_size map2_"},
    "calque.functional.sharing": {"Tensor": "is_shared share_memory_"},
    "calque.functional.eigen": {"linalg": "eig eigvals"},
    "calque.functional.lu": {
        "calque": "lu lu_solve lu_unpack triangular_solve",
        "Tensor": "lu lu_solve triangular_solve",
        "linalg": "cholesky_ex inv_ex lu lu_factor lu_factor_ex lu_solve solve_ex solve_triangular",
    },
    "calque.functional.ldl": {"linalg": "ldl_factor ldl_factor_ex ldl_solve"},
    "calque.functional.matrices": {
        "calque": "cholesky_inverse cholesky_solve geqrf matrix_exp orgqr ormqr pca_lowrank qr svd svd_lowrank vander",
        "Tensor": "cholesky_inverse cholesky_solve geqrf matrix_exp orgqr ormqr qr svd",
        "linalg": "householder_product matrix_exp tensorinv tensorsolve vander",
    },
    "calque.functional.gamma": {
        "calque": "igamma igammac mvlgamma polygamma",
        "Tensor": "igamma igamma_ igammac igammac_ mvlgamma mvlgamma_ polygamma polygamma_",
    },
    "calque.functional.sparse": {
        "calque": "dsmm hspmm smm sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor spmm sspaddmm",
        "Tensor": "_indices _nnz _values ccol_indices coalesce col_indices crow_indices dense_dim indices is_coalesced row_indices smm sparse_dim "
        "sparse_mask sspaddmm to_dense to_sparse to_sparse_coo to_sparse_csc to_sparse_csr values",
    },
    "calque.functional.spectra": {"calque": "istft stft", "Tensor": "istft stft"},
    "calque.functional.tapers": {"calque": "bartlett_window blackman_window hamming_window hann_window kaiser_window"},
    "calque.nn.functional.alignment": {"nn.functional": "ctc_loss"},
    "calque.nn.functional.native": {
        "calque": "_chunk_cat _convolution _native_batch_norm_legit _softmax_backward_data _unsafe_masked_index "
        "_unsafe_masked_index_put_accumulate constant_pad_nd convolution grid_sampler grid_sampler_2d grid_sampler_3d native_batch_norm "
        "native_channel_shuffle native_group_norm native_layer_norm",
        "nn.functional": "native_channel_shuffle",
    },
    "calque.nn.functional.sampling": {"nn.functional": "affine_grid grid_sample"},
    "calque.nn.functional.unpooling": {
        "nn.functional": "fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d fractional_max_pool3d_with_indices "
        "max_unpool1d max_unpool2d max_unpool3d",
    },
    "calque.nn.functional.volumes": {
        "calque": "conv_tbc conv_transpose3d max_pool3d",
        "nn.functional": "adaptive_avg_pool3d adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d "
        "adaptive_max_pool3d_with_indices avg_pool3d conv_tbc conv_transpose3d lp_pool3d max_pool3d max_pool3d_with_indices",
    },
    "calque.autograd.transform.vmap": {"calque": "vmap"},
    "calque.exported": {"calque": "Dim Exported export load_exported"},
    "calque.exported.onnx.load": {"calque": "load_onnx"},
    "calque.distributed.scaling": {"calque": "plan_scaling"},
}


def resolver(space: dict[str, Any], modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module for names that others of our modules define: it looks once, and leaves what it found in the module."""
    home = {name: module for module, names in modules.items() for name in names.split()}
    place = space["__name__"]
    declared = SPACES.get(place.removeprefix("calque."), {})

    def find(name: str) -> Any:
        module = loaded(home[name]) if name in home else None
        if name in declared:  # by the module that was loaded, or since this one was made
            found = declared[name]
        elif module is not None:
            found = getattr(module, name)
        else:
            raise no_attribute(place, name)
        if isinstance(found, FunctionType):
            found = framed({name: found}, place).get(name, found)
        if name in home:
            space[name] = found
        return found

    find.__dict__["names"] = list(home)
    return find


def namespace(space: dict[str, Any]) -> Callable[[str], Any]:
    """Fill a module with what is declared of it; its `__getattr__` for names that load or are declared later."""
    place = space["__name__"].removeprefix("calque.")
    find = resolver(space, {module: names[place] for module, names in MODULES.items() if place in names})
    space.update(SPACES[place])
    space.update(framed(SPACES[place], space["__name__"]))
    space["__all__"] = sorted({*space.get("__all__", ()), *SPACES[place], *find.__dict__["names"]})
    space["__dir__"] = lambda: sorted({*space, *SPACES[place], *find.__dict__["names"]})
    return find


def loaded(module: str) -> Any:
    """A module, whose methods of `Tensor` users see in frames however it came to be loaded."""
    found = import_module(module)
    methods = {name: vars(Tensor)[name] for name in MODULES.get(module, {}).get("Tensor", "").split()}
    for name, function in framed(methods, "calque.Tensor").items():
        setattr(Tensor, name, function)
    return found


class LaterMethod:
    """What stands for a method until its module is loaded."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        loaded(self.module)
        found = vars(Tensor)[self.name]
        if found is self:
            raise AttributeError(f"'Tensor' object has no attribute {self.name!r}")
        return found.__get__(instance, owner)


for _module, _names in MODULES.items():
    for _name in _names.get("Tensor", "").split():
        setattr(Tensor, _name, LaterMethod(_module, _name))
