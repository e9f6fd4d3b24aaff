"""Plans steps on the CPU from known lengths alone; never waits for the device.

Order within the token budget of a step: running decodes, running prefill chunks, then
admissions. All rows go through one path: match deeper, grow, extend.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..config import SchedulerConfig
from .holdings import Holdings
from .request import Phase, Request
from .slo import PrefillAllowance, ServiceGoals
from .step import PromptLogprobs, Step, StepRow, TableWrite
from .waiting import WaitingQueue

MAX_MISFITS = 32  # waiting requests that may fail to fit before admission ends for a step


class Planner:
    """Chooses who computes how many tokens in a step.

    Requests are ranked by arrival, under the policy `priority` by priority first. When slots
    run out the last in rank is retracted: it leaves with its settled tokens cached and waits
    again. None is retracted for one behind it, so the first always finishes.
    """

    def __init__(self, config: SchedulerConfig, holdings: Holdings, goals: ServiceGoals) -> None:
        self._config = config
        self._holdings = holdings
        self._goals = goals
        self._by_priority = config.policy == "priority"
        self._reserve_share = config.new_token_reserve
        self._unsent: list[TableWrite] = []
        self.num_retractions = 0

    def write_again(self, writes: Iterable[TableWrite]) -> None:
        """Have the next step apply `writes` first: the device may have lost them."""
        self._unsent += writes

    def forget_writes(self) -> None:
        """No request that ran before runs any more."""
        self._unsent = []

    def plan(
        self, number: int, running: list[Request], waiting: WaitingQueue
    ) -> tuple[Step, list[Request]] | None:
        """The next step and the request of each of its rows; None if there is nothing to do.

        Admitted requests move from `waiting` to `running`, retracted ones back.
        """
        draft = _Draft(number, self._config.max_step_tokens, running, waiting, self._unsent)
        self._preempt(draft)
        draft.retracted = _any_retracting(running)  # else there is room at once
        decodes = [r for r in running if r.todo and not r.prefilling]
        prefills = [r for r in running if r.todo and r.prefilling]
        if self._by_priority:
            prefills.sort(key=self._rank)
        self._plan_rows(draft, decodes)
        draft.allowance = self._goals.prefill_allowance(draft.rows)
        self._plan_rows(draft, prefills)
        if not draft.retracted and not _any_retracting(running):
            self._admit(draft)
            self._relax_reserve()
        self._unsent = [] if draft.rows else draft.writes
        if not draft.rows:
            return None
        return Step(number, tuple(draft.rows), tuple(draft.writes)), draft.requests

    def _plan_rows(self, draft: _Draft, requests: list[Request]) -> None:
        for request in requests:
            if request.phase is Phase.RUNNING and draft.budget:
                self._plan_row(draft, request)

    def _plan_row(self, draft: _Draft, request: Request) -> None:
        if write := self._holdings.match_deeper(request):
            draft.writes.append(write)
        write = self._grow(draft, request)
        if write is not None:
            draft.writes.append(write)
            draft.add(request, len(write.slots))

    def _grow(self, draft: _Draft, request: Request) -> TableWrite | None:
        """Slots for the request's next tokens, retracting newer requests as needed; or None."""
        wanted = min(request.todo, draft.budget, self._config.max_chunk_len)
        if request.prefilling:
            wanted = draft.allowance.tokens(request.kv_len, wanted)
        while wanted:
            num_new = min(wanted, max(1, self._holdings.num_available))
            if write := self._holdings.grow(request, num_new, draft.number):
                return write
            victim = self._victim(draft, behind=self._rank(request))
            if victim is None:
                return None  # sits out: others before it, or steps in flight, hold the slots
            if not self._retract(draft, victim):
                return None
        return None  # it would keep the decodes of this step waiting

    def _retract(self, draft: _Draft, victim: Request) -> bool:
        """Take `victim` out; whether its slots are back now, or when its last step settles."""
        draft.retracted = True
        self.num_retractions += 1
        victim.num_retractions += 1
        self._reserve_share = min(1.0, self._reserve_share + 0.1)
        if self._holdings.touched_in_flight(victim):
            victim.phase = Phase.RETRACTING
            return False
        draft.running.remove(victim)
        self._holdings.leave(victim)
        draft.waiting.add(victim)
        return True

    def _rank(self, request: Request) -> tuple[int, int]:
        """The lowest is the last to be retracted."""
        return (-request.message.hints.priority if self._by_priority else 0, request.serial)

    def _victim(self, draft: _Draft, behind: tuple[int, int]) -> Request | None:
        """The last running request in rank that is behind this one and has no row yet."""
        candidates = [
            r
            for r in draft.running
            if r.phase is Phase.RUNNING and self._rank(r) > behind and r not in draft.requests
        ]
        return max(candidates, key=self._rank, default=None)

    def _preempt(self, draft: _Draft) -> None:
        """Make room for the first waiting request, if its priority is so much higher."""
        gap = self._config.preemption_gap
        if not self._by_priority or gap is None or _any_retracting(draft.running):
            return
        request = draft.waiting.next(())
        if request is None:
            return
        beneath = (gap - request.message.hints.priority, -1)
        while not self._has_room(request, draft.running):
            victim = self._victim(draft, behind=beneath)
            if victim is None or not self._retract(draft, victim):
                return

    def _has_room(self, request: Request, running: list[Request]) -> bool:
        if not self._holdings.num_free_rows:
            return False
        return self._holdings.fits(request, self._reserve(request, _Owed.to(running)))

    def _admit(self, draft: _Draft) -> None:
        misfits: list[Request] = []
        tried: set[int] = set()
        owed = _Owed.to(draft.running)
        while draft.has_room_for_prefill and self._holdings.num_free_rows:
            request = draft.waiting.next(tried)
            if request is None:
                return
            write = self._holdings.admit(request, self._reserve(request, owed))
            if write is None:
                tried.add(request.serial)
                misfits.append(request)
                if draft.waiting.is_overdue(request) or len(misfits) >= MAX_MISFITS:
                    return
                continue
            draft.waiting.admitted(request)
            for misfit in misfits:
                misfit.num_skips += 1
            draft.running.append(request)
            draft.writes.append(write)
            self._plan_row(draft, request)
            owed = _Owed.to(draft.running)

    def _reserve(self, request: Request, owed: _Owed | None) -> int:
        """Slots that must stay available after admitting `request`.

        The rest of every running prompt, and of each output the share that is expected to
        be needed. A request that would run alone needs no reserve: it fits by admission.
        """
        if owed is None:
            return 0
        return owed.prompts + int(self._reserve_share * (owed.outputs + request.samples_left))

    def _relax_reserve(self) -> None:
        low = self._config.new_token_reserve
        self._reserve_share = max(low, self._reserve_share * 0.999)


@dataclass(frozen=True, slots=True)
class _Owed:
    """Tokens that running requests have no slots for yet, of their prompts and their outputs."""

    prompts: int
    outputs: int

    @classmethod
    def to(cls, running: list[Request]) -> _Owed | None:
        """None if nothing runs."""
        if not running:
            return None
        prompts = sum(max(0, r.promise_len - r.kv_len) for r in running)
        return cls(prompts, sum(r.samples_left for r in running))


def _any_retracting(running: list[Request]) -> bool:
    return any(request.phase is Phase.RETRACTING for request in running)


class _Draft:
    """A step in the making, and the lists that its making changes."""

    def __init__(
        self,
        number: int,
        budget: int,
        running: list[Request],
        waiting: WaitingQueue,
        writes: list[TableWrite],
    ) -> None:
        self.number = number
        self.budget = budget
        self.running = running
        self.waiting = waiting
        self.rows: list[StepRow] = []
        self.requests: list[Request] = []
        self.writes = writes
        self.retracted = False
        self.allowance = PrefillAllowance(None, 0.0)

    @property
    def has_room_for_prefill(self) -> bool:
        return self.budget > 0 and not self.allowance.is_used_up

    def add(self, request: Request, num_new: int) -> None:
        """Add the row of a request that has just grown by `num_new` tokens."""
        end = request.kv_len
        if end <= request.promise_len:
            self.allowance.use(end - num_new, num_new)
        known = request.num_ids + request.num_pending
        samples = end == known and request.samples_left > 0
        logprobs = _prompt_logprobs(request, end - num_new, num_new)
        self.rows.append(StepRow(request.table_row, end - num_new, num_new, samples, logprobs))
        self.requests.append(request)
        self.waiting.charge(request, num_new)
        request.num_pending += samples
        self.budget -= num_new


def _prompt_logprobs(request: Request, start: int, num_new: int) -> PromptLogprobs | None:
    """Which hidden states of [start, start + num_new) predict wanted prompt tokens."""
    options, wanted = request.message.logprobs, request.next_prompt_logprob
    if options is None or wanted is None:
        return None
    first = max(start + 1, wanted)
    end = min(start + num_new + 1, request.prompt_len)
    if first >= end:
        return None
    return PromptLogprobs(first - 1 - start, request.ids[first:end], options.top)
