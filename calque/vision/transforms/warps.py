"""Chance in the place of pixels, and in their tones. Names and arguments as in `torchvision.transforms`."""

from __future__ import annotations

from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.kinds import is_int
from calque.vision.images import InterpolationMode
from calque.vision.transforms import functional as F
from calque.vision.transforms.base import Sometimes, Transform, below, between, common_size, fill_of, limits


def _inside(owner: str, name: str, value: Any, low: float, high: float) -> tuple[float, float]:
    """(lowest, highest) of a number that is drawn, within bounds."""
    found = limits(owner, name, value)
    if not low <= found[0] <= found[1] <= high:
        raise ArgumentError(f"[{owner}] expected {name} between {low:g} and {high:g}, the lowest first, got {shown(value)}")
    return found


class RandomAffine(Transform):
    """`functional.affine` by chance.

    degrees: the angle, a number d for (-d, d). translate: at most these shares of width and height. scale: between these. shear: a number d for
    (-d, d) in x, (lowest, highest) in x, or four numbers for x and y.

    >>> from calque.vision import transforms
    >>> transforms.RandomAffine(10, translate=(0.1, 0.1), scale=(0.9, 1.1))(calque.ones(3, 8, 8)).shape
    torch.Size([3, 8, 8])
    """

    def __init__(
        self, degrees: Any, translate: Any = None, scale: Any = None, shear: Any = None, interpolation: Any = InterpolationMode.NEAREST,
        fill: Any = 0, center: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if isinstance(degrees, (int, float)) and degrees < 0:
            raise ValueError(f"[RandomAffine] If degrees is a single number, it must be positive, got {degrees}; it means (-degrees, degrees)")
        self.degrees = (-degrees, degrees) if isinstance(degrees, (int, float)) else limits("RandomAffine", "degrees", degrees)
        self.translate = None if translate is None else limits("RandomAffine", "translate", translate)
        if self.translate is not None and not all(0.0 <= share <= 1.0 for share in self.translate):
            raise ValueError(f"[RandomAffine] translation values should be between 0 and 1, got {shown(translate)}; they are shares of the sides")
        self.scale = None if scale is None else limits("RandomAffine", "scale", scale)
        if self.scale is not None and min(self.scale) <= 0:
            raise ValueError(f"[RandomAffine] scale values should be positive, got {shown(scale)}; 1.0 keeps the size")
        whole = list(shear) if isinstance(shear, (tuple, list)) and len(shear) == 4 else None
        if whole is not None:
            self.shear: Any = whole
        else:
            self.shear = None if shear is None else (-shear, shear) if isinstance(shear, (int, float)) else limits("RandomAffine", "shear", shear)
        self.interpolation, self.fill, self.center = interpolation, fill, center

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """How the image is moved."""
        height, width = common_size("RandomAffine", flat_inputs)
        angle, move, size, slant = between(*self.degrees), [0, 0], 1.0, [0.0, 0.0]
        if self.translate is not None:
            wide, tall = self.translate[0] * width, self.translate[1] * height
            move = [round(between(-wide, wide)), round(between(-tall, tall))]
        if self.scale is not None:
            size = between(*self.scale)
        if self.shear is not None:
            slant = [between(*self.shear[:2]), between(*self.shear[2:]) if len(self.shear) == 4 else 0.0]
        return {"move": (angle, move, size, slant)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """The image, moved."""
        return F.affine(inpt, *params["move"], self.interpolation, fill_of(self.fill, inpt), self.center)


class RandomPerspective(Sometimes):
    """`functional.perspective` with a probability: each corner moves inward by at most `distortion_scale` of half a side."""

    def __init__(self, distortion_scale: float = 0.5, p: float = 0.5, interpolation: Any = InterpolationMode.BILINEAR, fill: Any = 0) -> None:
        super().__init__(p)
        _inside("RandomPerspective", "distortion_scale", distortion_scale, 0.0, 1.0)
        self.distortion_scale, self.interpolation, self.fill = distortion_scale, interpolation, fill

    @staticmethod
    def get_params(width: int, height: int, distortion_scale: float) -> tuple[list[list[int]], list[list[int]]]:
        """(startpoints, endpoints) by chance."""
        if not (is_int(width) and is_int(height)):
            raise ArgumentError(f"[RandomPerspective] expected width and height as ints, got {shown(width)} and {shown(height)}")
        _inside("RandomPerspective", "distortion_scale", distortion_scale, 0.0, 1.0)
        right, bottom = width - 1, height - 1
        far_x, far_y = (int(distortion_scale * (side // 2)) + 1 for side in (width, height))
        start = [[0, 0], [right, 0], [right, bottom], [0, bottom]]
        return start, [[abs(x - below(far_x)), abs(y - below(far_y))] for x, y in start]

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Where the corners go."""
        height, width = common_size("RandomPerspective", flat_inputs)
        return {"points": self.get_params(width, height, self.distortion_scale)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.perspective(inpt, *params["points"], self.interpolation, fill_of(self.fill, inpt))


class RandomPosterize(Sometimes):
    """`functional.posterize` with a probability."""

    pixels_only = True

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        self.bits = bits

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.posterize(inpt, self.bits)


class RandomSolarize(Sometimes):
    """`functional.solarize` with a probability."""

    pixels_only = True

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold = threshold

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.solarize(inpt, self.threshold)


class RandomAdjustSharpness(Sometimes):
    """`functional.adjust_sharpness` with a probability."""

    pixels_only = True

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.sharpness_factor = sharpness_factor

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.adjust_sharpness(inpt, self.sharpness_factor)


class RandomAutocontrast(Sometimes):
    """`functional.autocontrast` with a probability."""

    pixels_only = True

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.autocontrast(inpt)


class RandomEqualize(Sometimes):
    """`functional.equalize` with a probability."""

    pixels_only = True

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.equalize(inpt)
