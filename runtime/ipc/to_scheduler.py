"""Tokenizer process to scheduler process: requests and questions."""

from __future__ import annotations

import msgspec

from ..messages import TokenizedRequest
from .wire import Wire


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Requests that arrive together, so that one step can plan them together."""

    epoch: int
    requests: tuple[TokenizedRequest, ...]


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End the request with exactly this id."""

    epoch: int
    rid: str


class FlushCache(msgspec.Struct, frozen=True, tag=True):
    """Forget what no request uses; answered by `to_tokenizer.CacheFlushed`."""

    epoch: int
    call: int


class ReportStats(msgspec.Struct, frozen=True, tag=True):
    """Answered by `to_tokenizer.StatsReport`."""

    epoch: int
    call: int


class SendSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Tell those who follow the cache all that it holds."""

    epoch: int


SchedulerNews = Submit | Abort | FlushCache | ReportStats | SendSnapshot
WIRE: Wire[SchedulerNews] = Wire(SchedulerNews)
