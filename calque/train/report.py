"""The picture at the end of a run: loss curves, confusion matrix, misclassified digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calque.base.extras import need


def confusion_matrix(labels: Any, predictions: Any, classes: int) -> Any:
    """counts[true, predicted], shape (classes, classes)."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, predictions), 1)
    return counts


def draw_report(path: Path, history: list[dict[str, float]], labels: Any, predictions: Any, images: Any, accuracy: float) -> None:
    """Write one PNG. history: one dict per epoch with loss, val_loss, val_accuracy; images (N, 8, 8)."""
    matplotlib = need("matplotlib", "matplotlib", "demo", "train digits")
    matplotlib.use("Agg")
    pyplot = need("matplotlib.pyplot", "matplotlib", "demo", "train digits")
    figure = pyplot.figure(figsize=(13, 7.5), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[2.2, 1])
    left, right = upper.subplots(1, 2, width_ratios=[1.35, 1])
    _curves(left, history)
    _matrix(right, confusion_matrix(labels, predictions, 10))
    _mistakes(lower, labels, predictions, images)
    figure.suptitle(f"Handwritten digits: {accuracy:.2%} of {len(labels)} test images right", fontsize=14)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _curves(axis: Any, history: list[dict[str, float]]) -> None:
    epochs = np.arange(1, len(history) + 1)
    marker = "." if len(epochs) < 10 else ""  # a line through one point would not be seen
    axis.plot(epochs, [h["loss"] for h in history], marker=marker, label="training loss (augmented, smoothed labels)", color="#1f77b4")
    axis.plot(epochs, [h["val_loss"] for h in history], marker=marker, label="validation loss", color="#d62728")
    axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # there is no epoch 1.5
    axis.set_yscale("log")
    axis.set_xlabel("epoch")
    axis.set_ylabel("cross entropy (log scale)")
    second, accuracies = axis.twinx(), [100 * h["val_accuracy"] for h in history]
    second.plot(epochs, accuracies, marker=marker, label="validation accuracy", color="#2ca02c", linestyle=":")
    second.set_ylabel("accuracy (%)")
    second.set_ylim(min(80, *accuracies) - 0.5, 100.5)
    lines = [*axis.get_lines(), *second.get_lines()]
    axis.legend(lines, [line.get_label() for line in lines], loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)
    axis.grid(alpha=0.3)


def _matrix(axis: Any, counts: Any) -> None:
    axis.imshow(counts, cmap="Blues", norm="linear")
    for (row, column), value in np.ndenumerate(counts):
        if value:
            axis.text(column, row, str(value), ha="center", va="center", color="white" if value > counts.max() / 2 else "black", fontsize=8)
    axis.set_xticks(range(len(counts)))
    axis.set_yticks(range(len(counts)))
    axis.set_xlabel("predicted digit")
    axis.set_ylabel("true digit")
    axis.set_title("Confusion matrix")


def _mistakes(figure: Any, labels: Any, predictions: Any, images: Any) -> None:
    wrong = np.flatnonzero(labels != predictions)[:12]
    figure.suptitle(f"Misclassified digits ({int((labels != predictions).sum())})" if len(wrong) else "No digit was misclassified")
    if not len(wrong):
        return
    for axis, row in zip(np.atleast_1d(figure.subplots(1, max(len(wrong), 8))), [*wrong, *[None] * 8], strict=False):
        axis.axis("off")
        if row is not None:
            axis.imshow(images[row], cmap="gray_r")
            axis.set_title(f"{labels[row]} read as {predictions[row]}", fontsize=9)
