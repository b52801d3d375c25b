"""All layers."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from calque.functional.later import resolver as _resolver
from calque.nn.modules.activation import *  # noqa: F403
from calque.nn.modules.block import *  # noqa: F403
from calque.nn.modules.container import *  # noqa: F403
from calque.nn.modules.conv import *  # noqa: F403
from calque.nn.modules.dropout import *  # noqa: F403
from calque.nn.modules.embedding import *  # noqa: F403
from calque.nn.modules.linear import *  # noqa: F403
from calque.nn.modules.loss import *  # noqa: F403
from calque.nn.modules.norm import *  # noqa: F403
from calque.nn.modules.pooling import *  # noqa: F403
from calque.nn.modules.rnn import *  # noqa: F403
from calque.nn.modules.transformer import *  # noqa: F403
from calque.nn.modules.vision import *  # noqa: F403

# Layers that few programs name: loaded when one of them is first asked for.
if _TYPE_CHECKING:
    from calque.nn.modules.adaptive import *  # noqa: F403
    from calque.nn.modules.lazy import *  # noqa: F403
    from calque.nn.modules.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
    from calque.nn.modules.volumes import *  # noqa: F403
_LATER = {
    "calque.nn.modules.adaptive": "AdaptiveLogSoftmaxWithLoss CTCLoss LinearCrossEntropyLoss LinearCrossEntropyOptions MultiLabelMarginLoss",
    "calque.nn.modules.lazy": "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d "
    "LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LazyModuleMixin",
    "calque.nn.modules.sync_batch_norm": "SyncBatchNorm",
    "calque.nn.modules.volumes": "AdaptiveAvgPool3d AdaptiveMaxPool3d AvgPool3d CircularPad3d ConstantPad3d ConvTranspose3d FractionalMaxPool2d "
    "FractionalMaxPool3d LPPool3d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d ReflectionPad3d ReplicationPad3d ZeroPad3d",
}
__getattr__ = _resolver(globals(), _LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__.__dict__["names"]})
