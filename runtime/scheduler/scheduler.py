"""The scheduler: the loop that runs requests in steps, and the order of all that it does.

One loop for overlap depth 0 (for long steps, or all) and 1. With a forward in flight the CPU
settles the step before, prepares the masks of this one and plans the next. Token ids only,
never text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from espalier.radix.cache import RadixCache
from espalier.radix.leases import Leases

from ..config import SchedulerConfig
from ..grammar.jumping import Jumper
from ..grammar.service import GrammarService
from ..messages import AbortRequest, FinishReason, SubmitRequests, TokenOutput
from ..runner.protocol import Runner
from .audit import IdleAudit
from .control import (
    AbortAll,
    FlushCache,
    GrammarReady,
    Message,
    ReportStats,
    SendSnapshot,
    Shutdown,
    VerdictReady,
)
from .depth import Depth
from .flight import Flight
from .holdings import Holdings
from .intake import Intake
from .measures import Measures
from .phases import LoopWatch
from .planner import Planner
from .policies import line_maker
from .rebuild import Patience, reason_of, report
from .recovery import Recovery
from .request import Phase, Request
from .roster import Roster
from .sampling_rows import Vocabulary, sample_rows
from .settling import Settlement, settle_row
from .slo import ServiceGoals
from .stats import SchedulerHistograms, SchedulerStats
from .step import IntArray
from .tree_journal import TreeJournal
from .verdicts import Verdicts
from .waiting import WaitingQueue

logger = logging.getLogger(__name__)


Channel = Callable[[list[TokenOutput]], None]


class Scheduler:
    """Runs requests in steps; everything but `inbox` and `stats` belongs to one thread.

    `clock` is in seconds. A `journal` observes the cache already. Without a `jumper` every
    output token is sampled.
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
        jumper: Jumper | None = None,
        journal: TreeJournal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self._depth = Depth(config.max_overlap_tokens if config.overlap else 0)
        self._cache = cache
        self._runner = runner
        self._grammars = grammars
        self._vocabulary = vocabulary
        self._channel = channel
        self._journal = journal
        self._jumper = jumper
        max_leased = int(config.max_leased_share * cache.num_slots)
        self.leases = Leases(cache, max_tokens=max_leased, now=clock)
        self._holdings = Holdings(
            cache, self.leases, config.max_running_requests, share=config.radix_cache
        )
        self._goals = ServiceGoals(config.slo_ttft_s, config.slo_itl_s)
        self._planner = Planner(config, self._holdings, self._goals)
        self._measures = Measures(clock, goal_ttft_s=config.slo_ttft_s, goal_itl_s=config.slo_itl_s)
        cache.watch_evictions(self._measures.evicted)
        waiting = WaitingQueue(
            line_maker(config.policy, cache, share=config.radix_cache),
            config.max_passes,
            aging=config.policy != "priority",
            weights=config.tenant_weights,
        )
        self._verdicts = Verdicts(grammars, vocabulary.visible_bytes, self.inbox.put)
        self._roster = Roster(waiting, self._holdings, self._measures, self._verdicts)
        self._intake = Intake(
            config,
            self._roster,
            self._holdings,
            self._goals,
            grammars,
            vocabulary,
            jumper,
            self.inbox.put,
        )
        self._recovery = Recovery(self._roster, self._holdings, self._planner)
        self._in_flight: Flight | None = None
        self._newest: Flight | None = None  # of all that were launched
        self._audit = IdleAudit(self._holdings.recounting, clock)
        self._patience = Patience()
        self._next_step = 0
        self._watch = LoopWatch(clock)
        self._started_at = time.time()

    # -- the loop ------------------------------------------------------------------------

    def run(self) -> None:
        """Work until a `Shutdown` message has been obeyed; sleeps while there is nothing."""
        while not (self._intake.is_closed and self.idle):
            self.step(wait=not self._intake.is_closed)

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
            self._depth.observe_turn(self._watch.busy_s)
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
        if flight is not None and self._depth.ends_first(flight):
            self._in_flight = self._settle(flight, successor=None)
            self._watch.lap("settle")
        return True

    @property
    def idle(self) -> bool:
        """Nothing to compute: no request waits or runs and no step is in flight."""
        return not (self._roster.waiting or self._roster.running or self._in_flight)

    @property
    def stats(self) -> SchedulerStats:
        totals = self._roster.totals
        return SchedulerStats(
            num_forward_passes=totals.forward_passes,
            num_computed_tokens=totals.computed,
            num_prompt_tokens=totals.prompt,
            num_cached_tokens=totals.cached,
            num_output_tokens=totals.outputs,
            num_forced_tokens=totals.forced,
            num_retractions=self._planner.num_retractions,
            num_failed_steps=totals.failed_steps,
            num_rebuilds=totals.rebuilds,
            num_evicted_tokens=self._measures.num_evicted,
            num_judged=dict(self._measures.num_judged),
            num_structured=dict(self._verdicts.num_structured),
            num_violations=self._verdicts.num_violations,
            num_running=len(self._roster.running),
            num_waiting=len(self._roster.waiting) + len(self._roster.compiling),
            num_compiling=len(self._roster.compiling),
            pool_tokens=self._cache.num_slots,
            free_tokens=self._cache.num_free,
            evictable_tokens=self._cache.num_evictable,
            leased_tokens=self._cache.num_leased,
            yieldable_tokens=self._cache.num_yieldable,
            tree_tokens=self._cache.num_cached,
            started_at=self._started_at,
            grammars=self._grammars.stats,
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
        return [r.slots[r.tree_len : r.kv_len] for r in self._roster.running]

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
                self._intake.submit(requests)
            case AbortRequest(rid):
                reason = FinishReason(kind="abort", message="aborted by the client")
                self._roster.abort(lambda request: request.message.rid == rid, reason)
            case GrammarReady(serial, grammar):
                self._intake.grammar_ready(serial, grammar)
            case VerdictReady(serial, verdict):
                self._roster.verdict_ready(serial, verdict)
            case AbortAll(why):
                self._roster.abort(lambda _: True, FinishReason(kind="abort", message=why))
            case FlushCache(reply):
                self._flush(reply)
            case ReportStats(tell):
                self._expire_leases()
                tell(self.stats)
            case SendSnapshot():
                if self._journal is not None:
                    self._journal.publish_all(self._cache.tree)
            case Shutdown():
                self._intake.close()

    def _expire_leases(self) -> None:
        if self.leases.expire():
            self._audit.disturb()

    def _flush(self, reply: Future[int]) -> None:
        try:
            reply.set_result(self._holdings.flush())
        except BaseException as error:
            reply.set_exception(error)
            raise

    # -- a step --------------------------------------------------------------------------

    def _launch(self) -> Flight | None:
        planned = self._planner.plan(self._next_step, self._roster.running, self._roster.waiting)
        now = self._watch.lap("plan")
        if planned is None:
            if self._in_flight is None:
                self._break_deadlock()
            return None
        step, requests = planned
        self._next_step += 1
        self._roster.totals.forward_passes += 1
        self._roster.totals.computed += step.num_tokens
        self._measures.scheduled(requests, now)
        self._newest = Flight(self._runner.launch(step), requests)
        self._watch.lap("launch")
        return self._newest

    def _sample(self, flight: Flight | None) -> None:
        """Everything that sampling this step needs is known once the one before has settled."""
        if flight is None:
            return
        work = {
            index: (request, row)
            for index, (request, row) in enumerate(
                zip(flight.requests, flight.launched.step.rows, strict=True)
            )
            if flight.samples(index) and request.phase is not Phase.ENDED
        }
        flight.launched.sample(sample_rows(work, self._vocabulary))

    def _settle(self, flight: Flight | None, successor: Flight | None) -> Flight | None:
        """Take the results of `flight`; the successor, or None if it had to be discarded."""
        if flight is None:
            return successor
        try:
            result = flight.launched.result()
        except Exception as error:  # whatever the device raises ends or retries its requests
            logger.exception("step %d failed", flight.number)
            self._recovery.retry(flight, successor, error)
            return None
        now = self._watch.lap("wait")
        self._measures.device.observe(result.device_s)
        self._depth.observe_step(result.device_s)
        self._patience.restore()
        self._goals.observe(flight.launched.step, result.device_s)
        self._holdings.settle(flight.number)
        poisoned: list[Request] = []
        for index, (request, row) in enumerate(
            zip(flight.requests, flight.launched.step.rows, strict=True)
        ):
            if request.phase is Phase.ENDED:
                continue
            sampled = result.sampled[index] if flight.samples(index) else None
            prompt_logprobs = result.prompt_logprobs.get(index, [])
            request.settled_len = flight.settled_len(index)
            settlement = settle_row(request, row, sampled, prompt_logprobs, self._jumper)
            if settlement.poisoned:
                poisoned.append(request)
            if sampled is not None:
                self._depth.observe_token(request, jumped=settlement.jumped)
            if settlement.jumped and successor is not None:
                self._replace_sampling(successor, request, settlement)
            self._roster.deliver(request, settlement, now)
        if poisoned:
            self._recovery.withdraw_poisoned(poisoned, flight, successor)
            return None
        return successor

    def _replace_sampling(
        self, successor: Flight, request: Request, settlement: Settlement
    ) -> None:
        """The step in flight was launched before it was known what comes next."""
        index = successor.replace_sampling(request)
        if settlement.respelled and index is not None:
            successor.void.add(index)
            self._holdings.take_back(request)

    def _break_deadlock(self) -> None:
        """Requests of which none can be planned, with nothing in flight: a bug here.

        The newest one ends with an error, so that the others go on and nobody hangs.
        """
        request = [*self._roster.waiting, *self._roster.running][-1]
        logger.error("no request can be planned; ending %s", request.key)
        message = "the scheduler could not place this request; this is a bug"
        self._roster.end_early(request, FinishReason(kind="error", message=message))

    def _rebuild(self, error: Exception) -> None:
        """Start over with an empty cache; raises `error` when that has not helped before."""
        self._patience.lose()
        if self._patience.is_lost:
            raise error
        logger.critical(
            "%s", report(error, self._cache, self._roster.open.values()), exc_info=error
        )
        if self._newest is not None:
            self._newest.launched.discard()
        self._in_flight = None
        self._roster.totals.rebuilds += 1
        reason = reason_of(error)
        for request in list(self._roster.open.values()):
            if self._patience.everyone_ends or self._roster.is_lost_without_kv(request):
                request.vacated()
                self._roster.finish(request, request.ends.so_far(reason))
        self._planner.forget_writes()
        self._holdings.reset(self._next_step - 1)
        self._roster.start_over()
        for request in [r for r in self._roster.open.values() if r.phase is Phase.ARRIVED]:
            self._intake.place(request)

    # -- messages out --------------------------------------------------------------------

    def _emit(self) -> None:
        if outputs := self._roster.take_outputs():
            self._channel(outputs)
        if self._journal is not None:
            self._journal.publish()
