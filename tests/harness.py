"""Drives a real scheduler over a real model in the test's own thread, step by step.

After every step the cache's books are recomputed from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np

from espalier.radix.cache import RadixCache
from espalier.radix.check import check
from espalier.radix.eviction import strategy_of
from espalier.runtime.config import KVStorage, SchedulerConfig
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.jumping import Jumper
from espalier.runtime.grammar.service import GrammarService
from espalier.runtime.grammar.vocabulary import Vocabulary as GrammarVocabulary
from espalier.runtime.messages import (
    AbortRequest,
    Constraint,
    FinishReason,
    LogprobOptions,
    SchedulingHints,
    SubmitRequests,
    TokenizedRequest,
    TokenLogprob,
    TokenOutput,
    Usage,
)
from espalier.runtime.models.config import ModelConfig
from espalier.runtime.models.packed import AnyWeights
from espalier.runtime.runner.build import AnyBackend, build_backend
from espalier.runtime.runner.device_runner import DeviceRunner
from espalier.runtime.runner.kv_pool import KVPool
from espalier.runtime.runner.protocol import Runner
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.request import Request
from espalier.runtime.scheduler.sampling_rows import Vocabulary
from espalier.runtime.scheduler.scheduler import Scheduler
from espalier.runtime.scheduler.tree_journal import TreeJournal
from tests.local_grammars import LocalGrammars

Key = tuple[str, int]


@dataclass(slots=True)
class Outcome:
    """What a client has got of one request so far."""

    request: TokenizedRequest
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prompt_logprobs: list[TokenLogprob] | None = None
    forced: list[int] = field(default_factory=list[int])
    finals: list[TokenOutput] = field(default_factory=list[TokenOutput])

    @property
    def finish(self) -> FinishReason:
        assert len(self.finals) == 1, f"{len(self.finals)} final messages"
        finish = self.finals[0].finish
        assert finish is not None
        return finish

    @property
    def usage(self) -> Usage:
        usage = self.finals[0].usage
        assert usage is not None
        return usage


class Harness:
    """A scheduler with its device, and what its clients see.

    The weights choose the kernels: native for packed ones. `backend_of` may wrap them.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        weights: AnyWeights,
        vocabulary: Vocabulary,
        *,
        pool_tokens: int = 4096,
        context_len: int = 512,
        grammars: GrammarService | None = None,
        jumper: Jumper | None = None,
        check_books: bool = True,
        kv_storage: KVStorage = "float32",
        num_threads: int = 2,
        backend_of: Callable[[AnyBackend], AnyBackend] = lambda backend: backend,
        journal: TreeJournal | None = None,
        clock: Callable[[], float] = monotonic,
        **options: Any,
    ) -> None:
        options = {"max_running_requests": 16, **options}
        config = SchedulerConfig(**options)
        config.validate()
        self._clock = clock
        self.cache = RadixCache(pool_tokens, strategy=strategy_of(config.eviction), now=clock)
        self.kv_pool = KVPool(model_config, pool_tokens, kv_storage)
        backend = build_backend(
            model_config,
            weights,
            self.kv_pool,
            config,
            context_len=context_len,
            num_threads=num_threads,
        )
        self.device = DeviceRunner(backend_of(backend))
        self.runner: Runner = self.device
        self._config = config
        self.overlaps = config.overlap and config.max_overlap_tokens > 0
        self._vocabulary = vocabulary
        self._grammars = grammars
        self._jumper = jumper
        self._check_books = check_books
        self._journal = journal
        if journal is not None:
            self.cache.observe(journal)
        self.max_rebuilds = 0
        """How often the scheduler may find its books wrong in this test."""
        self.outcomes: dict[Key, Outcome] = {}
        self.scheduler = self._scheduler()
        self._next = 0

    def _scheduler(self) -> Scheduler:
        grammars = self._grammars
        if grammars is None:
            one_token = GrammarVocabulary((b"x",), (), (), self._vocabulary.width)
            grammars = LocalGrammars(Engines(one_token))
            self._grammars = grammars
        return Scheduler(
            self._config,
            self.cache,
            self.runner,
            grammars,
            self._vocabulary,
            self._deliver,
            jumper=self._jumper,
            journal=self._journal,
            clock=self._clock,
        )

    def wrap_runner(self, runner: Runner) -> None:
        """Put `runner` between the scheduler and the device; before the first request."""
        self.runner = runner
        self.scheduler = self._scheduler()

    def close(self) -> None:
        self.device.close()
        if self._grammars is not None:
            self._grammars.close()

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            outcome = self.outcomes[output.rid, output.choice]
            assert not outcome.finals, f"{output.rid} got a message after its final one"
            outcome.forced += (len(outcome.ids) + place for place in output.forced)
            outcome.ids += output.ids
            outcome.logprobs += output.logprobs or ()
            if output.prompt_logprobs is not None:
                assert outcome.prompt_logprobs is None, "prompt logprobs came twice"
                outcome.prompt_logprobs = list(output.prompt_logprobs)
            if output.finish is not None:
                outcome.finals.append(output)
                assert len(outcome.forced) == outcome.usage.forced_tokens

    def submit(
        self,
        ids: Sequence[int],
        *,
        rid: str | None = None,
        choices: int = 1,
        constraint: Constraint | None = None,
        logprobs: LogprobOptions | None = None,
        namespace: tuple[str, ...] = (),
        hints: SchedulingHints | None = None,
        timed: bool = False,
        **sampling: Any,
    ) -> Outcome:
        """Send a request (or `choices` of one id); the outcome of the first choice."""
        self._next += 1
        rid = rid or f"r{self._next}"
        sampling = {"temperature": 0.0, "seed": 0, "ignore_eos": True, **sampling}
        params = SamplingParams(**sampling)
        requests = [
            TokenizedRequest(
                rid=rid,
                choice=choice,
                input_ids=np.array(ids, np.int32),
                sampling=params,
                constraint=constraint,
                logprobs=logprobs,
                namespace=namespace,
                hints=hints or SchedulingHints(),
                timed=timed,
            )
            for choice in range(choices)
        ]
        for request in requests:
            self.outcomes[rid, request.choice] = Outcome(request)
        self.scheduler.inbox.put(SubmitRequests(tuple(requests)))
        return self.outcomes[rid, 0]

    def request(self, outcome: Outcome) -> Request:
        """What the scheduler has of an open request, to be looked at."""
        open_ = self.scheduler._roster.open  # pyright: ignore[reportPrivateUsage]
        key = outcome.request.rid, outcome.request.choice
        return next(request for request in open_.values() if request.key == key)

    def abort(self, rid: str) -> None:
        self.scheduler.inbox.put(AbortRequest(rid))

    def step(self, *, wait: bool = False) -> bool:
        worked = self.scheduler.step(wait=wait)
        assert self.scheduler.stats.num_rebuilds <= self.max_rebuilds, "see the log"
        if self._check_books:
            check(self.cache, self.scheduler.private_slots(), self.scheduler.leases)
        return worked

    def run(self, max_steps: int = 100_000) -> None:
        """Until every request has its final message."""
        for _ in range(max_steps):
            if not self.step(wait=self._is_compiling) and all(
                o.finals for o in self.outcomes.values()
            ):
                break
        for key, outcome in self.outcomes.items():
            assert len(outcome.finals) == 1, f"{key}: {len(outcome.finals)} final messages"

    @property
    def _is_compiling(self) -> bool:
        """Whether news of a grammar, or of a text under one, is to come."""
        scheduler = self.scheduler
        num_held = scheduler._verdicts.num_held  # pyright: ignore[reportPrivateUsage]
        return bool(num_held or scheduler._roster.compiling)  # pyright: ignore[reportPrivateUsage]

    def assert_drained(self) -> None:
        """Nothing is held any more but by leases, and they alone hold what isn't evictable."""
        check(self.cache, (), self.scheduler.leases)
        assert self.cache.num_in_use == 0 and self.cache.num_pending == 0
        assert self.cache.num_evictable + self.cache.num_yieldable == self.cache.num_cached
        assert self.cache.num_yieldable == self.cache.num_leased
        assert self.scheduler.num_free_rows == self._config.max_running_requests
