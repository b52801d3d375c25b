"""Look-up tables."""

from __future__ import annotations

from typing import Any

from calque.base.asked import ordinary
from calque.base.errors import AssertedError, ShapeError
from calque.nn import functional as F
from calque.nn import init
from calque.nn.module import Module
from calque.nn.modules.make import extents, fresh
from calque.nn.parameter import Parameter
from calque.tensor import Tensor

__all__ = ["Embedding", "EmbeddingBag"]


def _row(layer: str, padding_idx: Any, rows: int) -> Any:
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise AssertedError(f"[{layer}] Padding_idx must be within num_embeddings: expected {-rows}..{rows - 1}, got {padding_idx}")
    return padding_idx % rows


class _Table(Module):
    num_embeddings: int
    embedding_dim: int

    def _setup(self, weight: Any, freeze: bool, device: Any, dtype: Any) -> None:
        shape = (self.num_embeddings, self.embedding_dim)
        if weight is None:
            self.weight = fresh(shape, device, dtype)
            self.weight._requires_grad = not freeze
            self.reset_parameters()
        else:
            if tuple(weight._layout.shape) != shape:
                raise ShapeError(
                    f"[{type(self).__name__}] Shape of weight does not match num_embeddings and embedding_dim: {shape} "
                    f"and {tuple(weight._layout.shape)}"
                )
            self.weight = Parameter(weight, requires_grad=not freeze)

    def reset_parameters(self) -> None:
        """Normal values; the padding row 0."""
        init.normal_(self.weight)
        padding = getattr(self, "padding_idx", None)
        if padding is not None:
            self.weight.detach()[padding].fill_(0)


class Embedding(_Table):
    """Rows of a learned table: (*) integer indices in 0..num_embeddings-1 -> (*, embedding_dim).

    >>> import calque
    >>> table = calque.nn.Embedding(10, 3, padding_idx=0)
    >>> table
    Embedding(10, 3, padding_idx=0)
    >>> table(calque.tensor([0]))
    tensor([[0., 0., 0.]], grad_fn=<EmbeddingBackward0>)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        extents("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.padding_idx = _row("Embedding", padding_idx, num_embeddings)
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = max_norm, norm_type, scale_grad_by_freq, sparse
        self._setup(_weight, _freeze, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        weight = self._parameters.get("weight")
        if weight is None:  # parametrized, or computed by a hook
            weight = self.weight
        return F.embedding(input, weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        if self.max_norm is not None:
            text += f", max_norm={self.max_norm}"
        if self.norm_type != 2:
            text += f", norm_type={self.norm_type}"
        if self.scale_grad_by_freq is not False:
            text += f", scale_grad_by_freq={self.scale_grad_by_freq}"
        return text + (", sparse=True" if self.sparse is not False else "")

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> "Embedding":
        """A table with given values, frozen by default."""
        embeddings = ordinary(embeddings)
        if embeddings._layout.ndim != 2:
            raise AssertedError(f"[Embedding] Embeddings parameter is expected to be 2-dimensional, got shape {tuple(embeddings._layout.shape)}")
        rows, columns = embeddings._layout.shape
        return cls(rows, columns, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight=embeddings, _freeze=freeze)


class EmbeddingBag(_Table):
    """Sum, mean or maximum of the rows of each bag: (bags, n), or flat indices with offsets -> (bags, embedding_dim)."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.mode, self.sparse = num_embeddings, embedding_dim, mode, sparse
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.include_last_offset, self.padding_idx = include_last_offset, _row("EmbeddingBag", padding_idx, num_embeddings)
        self._setup(_weight, False, device, dtype)

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        mode: str = "mean", sparse: bool = False, include_last_offset: bool = False, padding_idx: int | None = None,
    ) -> "EmbeddingBag":  # fmt: skip
        """A table with given values, frozen by default."""
        embeddings = ordinary(embeddings)
        if embeddings._layout.ndim != 2:
            raise AssertedError(f"[EmbeddingBag] Embeddings parameter is expected to be 2-dimensional, got shape {tuple(embeddings._layout.shape)}")
        rows, columns = embeddings._layout.shape
        made = cls(rows, columns, max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings, include_last_offset, padding_idx)
        made.weight.requires_grad_(not freeze)  # type: ignore[attr-defined]
        return made

    def forward(self, input: Tensor, offsets: Any = None, per_sample_weights: Any = None) -> Tensor:
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.max_norm is not None:
            text += f", max_norm={self.max_norm}"
        if self.norm_type != 2:
            text += f", norm_type={self.norm_type}"
        if self.scale_grad_by_freq is not False:
            text += f", scale_grad_by_freq={self.scale_grad_by_freq}"
        text += f", mode={self.mode!r}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        return text
