"""Detokenizer process to tokenizer process: text; scheduler process to it: answers."""

from __future__ import annotations

import msgspec

from ..programs.backend import GenerateChunk
from ..scheduler.stats import SchedulerStats
from .wire import Wire


class TextOutput(msgspec.Struct, frozen=True, array_like=True):
    """New output of one choice of a request."""

    rid: str
    chunk: GenerateChunk


class TextBatch(msgspec.Struct, frozen=True, tag=True):
    """The text of one `TokenBatch`."""

    epoch: int
    outputs: tuple[TextOutput, ...]


class CacheFlushed(msgspec.Struct, frozen=True, tag=True):
    """`num_tokens` cached tokens were forgotten."""

    epoch: int
    call: int
    num_tokens: int


class StatsReport(msgspec.Struct, frozen=True, tag=True):
    """The scheduler's totals and its present load."""

    epoch: int
    call: int
    stats: SchedulerStats


TokenizerNews = TextBatch | CacheFlushed | StatsReport
WIRE: Wire[TokenizerNews] = Wire(TokenizerNews)
