"""`torch.jit.annotations`: names of types."""

from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: UP035 - these are the names that are asked for

from calque.compat.torch._jit_internal import BroadcastingList1, BroadcastingList2, BroadcastingList3

__all__ = ["Any", "BroadcastingList1", "BroadcastingList2", "BroadcastingList3", "Dict", "List", "Optional", "Tuple", "Union"]
