"""Names of `torch.backends` beside its settings: the lock on settings outside of `flags(...)`, which nothing closes here."""

from __future__ import annotations

import contextlib

from calque.compat.refused import no

__all__ = ["__allow_nonbracketed_mutation", "flags_frozen"]

flags_frozen = no
# Libraries that make runs repeatable open it, to set what they set in any case. In a module two underscores are a name like any other.
__allow_nonbracketed_mutation = contextlib.nullcontext
