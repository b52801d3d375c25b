"""Saving and loading: one safetensors file per checkpoint, checksummed, written atomically, never executing code.

`structure` turns nested Python values into JSON plus arrays (`rich`: those beyond JSON's); `layout` is the byte format, `bounds` what reading it may
take; `write` and `read` are the only two modules that touch the file system; `checkpoint` adds tensors and is what users call as `calque.save` and
`calque.load`; `shards` writes and reads what is spread over several files; `fetch` gets files from elsewhere, and checks them.

PyTorch's `.pt` files: `torch_files` knows their three layouts (`archive`: zip), `unpickle` is a machine for pickles that can only build data,
`allowed` and `torch_tensors` are what a pickle may name; `pickle_text` and `torch_write` write them. They load when the first such file comes.
"""

from calque.io.checkpoint import load, save

__all__ = ["load", "save"]
