"""The scheduler: owns every accepted request from its arrival to its one final message.

One loop for overlap depth 0 (for long steps, or all) and 1. With a forward in flight the CPU
settles the step before, prepares the masks of this one and plans the next. Token ids only,
never text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from espalier.radix.cache import RadixCache
from espalier.radix.leases import Leases

from ..config import SchedulerConfig
from ..grammar.service import GrammarService
from ..grammar.xgrammar_engine import CompiledGrammar
from ..messages import (
    AbortRequest,
    FinishReason,
    SubmitRequests,
    TokenizedRequest,
    TokenOutput,
    Usage,
)
from ..runner.protocol import LaunchedStep, Runner
from .audit import IdleAudit
from .control import (
    AbortAll,
    FlushCache,
    GrammarReady,
    Message,
    ReportStats,
    SendSnapshot,
    Shutdown,
)
from .ends import End, EndMatcher
from .holdings import Holdings
from .measures import Measures
from .phases import LoopWatch
from .planner import Planner
from .policies import line_maker
from .rebuild import Patience, reason_of, report
from .recovery import Doomed, is_unsettled, roll_back
from .request import Phase, Request
from .sampling_rows import Vocabulary, sample_row
from .settling import NO_NEWS, Settlement, settle_row
from .slo import ServiceGoals
from .stats import SchedulerHistograms, SchedulerStats, Totals
from .step import IntArray
from .tree_journal import TreeJournal
from .waiting import WaitingQueue

logger = logging.getLogger(__name__)


Channel = Callable[[list[TokenOutput]], None]

_SHUTDOWN = FinishReason(kind="abort", message="the engine is shutting down", shutdown=True)


@dataclass(frozen=True, slots=True)
class _Flight:
    """A launched step and the request of each of its rows."""

    launched: LaunchedStep
    requests: Sequence[Request]

    @property
    def number(self) -> int:
        return self.launched.step.number

    @property
    def num_tokens(self) -> int:
        return self.launched.step.num_tokens


class Scheduler:
    """Runs requests in steps; everything but `inbox` and `stats` belongs to one thread.

    `clock` is in seconds. A `journal` observes the cache already.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: RadixCache,
        runner: Runner,
        grammars: GrammarService,
        vocabulary: Vocabulary,
        channel: Channel,
        *,
        journal: TreeJournal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self._config = config
        self._max_overlap_tokens = config.max_overlap_tokens if config.overlap else 0
        self._cache = cache
        self._runner = runner
        self._grammars = grammars
        self._vocabulary = vocabulary
        self._channel = channel
        self._journal = journal
        max_leased = int(config.max_leased_share * cache.num_slots)
        self.leases = Leases(cache, max_tokens=max_leased, now=clock)
        self._holdings = Holdings(
            cache, self.leases, config.max_running_requests, share=config.radix_cache
        )
        self._goals = ServiceGoals(config.slo_ttft_s, config.slo_itl_s)
        self._planner = Planner(config, self._holdings, self._goals)
        self._waiting = WaitingQueue(
            line_maker(config.policy, cache, share=config.radix_cache),
            config.max_passes,
            aging=config.policy != "priority",
            weights=config.tenant_weights,
        )
        self._open: dict[int, Request] = {}  # accepted and not ended, by serial
        self._running: list[Request] = []
        self._compiling: dict[int, Request] = {}
        self._in_flight: _Flight | None = None
        self._newest: _Flight | None = None  # of all that were launched
        self._audit = IdleAudit(self._holdings.recounting, clock)
        self._patience = Patience()
        self._outputs: list[TokenOutput] = []
        self._next_serial = 0
        self._next_step = 0
        self._totals = Totals()
        self._watch = LoopWatch(clock)
        self._measures = Measures(clock, goal_ttft_s=config.slo_ttft_s, goal_itl_s=config.slo_itl_s)
        self._started_at = time.time()
        cache.watch_evictions(self._measures.evicted)
        self._stopping = False

    # -- the loop ------------------------------------------------------------------------

    def run(self) -> None:
        """Work until a `Shutdown` message has been obeyed; sleeps while there is nothing."""
        while not (self._stopping and self.idle):
            self.step(wait=not self._stopping)

    def step(self, *, wait: bool = False) -> bool:
        """One round of the loop; whether there was anything to do. `wait`: sleep when idle."""
        try:
            worked = self._round(wait=wait)
        except Exception as error:  # a bug: from here on nobody knows what is whose
            self._rebuild(error)
            worked = True
        self._emit()
        self._watch.lap("emit")
        if worked:
            self._watch.end()
        return worked

    def _round(self, *, wait: bool) -> bool:
        self._ingest(wait=wait and self.idle)
        self._expire_leases()
        self._watch.lap("ingest")
        if self.idle:
            self._audit.go_on()
            return False
        self._audit.disturb()
        launched = self._launch()
        flight = self._settle(self._in_flight, successor=launched)
        self._watch.lap("settle")
        self._sample(flight)
        self._watch.lap("sample")
        self._in_flight = flight
        if flight is not None and flight.num_tokens > self._max_overlap_tokens:
            self._in_flight = self._settle(flight, successor=None)
            self._watch.lap("settle")
        return True

    @property
    def idle(self) -> bool:
        """Nothing to compute: no request waits or runs and no step is in flight."""
        return not (self._waiting or self._running or self._in_flight)

    @property
    def stats(self) -> SchedulerStats:
        totals = self._totals
        return SchedulerStats(
            num_forward_passes=totals.forward_passes,
            num_computed_tokens=totals.computed,
            num_prompt_tokens=totals.prompt,
            num_cached_tokens=totals.cached,
            num_output_tokens=totals.outputs,
            num_retractions=self._planner.num_retractions,
            num_failed_steps=totals.failed_steps,
            num_rebuilds=totals.rebuilds,
            num_evicted_tokens=self._measures.num_evicted,
            num_judged=dict(self._measures.num_judged),
            num_running=len(self._running),
            num_waiting=len(self._waiting) + len(self._compiling),
            num_compiling=len(self._compiling),
            pool_tokens=self._cache.num_slots,
            free_tokens=self._cache.num_free,
            evictable_tokens=self._cache.num_evictable,
            leased_tokens=self._cache.num_leased,
            yieldable_tokens=self._cache.num_yieldable,
            tree_tokens=self._cache.num_cached,
            started_at=self._started_at,
            histograms=SchedulerHistograms(
                queue=self._measures.queue.data,
                device=self._measures.device.data,
                phases=self._watch.data,
                grammar=self._grammars.compile_times,
                evicted_age=self._measures.evicted_age.data,
            ),
        )

    @property
    def num_free_rows(self) -> int:
        return self._holdings.num_free_rows

    def private_slots(self) -> list[IntArray]:
        """What each running request holds outside the tree, for checks of the books."""
        return [r.slots[r.tree_len : r.kv_len] for r in self._running]

    # -- messages in ---------------------------------------------------------------------

    def _ingest(self, *, wait: bool) -> None:
        """Take what is in the inbox. `wait`: until there is something, or something to do."""
        self._watch.start()
        try:
            message = self.inbox.get(wait, self._wait_s())
            self._watch.start()  # not while it slept
            while True:
                self._take(message)
                message = self.inbox.get_nowait()
        except Empty:
            return

    def _wait_s(self) -> float | None:
        """How long an idle scheduler may sleep: until a lease expires or a recount is due."""
        waits = (self.leases.next_expiry_s, self._audit.wait_s())
        return min((wait for wait in waits if wait is not None), default=None)

    def _take(self, message: Message) -> None:
        if not isinstance(message, ReportStats):
            self._audit.disturb()
        match message:
            case SubmitRequests(requests):
                for request in [self._accept(request) for request in requests]:
                    self._place(request)
            case AbortRequest(rid):
                reason = FinishReason(kind="abort", message="aborted by the client")
                self._abort(lambda request: request.message.rid == rid, reason)
            case GrammarReady(serial, grammar):
                self._grammar_ready(serial, grammar)
            case AbortAll(why):
                self._abort(lambda _: True, FinishReason(kind="abort", message=why))
            case FlushCache(reply):
                self._flush(reply)
            case ReportStats(tell):
                self._expire_leases()
                tell(self.stats)
            case SendSnapshot():
                if self._journal is not None:
                    self._journal.publish_all(self._cache.tree)
            case Shutdown():
                self._stopping = True
                self._abort(lambda _: True, _SHUTDOWN)

    def _expire_leases(self) -> None:
        if self.leases.expire():
            self._audit.disturb()

    def _flush(self, reply: Future[int]) -> None:
        try:
            reply.set_result(self._holdings.flush())
        except BaseException as error:
            reply.set_exception(error)
            raise

    def _accept(self, message: TokenizedRequest) -> Request:
        ends = EndMatcher(
            message.sampling, self._vocabulary.eos_ids, self._vocabulary.visible_bytes
        )
        request = Request.accept(self._next_serial, message, ends)
        self._measures.accepted(request)
        self._next_serial += 1
        self._open[request.serial] = request
        return request

    def _place(self, request: Request) -> None:
        """Put an accepted request where it waits, or refuse it."""
        if self._stopping:
            self._end(request, request.ends.so_far(_SHUTDOWN))
            return
        if self._goals.may_refuse and (refusal := self._refusal(request)):
            self._end(request, request.ends.so_far(refusal))
            return
        constraint = request.message.constraint
        if constraint is None:
            self._waiting.add(request)
            return
        request.phase = Phase.COMPILING
        self._compiling[request.serial] = request
        self._grammars.compile(constraint).add_done_callback(
            lambda grammar: self.inbox.put(GrammarReady(request.serial, grammar))
        )

    def _refusal(self, request: Request) -> FinishReason | None:
        """Why a request is not accepted that would get its first token too late."""
        request.num_uncached = self._holdings.uncached_len(request)
        started = sum(r.promise_len - r.kv_len for r in self._running if r.prefilling)
        late = self._goals.lateness(
            request.num_uncached + self._waiting.num_uncached + started,
            [r for r in self._running if not r.prefilling],
            self._config.max_step_tokens,
        )
        if late is None:
            return None
        message = f"the first token would come {late:.1f} s later than promised; try again later"
        return FinishReason(kind="error", message=message, retry_after_s=late)

    def _grammar_ready(self, serial: int, grammar: Future[CompiledGrammar]) -> None:
        request = self._compiling.pop(serial, None)
        if request is None:
            return  # aborted while it was compiled
        self._measures.grammar_ready(request)
        error = grammar.exception()
        if error is None:
            request.matcher = grammar.result().matcher()
            self._waiting.add(request)
        else:
            reason = FinishReason(kind="error", message=str(error), bad_request=True)
            self._end(request, request.ends.so_far(reason))

    def _abort(self, chosen: Callable[[Request], bool], reason: FinishReason) -> None:
        """All of them hear it before anything is taken back: the books may turn out wrong."""
        ended = list(filter(chosen, self._open.values()))
        phases = [self._finish(request, request.ends.so_far(reason)) for request in ended]
        for request, phase in zip(ended, phases, strict=True):
            self._unlist(request, phase)

    # -- a step --------------------------------------------------------------------------

    def _launch(self) -> _Flight | None:
        planned = self._planner.plan(self._next_step, self._running, self._waiting)
        now = self._watch.lap("plan")
        if planned is None:
            if self._in_flight is None:
                self._break_deadlock()
            return None
        step, requests = planned
        self._next_step += 1
        self._totals.forward_passes += 1
        self._totals.computed += step.num_tokens
        self._measures.scheduled(requests, now)
        self._newest = _Flight(self._runner.launch(step), requests)
        self._watch.lap("launch")
        return self._newest

    def _sample(self, flight: _Flight | None) -> None:
        """Everything that sampling this step needs is known once the one before has settled."""
        if flight is None:
            return
        rows = {
            index: sample_row(request, row, self._vocabulary)
            for index, (request, row) in enumerate(
                zip(flight.requests, flight.launched.step.rows, strict=True)
            )
            if row.samples and request.phase is not Phase.ENDED
        }
        flight.launched.sample(rows)

    def _settle(self, flight: _Flight | None, successor: _Flight | None) -> _Flight | None:
        """Take the results of `flight`; the successor, or None if it had to be discarded."""
        if flight is None:
            return successor
        try:
            result = flight.launched.result()
        except Exception as error:  # whatever the device raises ends or retries its requests
            logger.exception("step %d failed", flight.number)
            self._recover_from_failure(flight, successor, error)
            return None
        now = self._watch.lap("wait")
        self._measures.device.observe(result.device_s)
        self._patience.restore()
        self._goals.observe(flight.launched.step, result.device_s)
        self._holdings.settle(flight.number)
        poisoned: list[Request] = []
        for index, (request, row) in enumerate(
            zip(flight.requests, flight.launched.step.rows, strict=True)
        ):
            if request.phase is Phase.ENDED:
                continue
            settlement = settle_row(request, row, index, result)
            if settlement.poisoned:
                poisoned.append(request)
            self._deliver(request, settlement, now)
        if poisoned:
            self._withdraw_poisoned(poisoned, flight, successor)
            return None
        return successor

    def _deliver(self, request: Request, settlement: Settlement, now: float) -> None:
        self._totals.outputs += len(settlement.ids)
        if settlement.ids:
            request.times.last_token_s = now
            request.times.first_token_s = request.times.first_token_s or now
        if settlement.end is not None:
            if not settlement.poisoned:
                self._end(request, settlement.end, settlement)
            return
        if output := settlement.output(request):
            self._outputs.append(output)
        if request.phase is Phase.RETRACTING:
            self._requeue(request)

    # -- ends ----------------------------------------------------------------------------

    def _end(self, request: Request, end: End, news: Settlement = NO_NEWS) -> None:
        """Send the one final message of a request and take back what it holds."""
        ended_well = end.reason.kind in ("stop", "length")
        lease_s = request.message.hints.lease_s if ended_well else 0.0
        self._unlist(request, self._finish(request, end, news), lease_s=lease_s)

    def _finish(self, request: Request, end: End, news: Settlement = NO_NEWS) -> Phase:
        """Send the one final message of a request; the phase in which it was."""
        del self._open[request.serial]
        phase, request.phase = request.phase, Phase.ENDED
        self._measures.ended(request, end.reason)
        self._totals.prompt += request.prompt_len
        self._totals.cached += request.num_cached
        self._outputs.append(
            TokenOutput(
                rid=request.message.rid,
                choice=request.message.choice,
                ids=news.ids,
                logprobs=news.logprobs,
                prompt_logprobs=news.prompt_logprobs,
                finish=end.reason,
                usage=Usage(
                    prompt_tokens=request.prompt_len,
                    completion_tokens=request.num_outputs,
                    cached_tokens=request.num_cached,
                    num_retractions=request.num_retractions,
                ),
                num_text_bytes=end.num_text_bytes,
                num_kept_tokens=end.num_kept_tokens,
                times=request.times if request.message.timed else None,
            )
        )
        return phase

    def _unlist(self, request: Request, phase: Phase, *, lease_s: float = 0.0) -> None:
        """Take an ended request from where it was in `phase`, and back what it holds."""
        match phase:
            case Phase.WAITING:
                self._waiting.remove(request)
            case Phase.COMPILING:
                self._compiling.pop(request.serial, None)
            case Phase.RUNNING | Phase.RETRACTING:
                self._running.remove(request)
                self._holdings.leave(request, lease_s=lease_s)
            case _:
                pass  # it has just arrived

    def _break_deadlock(self) -> None:
        """Requests of which none can be planned, with nothing in flight: a bug here.

        The newest one ends with an error, so that the others go on and nobody hangs.
        """
        request = [*self._waiting, *self._running][-1]
        logger.error("no request can be planned; ending %s", request.key)
        message = "the scheduler could not place this request; this is a bug"
        self._end(request, request.ends.so_far(FinishReason(kind="error", message=message)))

    # -- failures ------------------------------------------------------------------------

    def _recover_from_failure(
        self, flight: _Flight, successor: _Flight | None, error: Exception
    ) -> None:
        """Withdraw what the failed step and its successor promised; retry their requests."""
        self._totals.failed_steps += 1
        for request in self._roll_back(flight, successor, is_unsettled, flight.requests):
            reason = FinishReason(kind="error", message=f"its step failed: {error}")
            self._end(request, request.ends.so_far(reason))

    def _withdraw_poisoned(
        self, poisoned: list[Request], flight: _Flight, successor: _Flight | None
    ) -> None:
        """NaN logits: trust none of the KV that these requests were computed from.

        Each tries once more, all by itself: if the NaN was somebody else's it is gone then,
        and if it is the request's own nobody shares it.
        """
        nodes = {node for request in poisoned for node in self._holdings.path(request)}
        for request in poisoned:
            request.settled_len = request.tree_len  # its private KV is no better
            if request.quarantined:
                message = "the model gave NaN logits for this request"
                self._end(request, request.ends.so_far(FinishReason(kind="error", message=message)))
            request.quarantined = True
        self._roll_back(flight, successor, lambda n: is_unsettled(n) or n in nodes, ())

    def _roll_back(
        self,
        flight: _Flight,
        successor: _Flight | None,
        doomed: Doomed,
        blamed: Sequence[Request],
    ) -> list[Request]:
        """Drain the device, then take everything back that the doomed nodes stood for.

        Returns the blamed requests that have had their retry.
        """
        last = flight
        if successor is not None:
            successor.launched.discard()
            last = successor
        outcome = roll_back(self._holdings, self._running, last.number, doomed, blamed)
        self._planner.write_again(outcome.writes)
        for request in [r for r in self._running if r.phase is Phase.RETRACTING]:
            self._requeue(request)
        return outcome.given_up

    def _rebuild(self, error: Exception) -> None:
        """Start over with an empty cache; raises `error` when that has not helped before."""
        self._patience.lose()
        if self._patience.is_lost:
            raise error
        logger.critical("%s", report(error, self._cache, self._open.values()), exc_info=error)
        if self._newest is not None:
            self._newest.launched.discard()
        self._in_flight = None
        self._totals.rebuilds += 1
        reason = reason_of(error)
        for request in list(self._open.values()):
            if request.holds_kv or self._patience.everyone_ends:
                request.vacated()
                self._finish(request, request.ends.so_far(reason))
        self._running.clear()
        self._compiling = {s: r for s, r in self._compiling.items() if s in self._open}
        self._planner.forget_writes()
        self._holdings.reset(self._next_step - 1)
        self._waiting.restart(r for r in self._open.values() if r.phase is Phase.WAITING)
        for request in [r for r in self._open.values() if r.phase is Phase.ARRIVED]:
            self._place(request)

    def _requeue(self, request: Request) -> None:
        """A retracted request yields what it holds and waits again."""
        self._running.remove(request)
        self._holdings.leave(request)
        self._waiting.add(request)

    # -- messages out --------------------------------------------------------------------

    def _emit(self) -> None:
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._channel(outputs)
        if self._journal is not None:
            self._journal.publish()
