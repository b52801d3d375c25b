"""Functions of neural networks, under PyTorch's names and signatures: `import calque.nn.functional as F`."""

from calque.functional.later import namespace as _namespace
from calque.nn.functional import (  # noqa: F401 - they declare the functions of this namespace
    activation,
    attention,
    conv,
    cross_entropy,
    distance,
    dropout,
    embedding,
    linear,
    loss,
    norm,
    padding,
    pooling,
    softmax,
    vision,
)

__getattr__ = _namespace(globals())
