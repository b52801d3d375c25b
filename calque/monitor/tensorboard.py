"""TensorBoard event files, written by tensorboardX; names as in `torch.utils.tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calque.base.errors import ArgumentError, DTypeError
from calque.base.extras import need
from calque.base.text import described, shown
from calque.monitor.host import to_host
from calque.monitor.logger import Logger, numbers

_ESTIMATORS = ("auto", "fd", "doane", "scott", "stone", "rice", "sturges", "sqrt")  # of `numpy.histogram_bin_edges`


class SummaryWriter(Logger):
    """Writes event files to `log_dir` (default: a new folder under `runs`) that TensorBoard shows.

    Values may be numbers, NumPy arrays or tensors, which are read (a sync point). Needs the extra `monitor` or `demo`; without it
    the constructor raises MissingExtraError, an ImportError, with the pip line.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        for name, value in (("max_queue", max_queue), ("flush_secs", flush_secs)):  # the client's thread would die of others, unseen
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise DTypeError(f"[SummaryWriter] expected {name} as a number, got {described(value)}")
        module = need("tensorboardX", "tensorboardX", "monitor", "SummaryWriter")
        self._writer = module.SummaryWriter(
            None if log_dir is None else str(log_dir),
            comment=comment,
            purge_step=purge_step,
            max_queue=max_queue,
            flush_secs=flush_secs,
            filename_suffix=filename_suffix,
        )

    @property
    def log_dir(self) -> str:
        """The folder of the event files."""
        return str(self._writer.logdir)

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None, walltime: float | None = None) -> None:
        """One number at a step."""
        self._writer.add_scalar(tag, to_host(scalar_value), global_step, walltime)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """Several curves in one picture."""
        self._writer.add_scalars(main_tag, to_host(tag_scalar_dict), global_step, walltime)

    def add_histogram(
        self, tag: str, values: Any, global_step: int | None = None, bins: str = "tensorflow", walltime: float | None = None
    ) -> None:
        """The distribution of the values of a tensor of any shape."""
        if isinstance(bins, str) and bins not in ("tensorflow", *_ESTIMATORS):
            raise ArgumentError(f"[add_histogram] expected bins as 'tensorflow', numbers or one of {', '.join(_ESTIMATORS)}, got {shown(bins)}")
        self._writer.add_histogram(tag, to_host(values), global_step, bins, walltime)

    def add_image(
        self, tag: str, img_tensor: Any, global_step: int | None = None, walltime: float | None = None, dataformats: str = "CHW"
    ) -> None:
        """One image: floats in 0..1 or uint8, axes as `dataformats` says. Needs pillow."""
        self._writer.add_image(tag, to_host(img_tensor), global_step, walltime, dataformats)

    def add_images(
        self, tag: str, img_tensor: Any, global_step: int | None = None, walltime: float | None = None, dataformats: str = "NCHW"
    ) -> None:
        """A batch of images side by side. Needs pillow."""
        self._writer.add_images(tag, to_host(img_tensor), global_step, walltime, dataformats)

    def add_figure(
        self, tag: str, figure: Any, global_step: int | None = None, close: bool = True, walltime: float | None = None
    ) -> None:
        """A matplotlib figure, or a list of them, which is closed afterwards."""
        if isinstance(figure, (list, tuple)) and not figure:
            raise ArgumentError("[add_figure] expected a figure, or a list of one or more, got an empty one")
        self._writer.add_figure(tag, figure, global_step, close, walltime)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None) -> None:
        """Text in Markdown."""
        self._writer.add_text(tag, text_string, global_step, walltime)

    def add_hparams(self, hparam_dict: dict[str, Any], metric_dict: dict[str, Any], name: str | None = None) -> None:
        """Hyper-parameters and what they led to, for the HPARAMS tab."""
        self._writer.add_hparams(to_host(hparam_dict), to_host(metric_dict), name)

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Keep the figures of a step, a curve each; see `Logger.log`."""
        for name, value in numbers("SummaryWriter", figures, step).items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write everything to the disk now."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
