"""`calque.save` and `calque.load`."""

from __future__ import annotations

import io
import os
from functools import partial
from importlib import import_module
from typing import Any, BinaryIO

from calque.base.device import CPU, Device
from calque.base.errors import ArgumentError, DeviceError
from calque.base.text import shown, type_name
from calque.functional.interop import StorageView
from calque.io.adapter import leaf_of, value_of
from calque.io.layout import plan
from calque.io.read import read_file, read_stream
from calque.io.source import Source
from calque.io.structure import Leaf, flatten
from calque.io.write import write_file, write_stream, write_whole
from calque.tensor import Tensor


def save(
    obj: object,
    f: str | os.PathLike[str] | BinaryIO,
    pickle_module: Any = None,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    *,
    format: str = "safetensors",
    shard_size: int = 5 * 2**30,
) -> None:
    """Write tensors and the nested dicts, lists and tuples around them to one file.

    `format`: "safetensors", the default, which any safetensors reader opens and in which every tensor and the header carry a CRC-32; or "pt", a zip
    archive that `torch.load(..., weights_only=True)` reads (values of NumPy in it need `weights_only=False` there).

    A path that ends in .index.json, such as "model.safetensors.index.json", becomes the index of several files beside it, as the Hugging Face Hub
    has them. `shard_size`: the bytes of each at most, unless one tensor takes more. The index is written last, in one step: until then the checkpoint
    before it is whole.

    PyTorch's arguments in between choose how it pickles; here nothing is pickled, and they change nothing.

    Accepted are tensors, NumPy arrays and scalars, numbers (also NaN and infinities), strings, bytes, None, and lists, tuples,
    dicts and OrderedDicts of them; keys of dicts may be strings, numbers, None or tuples of them. So are sets, dtypes, sizes, devices, complex
    numbers and argparse.Namespace; in the default format also paths, Counters and defaultdicts.

    A file appears under its name complete or not at all, with the permissions, owner and group of the file it replaces; a symbolic link is followed;
    other hard links keep the previous content. A stream is written to from its position.

    Tensors keep dtype, shape, values and requires_grad; they lose their device and the graph behind them. Two names for the very same tensor stay
    one tensor in memory. In the default format they lose their strides, and tensors that overlap in another way become separate ones; with "pt"
    parameters stay parameters, and whole storages are written: what shared one shares it again.

    Raises TypeError for an object that cannot be stored (naming the path to it), ValueError for one that contains itself and
    CheckpointError, an OSError, when the file cannot be written; the previous file is then unchanged.

    >>> calque.save({"epoch": 3, "weights": calque.ones(2)}, "example.safetensors")
    >>> calque.load("example.safetensors")
    {'epoch': 3, 'weights': tensor([1., 1.])}
    """
    if not isinstance(f, str | os.PathLike) and not callable(getattr(f, "write", None)):
        raise TypeError(f"[save] expected a path or a binary file as second argument, got {type_name(f)}")
    _check_stream("save", f, "writable", "wb")
    if format == "pt":
        save_by_name(obj, f, False)
        return
    if format != "safetensors":
        raise ArgumentError(f"[save] expected format='safetensors' or 'pt', got {shown(format)}")
    flat = flatten(obj, leaf_of)
    if isinstance(f, str | os.PathLike) and str(os.fspath(f)).endswith(".index.json"):
        import_module("calque.io.shards").write_shards(os.fspath(f), flat, shard_size)
        return
    header = plan(flat.arrays, flat.structure)
    if isinstance(f, str | os.PathLike):
        write_file(os.fspath(f), header, flat.arrays)
    else:
        write_stream(f, header, flat.arrays)


def save_by_name(obj: object, f: Any, objects: bool = True) -> None:
    """Write a `.pt` file. `objects`: those of any class, by its name, as PyTorch does; `load` refuses such a name, PyTorch runs it."""
    file = import_module("calque.io.torch_write").TorchFile(obj, objects=objects)
    if isinstance(f, str | os.PathLike):
        write_whole(os.fspath(f), file.size, lambda raw: file.write(raw.write))
    else:
        file.write(f.write)


def _check_stream(op: str, f: Any, able: str, mode: str) -> None:
    """Raise for a stream that takes text, or that was opened for something else."""
    if isinstance(f, str | os.PathLike):
        return
    if isinstance(f, io.TextIOBase) or "b" not in str(getattr(f, "mode", "b")) and isinstance(getattr(f, "mode", None), str):
        raise TypeError(f"[{op}] expected a binary file, got {type_name(f)}, which holds text; open it with open(path, {mode!r})")
    if getattr(f, "closed", False) is True:
        raise ValueError(f"[{op}] expected an open file, got {type_name(f)}, which is closed")
    asked = getattr(f, able, None)
    if callable(asked) and not asked():
        raise TypeError(f"[{op}] expected a {able} file, got {type_name(f)}, which is not; open it with open(path, {mode!r})")


def load(
    f: str | os.PathLike[str] | BinaryIO,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = True,
    mmap: bool | None = None,
    encoding: str = "utf-8",
) -> Any:
    """Read what `save` wrote, a safetensors file of another program as a dict of tensors, or a `.pt` file of PyTorch; an index of shards
    (`model.safetensors.index.json`) as the dict of all their tensors.

    Nothing in a file is ever executed: of a `.pt` file (zip, or one of PyTorch's older forms) tensors, parameters, state dicts, optimizer states,
    numbers, texts, sets, NumPy arrays, dates and `argparse.Namespace` are read, and whatever else its pickle names is refused by that name. So
    `weights_only=False` changes nothing: it is accepted where the file holds nothing else.

    `map_location`: where tensors go, as a device, a dict from the names of devices in the file to others, or a function of storage and name; default:
    where they were (a `.pt` file says so, others mean the CPU), which for a device that does not exist raises DeviceError. `mmap=True` maps the
    storages of a zip file into memory instead of reading them (their checksums are then not looked at); changes of the tensors do not reach the
    file. `encoding`: of strings that Python 2 wrote.
    `pickle_module` changes nothing: no module of the caller's reads a file.

    Raises FileNotFoundError (naming the newest good checkpoint beside it), UnsafeFileError for what is no data (with how to convert it), and
    CheckpointError for a damaged, truncated or unreadable file (naming the damaged tensor).

    >>> calque.save(calque.nn.Linear(2, 1).state_dict(), "example.pt", format="pt")
    >>> list(calque.load("example.pt", map_location="cpu", weights_only=True))
    ['weight', 'bias']
    """
    place = partial(placed, map_location=map_location)
    make, foreign = partial(_made, place=place), partial(_foreign, place=place, mmap=bool(mmap), encoding=encoding)
    if isinstance(f, str | os.PathLike):
        path = os.fspath(f)
        if isinstance(path, str) and path.endswith(".index.json") and os.path.isfile(path):
            return import_module("calque.io.shards").read_shards(
                path, lambda part: read_file(part, make, foreign), lambda part: read_file(part, lambda leaf: leaf.array), make
            )
        return read_file(path, make, foreign)
    if not callable(getattr(f, "read", None)):
        raise TypeError(f"[load] expected a path or a binary file, got {type_name(f)}")
    _check_stream("load", f, "readable", "rb")
    return read_stream(f, make, foreign)


def _made(leaf: Leaf, place: Any) -> object:
    """What a stored array becomes, where it goes."""
    value = value_of(leaf)
    if not isinstance(value, Tensor):
        return value
    moved: Any = place(value, "cpu")
    return moved if moved is value else moved.detach().requires_grad_(leaf.requires_grad)


def _foreign(source: Source, path: str, place: Any, mmap: bool, encoding: str) -> tuple[Any] | None:
    """The value of a file that PyTorch wrote, or None for another one. Its reader loads when the first such file comes."""
    files = import_module("calque.io.torch_files")
    if not files.kind_of(source):
        return None
    if mmap and source.descriptor is None:
        raise ArgumentError("[load] expected a path for mmap=True, got an open file; give the name of the file")
    return (files.read_torch(source, path, place, partial(files.mapped_file, source) if mmap else None, encoding),)


def placed(tensor: Any, location: str, map_location: Any) -> Any:
    """A tensor that was on the device called `location`, where `map_location` says."""
    if map_location is None:
        target: Any = location
    elif isinstance(map_location, dict):
        target = map_location.get(location, location)
    elif callable(map_location) and not isinstance(map_location, Device):
        chosen = map_location(StorageView(tensor), location)
        target = location if chosen is None else getattr(chosen, "device", CPU)
    else:
        target = map_location
    if target is CPU or target == "cpu":
        return tensor
    try:
        return tensor.to(target)
    except DeviceError as error:
        if target is not location:
            raise
        raise DeviceError(
            f"[load] expected tensors of a device that exists, got some of {location!r}; load them with map_location='cpu' ({error})"
        ) from None
