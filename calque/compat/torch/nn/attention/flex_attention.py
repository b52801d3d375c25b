"""`torch.nn.attention.flex_attention`: refused by name."""

from calque.compat.refused import refused, refused_class

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "FlexKernelOptions", "_DEFAULT_SPARSE_BLOCK_SIZE", "and_masks", "create_block_mask", "create_mask",
    "flex_attention", "noop_mask", "or_masks",
]  # fmt: skip

_DEFAULT_SPARSE_BLOCK_SIZE = 128
AuxOutput, AuxRequest, BlockMask, FlexKernelOptions = (
    refused_class(f"torch.nn.attention.flex_attention.{name}") for name in ("AuxOutput", "AuxRequest", "BlockMask", "FlexKernelOptions")
)
and_masks, create_block_mask, create_mask, flex_attention, noop_mask, or_masks = (
    refused(f"torch.nn.attention.flex_attention.{name}")
    for name in ("and_masks", "create_block_mask", "create_mask", "flex_attention", "noop_mask", "or_masks")
)
