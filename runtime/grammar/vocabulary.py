"""The tokens that grammars are compiled for, as they are sent to the compilers."""

from __future__ import annotations

import msgspec


class Vocabulary(msgspec.Struct, frozen=True):
    """Token i is the bytes `token_bytes[i]`; `width` is that of the model's logits, no less.

    Grammars end with one of `stop_ids`; other `control_ids` never occur in constrained output.
    """

    token_bytes: tuple[bytes, ...]
    control_ids: tuple[int, ...]
    stop_ids: tuple[int, ...]
    width: int
