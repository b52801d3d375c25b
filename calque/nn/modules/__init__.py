"""All layers."""

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
