"""Where PyTorch keeps the functions that put the samples of a batch together."""

import re

from calque.data.collate import OF_OTHERS
from calque.utils.data import default_collate, default_convert

__all__ = ["default_collate", "default_collate_err_msg_format", "default_collate_fn_map", "default_convert", "np_str_obj_array_pattern"]

default_collate_fn_map = OF_OTHERS  # programs add classes of their own
np_str_obj_array_pattern = re.compile(r"[SaUO]")  # type codes of NumPy's arrays of words and objects, which stay what they are
default_collate_err_msg_format = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"
