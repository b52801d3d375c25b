"""Watching a training run: progress bar, averages that do not wait for the device, tables, and what keeps figures: CSV, TensorBoard, W&B, MLflow."""

import sys

from calque.functional.blame import publish as _publish
from calque.monitor.csv_logger import CSVLogger
from calque.monitor.logger import Logger
from calque.monitor.meter import AverageMeter, Meter
from calque.monitor.progress import ProgressBar, progress
from calque.monitor.table import format_table, print_table, table_row
from calque.monitor.tensorboard import SummaryWriter
from calque.monitor.trackers import MLflowLogger, WandbLogger

__all__ = [
    "AverageMeter", "CSVLogger", "Logger", "MLflowLogger", "Meter", "ProgressBar", "SummaryWriter", "WandbLogger", "format_table", "print_table",
    "progress", "table_row",
]  # fmt: skip

_publish(sys.modules[__name__])
