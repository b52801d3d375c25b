"""`torch.utils.model_zoo`: the older names of two functions of `torch.hub`."""

from calque.hub import load_state_dict_from_url

__all__ = ["load_url"]

load_url = load_state_dict_from_url
