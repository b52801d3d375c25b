"""`torch.cuda.nvtx`: there is no profiler of NVIDIA's to mark ranges for, as in PyTorch without CUDA."""

from calque.compat.refused import without_device

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]

mark, range, range_end, range_pop, range_push, range_start = (
    without_device(f"torch.cuda.nvtx.{name}", "CUDA") for name in ("mark", "range", "range_end", "range_pop", "range_push", "range_start")
)
