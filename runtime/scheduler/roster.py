"""Who is where: every accepted request from its arrival to its one final message.

Knows no steps. What a request holds of the device is in the holdings' books.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from ..grammar.guide import CompiledGrammar
from ..grammar.validation import Verdict
from ..messages import FinishReason, TokenOutput, Usage
from .ends import End
from .holdings import Holdings
from .measures import Measures
from .request import Phase, Request
from .settling import NO_NEWS, Settlement, with_opening
from .stats import Totals
from .verdicts import Verdicts
from .waiting import WaitingQueue


class Roster:
    """The open requests, by where they are, and what is to be sent of them.

    A request is in `open` from `admit` to its end, and in one of `waiting`, `compiling` and
    `running` unless it has just arrived. Its last message may be held by `verdicts` then.
    """

    def __init__(
        self, waiting: WaitingQueue, holdings: Holdings, measures: Measures, verdicts: Verdicts
    ) -> None:
        self.open: dict[int, Request] = {}  # by serial
        self.waiting = waiting
        self.compiling: dict[int, Request] = {}  # by serial
        self.running: list[Request] = []
        self.totals = Totals()
        self._holdings = holdings
        self._measures = measures
        self._verdicts = verdicts
        self._outputs: list[TokenOutput] = []

    def admit(self, request: Request) -> None:
        """A request has arrived."""
        self._measures.accepted(request)
        self.open[request.serial] = request

    def start_compiling(self, request: Request, compilation: Future[CompiledGrammar]) -> None:
        """It waits for its grammar."""
        request.phase = Phase.COMPILING
        request.compilation = compilation
        self.compiling[request.serial] = request

    def compiled(self, serial: int) -> Request | None:
        """The request that waited for a grammar; None if it has ended meanwhile."""
        request = self.compiling.pop(serial, None)
        if request is not None:
            self._measures.grammar_ready(request)
        return request

    def requeue(self, request: Request) -> None:
        """A retracted request yields what it holds and waits again."""
        self.running.remove(request)
        self._holdings.leave(request)
        self.waiting.add(request)

    def requeue_retracted(self) -> None:
        for request in [r for r in self.running if r.phase is Phase.RETRACTING]:
            self.requeue(request)

    # -- what clients are told -----------------------------------------------------------

    def deliver(self, request: Request, settlement: Settlement, now: float) -> None:
        """What a step has made of a request; a poisoned one is left to the caller."""
        self.totals.outputs += len(settlement.ids)
        if settlement.ids:
            request.times.last_token_s = now
            request.times.first_token_s = request.times.first_token_s or now
        if settlement.end is not None:
            if not settlement.poisoned:
                self.end(request, settlement.end, settlement)
            return
        if output := settlement.output(request):
            self._outputs.append(output)
        if request.phase is Phase.RETRACTING:
            self.requeue(request)

    def end(self, request: Request, end: End, news: Settlement = NO_NEWS) -> None:
        """Send the one final message of a request and take back what it holds."""
        ended_well = end.reason.kind in ("stop", "length")
        lease_s = request.message.hints.lease_s if ended_well else 0.0
        self._unlist(request, self.finish(request, end, news), lease_s=lease_s)

    def end_early(self, request: Request, reason: FinishReason) -> None:
        """End a request with what it has so far."""
        self.end(request, request.ends.so_far(reason))

    def abort(self, chosen: Callable[[Request], bool], reason: FinishReason) -> None:
        """All of them hear it before anything is taken back: the books may turn out wrong."""
        self._outputs += self._verdicts.give_up(chosen)
        ended = list(filter(chosen, self.open.values()))
        phases = [self.finish(request, request.ends.so_far(reason)) for request in ended]
        for request, phase in zip(ended, phases, strict=True):
            self._unlist(request, phase)

    def finish(self, request: Request, end: End, news: Settlement = NO_NEWS) -> Phase:
        """Send the one final message, at once or when its text has been checked, and no more;
        returns the phase in which the request was."""
        del self.open[request.serial]
        phase, request.phase = request.phase, Phase.ENDED
        if request.compilation is not None:
            request.compilation.cancel()  # it may have ended, or others may wait for it
        self.totals.outputs += len(request.opening)
        news = with_opening(request, news)
        self._measures.ended(request, end.reason)
        self.totals.prompt += request.prompt_len
        self.totals.cached += request.num_cached
        self.totals.forced += request.num_forced
        final = self._verdicts.report(request, _final_message(request, end, news))
        if final is not None:
            self._outputs.append(final)
        return phase

    def verdict_ready(self, serial: int, verdict: Future[Verdict]) -> None:
        """A text was checked; its last message may have been sent meanwhile."""
        if final := self._verdicts.ready(serial, verdict):
            self._outputs.append(final)

    def take_outputs(self) -> list[TokenOutput]:
        """What is to be sent, once."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def is_lost_without_kv(self, request: Request) -> bool:
        """Whether a request can't go on once nobody holds KV any more."""
        if request.phase is Phase.COMPILING:
            return request.serial not in self.compiling  # its grammar has come, or never will
        return request.holds_kv

    def start_over(self) -> None:
        """The cache was reset: whoever is still open and waits is in a line made anew."""
        self._outputs += self._verdicts.give_up(lambda _: True)
        self.running.clear()
        self.compiling = {s: r for s, r in self.compiling.items() if s in self.open}
        self.waiting.restart(r for r in self.open.values() if r.phase is Phase.WAITING)

    def _unlist(self, request: Request, phase: Phase, *, lease_s: float = 0.0) -> None:
        """Take an ended request from where it was in `phase`, and back what it holds."""
        match phase:
            case Phase.WAITING:
                self.waiting.remove(request)
            case Phase.COMPILING:
                self.compiling.pop(request.serial, None)
            case Phase.RUNNING | Phase.RETRACTING:
                self.running.remove(request)
                self._holdings.leave(request, lease_s=lease_s)
            case _:
                pass  # it has just arrived


def _final_message(request: Request, end: End, news: Settlement) -> TokenOutput:
    return TokenOutput(
        rid=request.message.rid,
        choice=request.message.choice,
        ids=news.ids,
        logprobs=news.logprobs,
        prompt_logprobs=news.prompt_logprobs,
        forced=news.forced,
        finish=end.reason,
        usage=Usage(
            prompt_tokens=request.prompt_len,
            completion_tokens=request.num_outputs,
            cached_tokens=request.num_cached,
            forced_tokens=request.num_forced,
            num_retractions=request.num_retractions,
        ),
        num_text_bytes=end.num_text_bytes,
        num_kept_tokens=end.num_kept_tokens,
        times=request.times if request.message.timed else None,
    )
