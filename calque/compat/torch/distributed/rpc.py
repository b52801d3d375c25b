"""`torch.distributed.rpc`: calls in other processes. There are none; the names stand in annotations."""

from calque.compat.refused import no, refused, refused_class

__all__ = [
    "PyRRef", "RRef", "RpcBackendOptions", "TensorPipeRpcBackendOptions", "WorkerInfo", "get_worker_info", "init_rpc", "is_available", "remote",
    "rpc_async", "rpc_sync", "shutdown",
]  # fmt: skip

is_available = no
PyRRef, RRef, RpcBackendOptions, TensorPipeRpcBackendOptions, WorkerInfo = (refused_class(f"torch.distributed.rpc.{name}") for name in __all__[:5])
get_worker_info, init_rpc, remote, rpc_async, rpc_sync, shutdown = (
    refused(f"torch.distributed.rpc.{name}") for name in ("get_worker_info", "init_rpc", "remote", "rpc_async", "rpc_sync", "shutdown")
)
