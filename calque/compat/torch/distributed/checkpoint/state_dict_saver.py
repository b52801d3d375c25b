"""`torch.distributed.checkpoint.state_dict_saver`."""

from calque.compat.torch.distributed.checkpoint import async_save, save, save_state_dict

__all__ = ["async_save", "save", "save_state_dict"]
