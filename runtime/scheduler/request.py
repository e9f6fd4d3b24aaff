"""One accepted request as its scheduler sees it: ids, cursors and what it holds of the cache.

    position   0 .......... tree_len ........... kv_len ........... num_ids (+ num_pending)
    KV         tree, locked | private slots      | to be computed
               ........ settled_len ........ <= kv_len: computed by steps that have settled

Ids at [num_ids, num_ids + num_pending) are sampled by steps in flight: the device knows
them, the scheduler not yet. Only the scheduler's modules touch a request.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from espalier.radix.cache import Handle

from ..grammar.closing import Ending
from ..grammar.guide import CompiledGrammar, Guide
from ..messages import RequestTimes, TokenizedRequest, TokenLogprob
from .ends import EndMatcher
from .step import IntArray


class Phase(Enum):
    """Where a request is.

    ARRIVED, COMPILING and WAITING hold nothing; ENDED may hold until settled.
    """

    ARRIVED = auto()  # not in a line yet
    COMPILING = auto()  # its grammar is being compiled
    WAITING = auto()
    RUNNING = auto()
    RETRACTING = auto()  # out of the batch; yields its memory when its last step has settled
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Request:
    """State of one sequence. `serial` numbers requests in order of arrival."""

    serial: int
    message: TokenizedRequest
    ends: EndMatcher
    ids: IntArray  # capacity: prompt + max_new_tokens
    num_ids: int
    slots: IntArray  # slot of each position; valid in [0, kv_len)
    phase: Phase = Phase.ARRIVED
    compilation: Future[CompiledGrammar] | None = None
    grammar: CompiledGrammar | None = None
    guide: Guide | None = None
    opening: tuple[int, ...] = ()  # forced at once, and to be told with the first sampled token
    num_opening: int = 0

    # Held while RUNNING, RETRACTING, and ENDED until the last step has settled.
    table_row: int = -1
    handle: Handle | None = None
    tree_len: int = 0
    kv_len: int = 0
    settled_len: int = 0
    promise_len: int = 0  # ids known at admission: promised to the tree as they are planned
    num_pending: int = 0
    last_step: int = -1
    has_unwritten: bool = False  # ids were forced that the device's table lacks

    # Bookkeeping over the request's life.
    times: RequestTimes = field(default_factory=RequestTimes)
    num_cached: int = 0  # prompt tokens that came from the cache
    num_forced: int = 0  # output tokens that no step has sampled
    num_jumps: int = 0  # sampled tokens behind which some were forced
    sampled_at: Ending | None = None  # the place in its grammar of the token that is sampled now
    num_retractions: int = 0
    num_retries: int = 0  # since its last new token
    quarantined: bool = False  # shares nothing: its logits were NaN once
    num_uncached: int = 0  # prompt tokens that the cache did not have when it came
    num_skips: int = 0  # requests behind it that were admitted when it did not fit
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prompt_logprobs_sent: bool = False

    @classmethod
    def accept(cls, serial: int, message: TokenizedRequest, ends: EndMatcher) -> Request:
        """A fresh request with room for everything it may ever hold."""
        prompt_len = len(message.input_ids)
        capacity = prompt_len + message.sampling.max_new_tokens
        ids = np.empty(capacity, np.int32)
        ids[:prompt_len] = message.input_ids
        request = cls(serial, message, ends, ids, prompt_len, np.empty(capacity, np.int32))
        if message.logprobs is not None and message.logprobs.prompt_start == 0:
            request.prompt_logprobs.append(TokenLogprob(int(ids[0]), None))  # nothing predicts it
        return request

    @property
    def holds_kv(self) -> bool:
        """Whether it has, or is about to get or give back, anything of the device."""
        return self.phase in (Phase.RUNNING, Phase.RETRACTING)

    @property
    def key(self) -> tuple[str, int]:
        return (self.message.rid, self.message.choice)

    @property
    def prompt_len(self) -> int:
        return len(self.message.input_ids)

    @property
    def num_outputs(self) -> int:
        """Output tokens that the scheduler knows."""
        return self.num_ids - self.prompt_len

    @property
    def in_first_prompt(self) -> bool:
        """Whether it is the prompt that is computed, and not again after a retraction."""
        return self.has_sampled_none and self.num_retractions == 0

    @property
    def has_sampled_none(self) -> bool:
        return self.num_outputs == self.num_opening

    @property
    def samples_left(self) -> int:
        """How many more tokens may be asked of the device, beyond those in flight."""
        return self.message.sampling.max_new_tokens - self.num_outputs - self.num_pending

    @property
    def todo(self) -> int:
        """Tokens that the next steps may compute: known or in flight, KV not yet planned.

        The KV of a last token is never needed: nothing is sampled after it.
        """
        if self.samples_left <= 0 and self.kv_len >= self.prompt_len:
            return 0
        return self.num_ids + self.num_pending - self.kv_len

    @property
    def prefilling(self) -> bool:
        """Whether tokens that were known at admission are still to be planned."""
        return self.kv_len < self.promise_len

    @property
    def match_cap(self) -> int:
        """How far a cache match may reach.

        One token must be computed for its logits, and so must every predecessor of a
        prompt token whose log-probability is wanted and not there yet.
        """
        wanted = self.next_prompt_logprob
        return self.num_ids - 1 if wanted is None else min(self.num_ids, wanted) - 1

    @property
    def next_prompt_logprob(self) -> int | None:
        """The first prompt position whose log-probability is wanted and not there yet."""
        options = self.message.logprobs
        if options is None or options.prompt_start is None:
            return None
        position = options.prompt_start + len(self.prompt_logprobs)
        return position if position < self.prompt_len else None

    def append(self, token_id: int) -> None:
        """Record the token that a settled step sampled."""
        self.ids[self.num_ids] = token_id
        self.num_ids += 1
        self.num_pending -= 1
        self.num_retries = 0

    def force(self, token_id: int) -> None:
        """Record a token that is certain, whatever the device says."""
        self.ids[self.num_ids] = token_id
        self.num_ids += 1
        self.num_forced += 1
        self.has_unwritten = True

    def respell(self, token_id: int) -> None:
        """The last output token is another one, which the device does not know yet."""
        self.ids[self.num_ids - 1] = token_id
        self.has_unwritten = True

    def vacated(self) -> None:
        """Forget everything held, after the cache and the row table have it back."""
        self.table_row = -1
        self.handle = None
        self.tree_len = self.kv_len = self.settled_len = 0
        self.num_pending = 0
