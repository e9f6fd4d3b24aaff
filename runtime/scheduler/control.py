"""What the scheduler is told besides requests and aborts; never leaves its process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from ..grammar.guide import CompiledGrammar
from ..grammar.validation import Verdict
from ..messages import AbortRequest, SubmitRequests
from .stats import SchedulerStats


class FlushCache(msgspec.Struct, frozen=True):
    """Forget every cached token that no request uses, leased ones too; answers how many."""

    reply: Future[int]


class ReportStats(msgspec.Struct, frozen=True):
    """Call `reply`, on the scheduler's thread, with its stats; also tells that its loop runs."""

    reply: Callable[[SchedulerStats], None]


class SendSnapshot(msgspec.Struct, frozen=True):
    """Tell those who follow the cache all that it holds, if a journal of it is kept."""


class AbortAll(msgspec.Struct, frozen=True):
    """End every request with an abort; `why` is what their clients are told."""

    why: str


class Shutdown(msgspec.Struct, frozen=True):
    """End every request with an abort, then the loop."""


class GrammarReady(msgspec.Struct, frozen=True):
    """The grammar of a COMPILING request is compiled, or failed to."""

    serial: int
    grammar: Future[CompiledGrammar]


class VerdictReady(msgspec.Struct, frozen=True):
    """The text of a request that has ended was checked."""

    serial: int
    verdict: Future[Verdict]


Message = (
    SubmitRequests
    | AbortRequest
    | AbortAll
    | FlushCache
    | ReportStats
    | SendSnapshot
    | GrammarReady
    | VerdictReady
    | Shutdown
)
