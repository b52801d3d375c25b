"""Vision: models, transformations of images, data sets on local files, operations on boxes. Programs see it as `torchvision`, too."""

from calque.vision import datasets, io, models, ops, transforms, tv_tensors, utils

__all__ = ["datasets", "io", "models", "ops", "transforms", "tv_tensors", "utils"]
