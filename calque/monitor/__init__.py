"""Watching a training run: progress bar, averages that do not wait for the device, tables, TensorBoard."""

import sys

from calque.functional.blame import publish as _publish
from calque.monitor.meter import AverageMeter, Meter
from calque.monitor.progress import ProgressBar, progress
from calque.monitor.table import format_table, print_table, table_row
from calque.monitor.tensorboard import SummaryWriter

__all__ = ["AverageMeter", "Meter", "ProgressBar", "SummaryWriter", "format_table", "print_table", "progress", "table_row"]

_publish(sys.modules[__name__])
