"""Modules of PyTorch's that have nothing of their own here: each name in them is one of another module, or is refused. What has more is a file in
`calque/compat/torch/`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from types import ModuleType
from typing import Any

from calque.compat.refused import absent, refused, refused_class

__all__ = ["HANDED_ON", "OURS", "own_module"]

OURS = "calque.compat."  # in front of `torch`: the folder of names that only `torch` has

# By module: where names are from, and which; `name=other` where it is called otherwise there, `*` for all that it lists. A source that begins with
# `torch.` is one of these modules, `refused` is none, and `absent` names the device whose module it is.
HANDED_ON: dict[str, tuple[str, ...]] = {
    "torch._compile": ("torch.compiler: _disable_dynamo=disable",),
    "torch._subclasses": (),
    "torch._subclasses.fake_tensor": (
        "refused: FakeTensor FakeTensorMode", "calque.compat.refused: is_fake=no", "contextlib: unset_fake_temporarily=nullcontext",
    ),
    "torch._tensor_str": ("calque.functional.printing: PRINT_OPTS=OPTIONS _add_suffixes=closed _tensor_str=contents",),
    "torch.amp": (),
    "torch.amp.grad_scaler": ("calque.amp: GradScaler OptState",),
    "torch.ao.quantization.fake_quantize": ("torch.ao.quantization: FakeQuantize FakeQuantizeBase disable_observer enable_observer",),
    "torch.ao.quantization.observer": (
        "torch.ao.quantization: HistogramObserver MinMaxObserver MovingAverageMinMaxObserver ObserverBase PerChannelMinMaxObserver",
    ),
    "torch.ao.quantization.qconfig": ("torch.ao.quantization: QConfig default_qconfig get_default_qat_qconfig get_default_qconfig",),
    "torch.distributed._composable": (),
    "torch.distributed._composable.fsdp": ("torch.distributed.fsdp: FSDPModule MixedPrecisionPolicy OffloadPolicy fully_shard",),
    "torch.distributed._functional_collectives": ("refused: all_to_all_single_autograd wait_tensor",),
    "torch.distributed.algorithms": (),
    "torch.distributed.algorithms.ddp_comm_hooks": (),
    "torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks": ("calque.distributed.hooks: noop_hook",),
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks": (
        "calque.distributed.hooks: allreduce_hook bf16_compress_hook bf16_compress_wrapper fp16_compress_hook fp16_compress_wrapper",
    ),
    "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook": ("refused: PostLocalSGDState post_localSGD_hook",),
    "torch.distributed.algorithms.join": ("calque.distributed.join: Join JoinHook Joinable",),
    "torch.distributed.algorithms.model_averaging": (),
    "torch.distributed.algorithms.model_averaging.averagers": ("refused: ModelAverager PeriodicModelAverager",),
    "torch.distributed.checkpoint.filesystem": ("torch.distributed.checkpoint: FileSystemReader FileSystemWriter",),
    "torch.distributed.checkpoint.state_dict_loader": ("torch.distributed.checkpoint: load load_state_dict",),
    "torch.distributed.checkpoint.state_dict_saver": ("torch.distributed.checkpoint: async_save save save_state_dict",),
    "torch.distributed.device_mesh": ("calque.distributed.mesh: DeviceMesh init_device_mesh",),
    "torch.distributed.nn": (
        "calque.distributed.functional: all_gather all_reduce all_to_all all_to_all_single broadcast gather reduce reduce_scatter scatter",
    ),
    "torch.distributed.nn.functional": (
        "calque.distributed.functional: all_gather all_reduce all_to_all all_to_all_single broadcast gather reduce reduce_scatter scatter",
    ),
    "torch.distributed.optim": ("calque.distributed.zero: ZeroRedundancyOptimizer",),
    "torch.distributed.pipelining": (
        "refused: Pipe PipelineStage Schedule1F1B ScheduleGPipe ScheduleInterleaved1F1B SplitPoint build_stage pipe_split pipeline",
    ),
    "torch.distributed.rpc": (
        "refused: PyRRef RRef RpcBackendOptions TensorPipeRpcBackendOptions WorkerInfo get_worker_info init_rpc",
        "calque.compat.refused: is_available=no", "refused: remote rpc_async rpc_sync shutdown",
    ),
    "torch.distributed.tensor._utils": ("refused: compute_local_shape_and_global_offset",),
    "torch.distributed.tensor.parallel": ("refused: ColwiseParallel RowwiseParallel parallelize_module",),
    "torch.distributed.tensor.placement_types": ("torch.distributed.tensor: Partial Placement Replicate Shard", "refused: _StridedShard"),
    "torch.distributions.constraints": (
        "calque.distributions.constraints: "
        "_Boolean _Cat _CorrCholesky _Dependent _DependentProperty _GreaterThan _GreaterThanEq _HalfOpenInterval _IndependentConstraint "
        "_IntegerGreaterThan _IntegerInterval _Interval _LessThan _LowerCholesky _LowerTriangular _Multinomial _OneHot _PositiveDefinite "
        "_PositiveSemidefinite _Real _Simplex _Square _Stack _Symmetric",
    ),
    "torch.distributions.kl": ("calque.distributions.kl: _KL_MEMOIZE=_FOUND _KL_REGISTRY=_REGISTRY",),
    "torch.distributions.multivariate_normal": (
        "calque.distributions.multivariate_normal: _batch_mahalanobis=batch_mahalanobis _batch_mv=batch_mv",
        "calque.distributions.multivariate_normal: _precision_to_scale_tril=precision_to_scale_tril",
    ),
    "torch.fx.experimental.proxy_tensor": ("calque.compat.refused: get_proxy_mode=nothing", "refused: make_fx"),
    "torch.jit.annotations": (
        "typing: Any Dict List Optional Tuple Union",
        "torch._jit_internal: BroadcastingList1 BroadcastingList2 BroadcastingList3",
    ),
    "torch.masked": ("calque.compat.refused: is_masked_tensor=no", "refused: MaskedTensor as_masked_tensor masked_tensor"),
    "torch.mps": ("absent: MPS",),
    "torch.mtia": ("absent: MTIA",),
    "torch.nn.modules.batchnorm": ("calque.nn.modules.norm: _BatchNorm _NormBase=_Running",),
    "torch.nn.modules.conv": ("calque.nn.modules.conv: _ConvNd=_Conv _ConvTransposeNd=_Transposed",),
    "torch.nn.modules.dropout": ("calque.nn.modules.dropout: _DropoutNd=_Dropout",),
    "torch.nn.modules.instancenorm": ("calque.nn.modules.norm: _InstanceNorm",),
    "torch.nn.modules.pooling": (
        "calque.nn.modules.pooling: _AdaptiveAvgPoolNd=_Adaptive _AdaptiveMaxPoolNd=_AdaptiveMax _LPPoolNd=_LPPool _MaxPoolNd=_MaxPool",
    ),
    "torch.nn.parallel": ("calque.distributed.ddp: DistributedDataParallel",),
    "torch.nn.parallel.distributed": ("calque.distributed.ddp: DistributedDataParallel",),
    "torch.optim.lr_scheduler": (
        "calque.optim.schedule: EPOCH_DEPRECATION_WARNING=STEP_WITH_EPOCH", "calque.optim.lr_scheduler: _LRScheduler=LRScheduler",
    ),
    "torch.quantization": ("torch.ao.quantization: *",),
    "torch.quantization.fake_quantize": ("torch.ao.quantization.fake_quantize: *",),
    "torch.quantization.observer": ("torch.ao.quantization.observer: *",),
    "torch.quantization.qconfig": ("torch.ao.quantization.qconfig: *",),
    "torch.utils.data.distributed": ("calque.distributed.sampler: DistributedSampler",),
    "torch.utils.model_zoo": ("calque.hub: load_url=load_state_dict_from_url",),
    "torch.utils.tensorboard": (),
    "torch.utils.tensorboard.writer": ("calque.monitor: SummaryWriter",),
    "torch.xpu": ("absent: XPU",),
} | {
    f"torch.optim.{name}": (f"torch.optim._functional: {name}",)
    for name in ("adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd")
}


class HandedOn(ModuleType):
    """A module of the table. What it names is looked up when it is asked for."""

    def __init__(self, path: str) -> None:
        super().__init__(OURS + path)
        self._from: dict[str, tuple[ModuleType | None, str]] = {}
        for row in HANDED_ON[path]:
            source, _, names = row.partition(": ")
            if source == "absent":
                self.__dict__.update(found := absent(path, names))
                self._from |= {name: (None, name) for name in found}
                continue
            module = None if source == "refused" else own_module(source) or importlib.import_module(source)
            for name in getattr(module, "__all__", ()) if names == "*" else names.split():
                here, _, there = name.partition("=")
                self._from[here] = module, there or here
        self.__all__ = list(self._from)
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name not in self._from:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
        module, there = self._from[name]
        found = getattr(module, there) if module is not None else _refused(f"{self._path}.{name}")
        self.__dict__[name] = found
        return found


def _refused(name: str) -> Any:
    """A class or a function, as its name says."""
    return refused_class(name) if name.rpartition(".")[2].lstrip("_")[0].isupper() else refused(name)


_handed_on = cache(HandedOn)


def own_module(path: str) -> ModuleType | None:
    """The module for a dotted path such as `torch.utils.hooks`, in the table or in the folder, if there is one."""
    if path in HANDED_ON:
        return _handed_on(path)
    name = OURS + path
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    try:
        there = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the folder above is not there
        there = False
    return importlib.import_module(name) if there else None
