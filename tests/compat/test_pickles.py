"""Python's own pickles of tensors that PyTorch has written are read as torch: libraries keep tables and caches in such files."""

from __future__ import annotations

import base64
import io
import pickle
import subprocess
import sys
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

import calque
from calque.base.errors import CheckpointError
from calque.compat.face import face

# Of PyTorch 2.13: zlib.compress(pickle.dumps({"a": torch.arange(6.0).reshape(2, 3).t(), "p": torch.nn.Parameter(torch.ones(2)),
# "h": torch.full((2,), 0.5, dtype=torch.bfloat16), "i": torch.tensor([1, 2])[1:], "t": a tensor of ones with the attribute note = "hi",
# "c": torch.tensor([1 + 2j]).conj(), "b": torch.tensor([True, False]), "g": torch.ones(1, requires_grad=True)}), 9)
WRITTEN = """
eNrVlk1v0zAYx+MkbaWOwTTEgRvHcqna9GXdqVMHu4TXwSEXFKWpaTKlcZw4E0OqlEtHh3LD3Dhw5KvxEZAmwZOXjrYiU4/Uiu3Y+cd2fnmex47kr0+rQpqmvBYjg8d3GPFNq66HzHYC
Hu/rPh6GtjPSGXYD4uvnCv8C0t1MFkBljDGP93SHGCP9vU8m+vCC4QBUg/tIECLxc9W5/nby69HZj1cP65H4/KcE5ZQKNW0P5vV8wohJHP0c+4FNXIpAoO3CE8dmzME6dke24VJxriUr
ZRce1gP7Iw6oNKVyTStBZ2ARn9GSKmoStGyX0bIqa3IyBnHHtKLKYQhz1rRKIs6WTAUz/YTqCSycvck6qxRpd0Fz2OodKN32YVfpdZoKzcY1vZBKavkFo/JrGO0dFf6lRUa9LCynqA/F
EVyQI8jfj/iMn3JVUCVVvOQqUqVLfhXvAAMHmwwQAPadl/4I+3j0xDYZkHx8yhm8EyOPW+LSP/EM35hghn3QWHLNqgykbUfeOmgo7cYKcrEIea4F5OIK7qi/QCzOAPCMX1n3coTz9O5T
CtPKmYnbwGyQQmt2i7A1e41ue0NsmXYZW18oRhYjOwdV3QZQz0BS6M7NdqO3GaRcuwQJ5fWinQFDCax1YIwvAmQeNnn84MZp0xiZfncWSy05LqViHpffZuqkd9t9+aDVbbQSlBvw/qvd
3JenPJZdwmDvES2bBxl4c5ss9ZhMPAd/uH0DUtajISq2WCWPhmht81kQXLHUhJ9J3DM+z9kNM3bH1/9/LCTEKTK5ThNuNjS5TLvi4rdEwXHO5/d2+2RHWT/SoGJASn6kWbaoNWua3yAK
638AbHHqDA==
"""
CODE = """
import base64, pickle, sys, zlib
import calque
calque.install_as_torch(children=False)
import torch
found = pickle.loads(zlib.decompress(base64.b64decode(sys.stdin.read())))
assert list(found) == ["a", "p", "h", "i", "t", "c", "b", "g"]
a, p = found["a"], found["p"]
assert a.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] and a.stride() == (1, 3) and not a.requires_grad
assert type(p) is torch.nn.Parameter and p.requires_grad and p.tolist() == [1.0, 1.0]
assert found["h"].dtype is torch.bfloat16 and found["h"].tolist() == [0.5, 0.5]
assert found["i"].tolist() == [2] and found["i"].dtype is torch.int64 and found["b"].tolist() == [True, False]
assert found["t"].note == "hi" and found["c"].tolist() == [1 - 2j]
assert found["g"].requires_grad and found["g"].is_leaf
a[0, 0] = 7
assert a.tolist()[0][0] == 7
"""


def test_pickles_of_pytorch_are_read() -> None:
    subprocess.run([sys.executable, "-c", CODE], input=WRITTEN, text=True, check=True)


def test_what_is_no_storage_is_refused(tmp_path: object) -> None:
    load = face("torch.storage")._load_from_bytes
    for data in (b"text", None):
        if data is None:
            calque.save({"a": calque.ones(2)}, f"{tmp_path}/file.pt", format="pt")
            data = Path(f"{tmp_path}/file.pt").read_bytes()
        with pytest.raises(CheckpointError, match=r"\[load\] expected a storage in the form that pickles of tensors hold, got .* of something else"):
            load(data)


class Parts(pickle.Unpickler):
    """Leaves the bytes of storages as they are."""

    storages: list[bytes] = []

    def find_class(self, module: str, name: str) -> Any:
        return self.storages.append if name == "_load_from_bytes" else lambda *_: OrderedDict()


def test_damaged_storages_are_refused() -> None:
    del Parts.storages[:]
    Parts(io.BytesIO(zlib.decompress(base64.b64decode(WRITTEN)))).load()
    load, data = face("torch.storage")._load_from_bytes, Parts.storages[0]
    assert load(data).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    for cut in (len(data) - 1, len(data) // 2, 40):
        with pytest.raises(CheckpointError):
            load(data[:cut])


def test_storages_are_made_tensors_of() -> None:
    utils, memory = face("torch._utils"), calque.arange(6.0)
    made = utils._rebuild_tensor_v2(memory.storage(), 1, (2, 2), (3, 1), True, None)
    assert made.tolist() == [[1.0, 2.0], [4.0, 5.0]] and made.requires_grad and made.data_ptr() == memory.data_ptr() + 4
    assert utils._rebuild_tensor_v2(memory.storage(), 0, (1,), (1,), False, None, {"neg": True}).tolist() == [0.0]
    kept = utils._rebuild_parameter_with_state(calque.ones(1), False, None, {"note": 1})
    assert kept.note == 1 and not kept.requires_grad and type(kept) is calque.nn.Parameter
