"""Named random streams derived from the one seed of a run; imports no torch."""

from __future__ import annotations

import hashlib
import json


def sub_seed(seed: int, name: str, *indices: int) -> int:
    """The 64-bit seed of the stream `name` at `indices`, for example `sub_seed(0, "prompts", epoch)`.

    Streams of different names or indices are independent, so drawing more from one never shifts another, and
    a resumed run re-creates any stream from its name alone. The value is the first 8 bytes of a SHA-256, the
    same on every platform and Python version.
    """
    digest = hashlib.sha256(json.dumps([seed, name, *indices]).encode()).digest()
    return int.from_bytes(digest[:8], "big")
