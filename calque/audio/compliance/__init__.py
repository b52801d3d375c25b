"""Features as the Kaldi toolkit computes them."""

from calque.audio.compliance import kaldi

__all__ = ["kaldi"]
