"""SummaryWriter: what is written can be read back by TensorBoard's own record format."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import ArgumentError, DTypeError, MissingExtraError
from calque.monitor import SummaryWriter


def events(folder: Path) -> list[Any]:
    """All events of a folder: records are length, CRC of it, content, CRC of it."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = []
    for path in sorted(folder.rglob("events.*")):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            found.append(event_pb2.Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    return found


def test_scalars_and_histograms(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with SummaryWriter(str(tmp_path)) as writer:
        assert writer.log_dir == str(tmp_path)
        writer.add_scalar("loss", 0.5, 1)
        writer.add_scalar("loss", calque.tensor(0.25), 2)
        writer.add_scalar("half", calque.tensor(1.5, dtype=calque.bfloat16), 3)
        writer.add_histogram("weights", calque.arange(10), 4)
        writer.add_text("note", "hello", 5)
        writer.flush()
    values = {(e.step, v.tag): v for e in events(tmp_path) for v in e.summary.value}
    assert values[1, "loss"].simple_value == 0.5 and values[2, "loss"].simple_value == 0.25
    assert values[3, "half"].simple_value == 1.5 and values[4, "weights"].histo.num == 10


def test_images(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    pytest.importorskip("PIL")
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_image("image", calque.zeros(3, 4, 6), 1)
    (image,) = (v.image for e in events(tmp_path) for v in e.summary.value)
    assert (image.height, image.width) == (4, 6)


def test_groups(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalars("loss", {"train": 1.0, "test": calque.tensor(2.0)}, 1)
        writer.add_hparams({"lr": 0.1}, {"accuracy": np.float32(0.9)}, "run")
    assert {v.simple_value for e in events(tmp_path) for v in e.summary.value} >= {1.0, 2.0}


def test_the_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['tensorboardX'] = None\n"
        "from calque.monitor import SummaryWriter\n"
        "try: SummaryWriter('x')\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith(MissingExtraError.__name__)
    assert "[SummaryWriter] needs tensorboardX, which is not installed; run: pip install tensorboardX (or," in run.stdout


def test_it_is_not_imported_before_it_is_used() -> None:
    code = "import sys, calque, calque.monitor; print('tensorboardX' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize("name", ["max_queue", "flush_secs"])
def test_numbers_that_are_none_are_refused(name: str, tmp_path: Path) -> None:
    """The client's thread, which writes, ended without a word."""
    with pytest.raises(DTypeError, match=f"expected {name} as a number"):
        SummaryWriter(str(tmp_path), **{name: {}})


def test_lists_and_bins_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    with pytest.raises(ArgumentError, match="expected a figure, or a list of one or more"):
        writer.add_figure("a", [])
    with pytest.raises(ArgumentError, match="expected bins as 'tensorflow', numbers or one of auto"):
        writer.add_histogram("a", calque.ones(3), bins="bilinear")
    writer.close()
