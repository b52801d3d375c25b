"""Functions of neural networks, under PyTorch's names and signatures: `import calque.nn.functional as F`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from calque.functional.blame import framed as _framed
from calque.functional.later import resolver as _resolver
from calque.nn.functional.activation import *  # noqa: F403
from calque.nn.functional.attention import *  # noqa: F403
from calque.nn.functional.conv import *  # noqa: F403
from calque.nn.functional.cross_entropy import *  # noqa: F403
from calque.nn.functional.distance import *  # noqa: F403
from calque.nn.functional.dropout import *  # noqa: F403
from calque.nn.functional.embedding import *  # noqa: F403
from calque.nn.functional.linear import *  # noqa: F403
from calque.nn.functional.loss import *  # noqa: F403
from calque.nn.functional.norm import *  # noqa: F403
from calque.nn.functional.padding import *  # noqa: F403
from calque.nn.functional.pooling import *  # noqa: F403
from calque.nn.functional.softmax import *  # noqa: F403
from calque.nn.functional.vision import *  # noqa: F403

globals().update(_framed(globals(), __name__))

# Loaded when one of them is first asked for.
if _TYPE_CHECKING:
    from calque.nn.functional.alignment import *  # noqa: F403
    from calque.nn.functional.sampling import affine_grid as affine_grid
    from calque.nn.functional.sampling import grid_sample as grid_sample
    from calque.nn.functional.unpooling import *  # noqa: F403
    from calque.nn.functional.volumes import *  # noqa: F403
__getattr__ = _resolver(
    globals(),
    {
        "calque.nn.functional.alignment": "ctc_loss",
        "calque.nn.functional.native": "native_channel_shuffle",
        "calque.nn.functional.sampling": "affine_grid grid_sample",
        "calque.nn.functional.unpooling": "fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d "
        "fractional_max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d",
        "calque.nn.functional.volumes": "adaptive_avg_pool3d adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d "
        "adaptive_max_pool3d_with_indices avg_pool3d conv_tbc conv_transpose3d lp_pool3d max_pool3d max_pool3d_with_indices",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__.__dict__["names"]})
