"""GoogLeNet and Inception v3, with torchvision's names and state dicts. Sources: Szegedy et al. 2015, "Going Deeper with Convolutions", and 2016,
"Rethinking the Inception Architecture for Computer Vision"."""

from __future__ import annotations

from typing import Any, NamedTuple

from calque import functional as T
from calque import nn
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.weights import maker


class GoogLeNetOutputs(NamedTuple):
    """What `GoogLeNet` gives in training."""

    logits: Tensor
    aux_logits2: Tensor | None
    aux_logits1: Tensor | None


class InceptionOutputs(NamedTuple):
    """What `Inception3` gives in training."""

    logits: Tensor
    aux_logits: Tensor | None


class BasicConv2d(nn.Module):
    """A convolution, batch norm and ReLU."""

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(in_channels, out_channels, bias=False, **options), nn.BatchNorm2d(out_channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """The activations."""
        return F.relu(self.bn(self.conv(x)), inplace=True)


def _from_imagenet(x: Tensor) -> Tensor:
    """Colours that were normalised as ImageNet's are, from -1 to 1, as the original weights want them."""
    scale, shift = (T.tensor(v).to(x.dtype).reshape(3, 1, 1) for v in ([0.458, 0.448, 0.45], [-0.03, -0.088, -0.188]))
    return x * scale + shift


def _initialise(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            nn.init.trunc_normal_(m.weight, 0.0, 0.01 if isinstance(model, GoogLeNet) else 0.1, -2, 2)


class _Inception(nn.Module):
    """Four branches side by side: (N, C, H, W) -> (N, channels of all, H, W)."""

    def __init__(self, before: int, one: int, narrow3: int, three: int, narrow5: int, five: int, pooled: int) -> None:
        super().__init__()
        self.branch1 = BasicConv2d(before, one, kernel_size=1)
        self.branch2 = nn.Sequential(BasicConv2d(before, narrow3, kernel_size=1), BasicConv2d(narrow3, three, kernel_size=3, padding=1))
        # The paper has 5x5 filters here; the weights that everybody uses have 3x3.
        self.branch3 = nn.Sequential(BasicConv2d(before, narrow5, kernel_size=1), BasicConv2d(narrow5, five, kernel_size=3, padding=1))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), BasicConv2d(before, pooled, kernel_size=1))

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        return T.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class _GoogLeNetAux(nn.Module):
    def __init__(self, before: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.conv = BasicConv2d(before, 128, kernel_size=1)
        self.fc1, self.fc2, self.dropout = nn.Linear(2048, 1024), nn.Linear(1024, num_classes), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes from the middle of the network."""
        x = self.conv(F.adaptive_avg_pool2d(x, (4, 4))).flatten(1)
        return self.fc2(self.dropout(F.relu(self.fc1(x), inplace=True)))  # type: ignore[no-any-return]


_GOOGLENET = {
    "3a": (192, 64, 96, 128, 16, 32, 32), "3b": (256, 128, 128, 192, 32, 96, 64), "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64), "4c": (512, 128, 128, 256, 24, 64, 64), "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128), "5a": (832, 256, 160, 320, 32, 128, 128), "5b": (832, 384, 192, 384, 48, 128, 128),
}  # fmt: skip


class GoogLeNet(nn.Module):
    """(N, 3, H, W) -> (N, num_classes); in training with `aux_logits` a `GoogLeNetOutputs` of three. transform_input: images are normalised as
    ImageNet's, the weights want -1 to 1."""

    def __init__(
        self, num_classes: int = 1000, aux_logits: bool = True, transform_input: bool = False, init_weights: bool = True, dropout: float = 0.2,
        dropout_aux: float = 0.7,
    ) -> None:  # fmt: skip
        super().__init__()
        self.aux_logits, self.transform_input = aux_logits, transform_input
        self.conv1, self.maxpool1 = BasicConv2d(3, 64, kernel_size=7, stride=2, padding=3), nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2, self.conv3 = BasicConv2d(64, 64, kernel_size=1), BasicConv2d(64, 192, kernel_size=3, padding=1)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        for name, row in _GOOGLENET.items():
            self.add_module(f"inception{name}", _Inception(*row))
            if name in ("3b", "4e"):
                self.add_module(f"maxpool{int(name[0])}", nn.MaxPool2d(3 if name == "3b" else 2, stride=2, ceil_mode=True))
        self.aux1 = _GoogLeNetAux(512, num_classes, dropout_aux) if aux_logits else None
        self.aux2 = _GoogLeNetAux(528, num_classes, dropout_aux) if aux_logits else None
        self.avgpool, self.dropout, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Dropout(dropout), nn.Linear(1024, num_classes)
        if init_weights:
            _initialise(self)

    def forward(self, x: Tensor) -> Any:
        """The scores of the classes."""
        x = _from_imagenet(x) if self.transform_input else x
        x = self.maxpool2(self.conv3(self.conv2(self.maxpool1(self.conv1(x)))))
        aux: dict[str, Any] = {"4a": None, "4d": None}
        for name in _GOOGLENET:
            x = getattr(self, f"inception{name}")(x)
            if name in ("3b", "4e"):
                x = getattr(self, f"maxpool{name[0]}")(x)
            if name in aux and self.training and self.aux1 is not None and self.aux2 is not None:
                aux[name] = (self.aux1 if name == "4a" else self.aux2)(x)
        x = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        return GoogLeNetOutputs(x, aux["4d"], aux["4a"]) if self.training and self.aux_logits else x


# Of each kind of block: branch -> convolutions in a row, as (name, channels or 0 for the block's own number, kernel, padding, stride); "pool" begins
# with a pooling, and what stands in a tuple of two gets the same input. "max" is a pooling without a convolution.
def _rows(kind: str, own: int) -> list[Any]:
    def conv(name: str, out: int, kernel: Any = 1, padding: Any = 0, stride: int = 1) -> tuple[str, int, Any, Any, int]:
        return name, out, kernel, padding, stride

    wide, tall = ((1, 7), (0, 3)), ((7, 1), (3, 0))
    double = [conv("branch3x3dbl_1", 64), conv("branch3x3dbl_2", 96, 3, 1), conv("branch3x3dbl_3", 96, 3, 1)]
    if kind == "A":
        return [[conv("branch1x1", 64)], [conv("branch5x5_1", 48), conv("branch5x5_2", 64, 5, 2)], double, ["mean", conv("branch_pool", own)]]
    if kind == "B":
        return [[conv("branch3x3", 384, 3, 0, 2)], [*double[:2], conv("branch3x3dbl_3", 96, 3, 0, 2)], ["max"]]
    if kind == "C":
        return [
            [conv("branch1x1", 192)], [conv("branch7x7_1", own), conv("branch7x7_2", own, *wide), conv("branch7x7_3", 192, *tall)],
            [conv("branch7x7dbl_1", own), conv("branch7x7dbl_2", own, *tall), conv("branch7x7dbl_3", own, *wide), conv("branch7x7dbl_4", own, *tall),
             conv("branch7x7dbl_5", 192, *wide)], ["mean", conv("branch_pool", 192)],
        ]  # fmt: skip
    if kind == "D":
        return [
            [conv("branch3x3_1", 192), conv("branch3x3_2", 320, 3, 0, 2)],
            [conv("branch7x7x3_1", 192), conv("branch7x7x3_2", 192, *wide), conv("branch7x7x3_3", 192, *tall), conv("branch7x7x3_4", 192, 3, 0, 2)],
            ["max"],
        ]  # fmt: skip
    flat, high = ((1, 3), (0, 1)), ((3, 1), (1, 0))
    return [
        [conv("branch1x1", 320)], [conv("branch3x3_1", 384), (conv("branch3x3_2a", 384, *flat), conv("branch3x3_2b", 384, *high))],
        [conv("branch3x3dbl_1", 448), conv("branch3x3dbl_2", 384, 3, 1), (conv("branch3x3dbl_3a", 384, *flat), conv("branch3x3dbl_3b", 384, *high))],
        ["mean", conv("branch_pool", 192)],
    ]  # fmt: skip


class _Mixed(nn.Module):
    """A block of Inception v3: branches side by side."""

    def __init__(self, kind: str, before: int, own: int = 0) -> None:
        super().__init__()
        self.rows = _rows(kind, own)
        for row in self.rows:
            channels = before
            for step in row:
                steps = [step] if isinstance(step, tuple) and isinstance(step[0], str) else step if isinstance(step, tuple) else []
                for name, out, kernel, padding, stride in steps:
                    self.add_module(name, BasicConv2d(channels, out, kernel_size=kernel, padding=padding, stride=stride))
                channels = sum(found[1] for found in steps) or channels

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        found = []
        for row in self.rows:
            y = x
            for step in row:
                if step == "mean":
                    y = F.avg_pool2d(y, 3, stride=1, padding=1)
                elif step == "max":
                    y = F.max_pool2d(y, 3, stride=2)
                elif isinstance(step[0], str):
                    y = getattr(self, step[0])(y)
                else:
                    y = T.cat([getattr(self, name)(y) for name, *_ in step], 1)
            found.append(y)
        return T.cat(found, 1)


class _InceptionAux(nn.Module):
    def __init__(self, before: int, num_classes: int) -> None:
        super().__init__()
        self.conv0, self.conv1 = BasicConv2d(before, 128, kernel_size=1), BasicConv2d(128, 768, kernel_size=5)
        self.fc = nn.Linear(768, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes from the middle of the network."""
        x = self.conv1(self.conv0(F.avg_pool2d(x, 5, stride=3)))
        return self.fc(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))  # type: ignore[no-any-return]


_MIXED = {"5b": ("A", 192, 32), "5c": ("A", 256, 64), "5d": ("A", 288, 64), "6a": ("B", 288, 0), "6b": ("C", 768, 128), "6c": ("C", 768, 160),
          "6d": ("C", 768, 160), "6e": ("C", 768, 192), "7a": ("D", 768, 0), "7b": ("E", 1280, 0), "7c": ("E", 2048, 0)}  # fmt: skip


class Inception3(nn.Module):
    """(N, 3, H, W) -> (N, num_classes), sides of at least 75; in training with `aux_logits` an `InceptionOutputs` of two. transform_input: as of
    `GoogLeNet`."""

    def __init__(
        self, num_classes: int = 1000, aux_logits: bool = True, transform_input: bool = False, init_weights: bool = True, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.aux_logits, self.transform_input = aux_logits, transform_input
        self.Conv2d_1a_3x3, self.Conv2d_2a_3x3 = BasicConv2d(3, 32, kernel_size=3, stride=2), BasicConv2d(32, 32, kernel_size=3)
        self.Conv2d_2b_3x3, self.maxpool1 = BasicConv2d(32, 64, kernel_size=3, padding=1), nn.MaxPool2d(3, stride=2)
        self.Conv2d_3b_1x1, self.Conv2d_4a_3x3 = BasicConv2d(64, 80, kernel_size=1), BasicConv2d(80, 192, kernel_size=3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2)
        self.AuxLogits = None
        for name, row in _MIXED.items():
            self.add_module(f"Mixed_{name}", _Mixed(*row))
            if name == "6e" and aux_logits:
                self.AuxLogits = _InceptionAux(768, num_classes)
        self.avgpool, self.dropout, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Dropout(dropout), nn.Linear(2048, num_classes)
        if init_weights:
            _initialise(self)
            if self.AuxLogits is not None:
                nn.init.trunc_normal_(self.AuxLogits.conv1.conv.weight, 0.0, 0.01, -2, 2)
                nn.init.trunc_normal_(self.AuxLogits.fc.weight, 0.0, 0.001, -2, 2)

    def forward(self, x: Tensor) -> Any:
        """The scores of the classes."""
        x = _from_imagenet(x) if self.transform_input else x
        x = self.maxpool1(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        aux = None
        for name in _MIXED:
            x = getattr(self, f"Mixed_{name}")(x)
            if name == "6e" and self.training and self.AuxLogits is not None:
                aux = self.AuxLogits(x)
        x = self.fc(self.dropout(self.avgpool(x)).flatten(1))
        return InceptionOutputs(x, aux) if self.training and self.aux_logits else x


googlenet = maker("googlenet", GoogLeNet, "GoogLeNet; options are those of `GoogLeNet`. With weights, `transform_input` is true.")
inception_v3 = maker("inception_v3", Inception3, "Inception v3; options are those of `Inception3`. With weights, `transform_input` is true.")
