"""Plans steps on the CPU from known lengths alone; never waits for the device.

Order within the token budget of a step: running decodes, running prefill chunks, then
admissions. All rows go through one path: match deeper, grow, extend.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..config import SchedulerConfig
from .holdings import Holdings
from .request import Phase, Request
from .step import PromptLogprobs, Step, StepRow, TableWrite
from .waiting import WaitingQueue

MAX_MISFITS = 32  # waiting requests that may fail to fit before admission ends for a step


class Planner:
    """Chooses who computes how many tokens in a step.

    When slots run out the newest request is retracted: it leaves with its settled tokens
    cached and waits again. The oldest is never retracted for a newer one, so it finishes.
    """

    def __init__(self, config: SchedulerConfig, holdings: Holdings) -> None:
        self._config = config
        self._holdings = holdings
        self._reserve_share = config.new_token_reserve
        self._unsent: list[TableWrite] = []
        self.num_retractions = 0

    def write_again(self, writes: Iterable[TableWrite]) -> None:
        """Have the next step apply `writes` first: the device may have lost them."""
        self._unsent += writes

    def plan(
        self, number: int, running: list[Request], waiting: WaitingQueue
    ) -> tuple[Step, list[Request]] | None:
        """The next step and the request of each of its rows; None if there is nothing to do.

        Admitted requests move from `waiting` to `running`, retracted ones back.
        """
        draft = _Draft(number, self._config.max_step_tokens, running, waiting, self._unsent)
        decodes = [r for r in running if r.todo and not r.prefilling]
        prefills = [r for r in running if r.todo and r.prefilling]
        for request in decodes + prefills:
            if request.phase is Phase.RUNNING and draft.budget:
                self._plan_row(draft, request)
        if not any(r.phase is Phase.RETRACTING for r in running) and not draft.retracted:
            self._admit(draft)
            self._relax_reserve()
        self._unsent = [] if draft.rows else draft.writes
        if not draft.rows:
            return None
        return Step(number, tuple(draft.rows), tuple(draft.writes)), draft.requests

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
        while True:
            num_new = min(wanted, max(1, self._holdings.num_available))
            if write := self._holdings.grow(request, num_new, draft.number):
                return write
            victim = draft.newest_after(request)
            if victim is None:
                return None  # sits out: older requests, or steps in flight, hold the slots
            if not self._retract(draft, victim):
                return None

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

    def _admit(self, draft: _Draft) -> None:
        if not draft.waiting or not draft.budget or not self._holdings.num_free_rows:
            return
        misfits = 0
        for request in draft.waiting.ordered():
            if not draft.budget or not self._holdings.num_free_rows:
                return
            write = self._holdings.admit(request, self._reserve(request, draft.running))
            if write is None:
                misfits += 1
                if draft.waiting.must_not_be_passed(request) or misfits >= MAX_MISFITS:
                    return
                continue
            draft.waiting.admitted(request)
            draft.running.append(request)
            draft.writes.append(write)
            self._plan_row(draft, request)

    def _reserve(self, request: Request, running: list[Request]) -> int:
        """Slots that must stay available after admitting `request`.

        The rest of every running prompt, and of each output the share that is expected to
        be needed. A request that would run alone needs no reserve: it fits by admission.
        """
        if not running:
            return 0
        prompts = sum(max(0, r.promise_len - r.kv_len) for r in running)
        outputs = sum(r.samples_left for r in running) + request.samples_left
        return prompts + int(self._reserve_share * outputs)

    def _relax_reserve(self) -> None:
        low = self._config.new_token_reserve
        self._reserve_share = max(low, self._reserve_share * 0.999)


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

    def newest_after(self, request: Request) -> Request | None:
        """The newest running request, newer than `request`, that has no row yet."""
        newer = [
            r
            for r in self.running
            if r.phase is Phase.RUNNING and r.serial > request.serial and r not in self.requests
        ]
        return max(newer, key=lambda r: r.serial, default=None)

    def add(self, request: Request, num_new: int) -> None:
        """Add the row of a request that has just grown by `num_new` tokens."""
        end = request.kv_len
        known = request.num_ids + request.num_pending
        samples = end == known and request.samples_left > 0
        logprobs = _prompt_logprobs(request, end - num_new, num_new)
        self.rows.append(StepRow(request.table_row, end - num_new, num_new, samples, logprobs))
        self.requests.append(request)
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
