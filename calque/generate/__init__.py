"""Decoding with a key-value cache: one token at a time, in a program that stays the same.

A decoder is any module called as `model(tokens, view)`: it asks the view for positions and lets it attend (`View.attend`). `Cache` is the memory of
all layers, `Decoder` the two steps (`prefill`, `decode`), `generate` and `stream` the loop, which also runs exports of these two steps.
"""

from calque.generate.cache import Cache, View
from calque.generate.decoder import Decoder
from calque.generate.loop import generate, stream
from calque.generate.sampling import sample

__all__ = ["Cache", "Decoder", "View", "generate", "sample", "stream"]
