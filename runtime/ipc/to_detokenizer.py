"""Scheduler process to detokenizer process: one message a step, token ids only."""

from __future__ import annotations

import msgspec

from ..messages import TokenOutput
from .wire import Wire


class TextStart(msgspec.Struct, frozen=True, array_like=True):
    """An output begins; text that may become one of its stops is held back."""

    rid: str
    choice: int
    stops: tuple[str, ...]
    stop_regex: tuple[str, ...] = ()


class TokenBatch(msgspec.Struct, frozen=True, tag=True):
    """What a step gave; an output's start comes before its first tokens or with them."""

    epoch: int
    starts: tuple[TextStart, ...]
    outputs: tuple[TokenOutput, ...]


WIRE: Wire[TokenBatch] = Wire(TokenBatch)
