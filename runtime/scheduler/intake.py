"""How a request comes in: refused, waiting for its grammar, or waiting for its turn."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from ..config import SchedulerConfig
from ..errors import InvalidRequest, Overloaded
from ..grammar.guide import CompiledGrammar
from ..grammar.jumping import Jumper
from ..grammar.service import GrammarService
from ..messages import FinishReason, TokenizedRequest
from .control import GrammarReady
from .ends import EndMatcher
from .holdings import Holdings
from .request import Request
from .roster import Roster
from .sampling_rows import Vocabulary
from .settling import open_output
from .slo import ServiceGoals

_SHUTDOWN = FinishReason(kind="abort", message="the engine is shutting down", shutdown=True)


class Intake:
    """Brings requests into a roster. `tell` is called, on any thread, with compiled grammars."""

    def __init__(
        self,
        config: SchedulerConfig,
        roster: Roster,
        holdings: Holdings,
        goals: ServiceGoals,
        grammars: GrammarService,
        vocabulary: Vocabulary,
        jumper: Jumper | None,
        tell: Callable[[GrammarReady], None],
    ) -> None:
        self.is_closed = False
        self._max_step_tokens = config.max_step_tokens
        self._roster = roster
        self._holdings = holdings
        self._goals = goals
        self._grammars = grammars
        self._vocabulary = vocabulary
        self._jumper = jumper
        self._tell = tell
        self._next_serial = 0

    def close(self) -> None:
        """End every request with an abort, and all that come from now on."""
        self.is_closed = True
        self._roster.abort(lambda _: True, _SHUTDOWN)

    def submit(self, messages: tuple[TokenizedRequest, ...]) -> None:
        """Accept all of these, then place each: an error with one must not lose the others."""
        for request in [self._accept(message) for message in messages]:
            self.place(request)

    def place(self, request: Request) -> None:
        """Put an accepted request where it waits, or refuse it."""
        if self.is_closed:
            self._roster.end_early(request, _SHUTDOWN)
            return
        if self._goals.may_refuse and (refusal := self._refusal(request)):
            self._roster.end_early(request, refusal)
            return
        constraint = request.message.constraint
        if constraint is None:
            self._roster.waiting.add(request)
            return
        compilation = self._grammars.compile(constraint)
        self._roster.start_compiling(request, compilation)
        compilation.add_done_callback(
            lambda grammar: self._tell(GrammarReady(request.serial, grammar))
        )

    def grammar_ready(self, serial: int, grammar: Future[CompiledGrammar]) -> None:
        """A grammar has been compiled, or not; its request may have ended meanwhile."""
        request = self._roster.compiled(serial)
        if request is None:
            return
        error = grammar.exception()
        if error is not None:
            self._roster.end_early(request, _no_grammar(error))
            return
        compiled = grammar.result()
        max_new_tokens = request.message.sampling.max_new_tokens
        if compiled.min_tokens > max_new_tokens:
            message = (
                f"max_new_tokens is {max_new_tokens}, but the shortest output that is known to "
                f"satisfy the constraint has {compiled.min_tokens} tokens, its end included"
            )
            reason = FinishReason(kind="error", message=message, bad_request=True)
            self._roster.end_early(request, reason)
            return
        request.grammar, request.guide = compiled, compiled.guide()
        if end := open_output(request, self._jumper):
            self._roster.end(request, end)
        else:
            self._roster.waiting.add(request)

    def _accept(self, message: TokenizedRequest) -> Request:
        ends = EndMatcher(
            message.sampling, self._vocabulary.eos_ids, self._vocabulary.visible_bytes
        )
        request = Request.accept(self._next_serial, message, ends)
        self._next_serial += 1
        self._roster.admit(request)
        return request

    def _refusal(self, request: Request) -> FinishReason | None:
        """Why a request is not accepted that would get its first token too late."""
        request.num_uncached = self._holdings.uncached_len(request)
        running = self._roster.running
        started = sum(r.promise_len - r.kv_len for r in running if r.prefilling)
        late = self._goals.lateness(
            request.num_uncached + self._roster.waiting.num_uncached + started,
            [r for r in running if not r.prefilling],
            self._max_step_tokens,
        )
        if late is None:
            return None
        message = f"the first token would come {late:.1f} s later than promised; try again later"
        return FinishReason(kind="error", message=message, retry_after_s=late)


def _no_grammar(error: BaseException) -> FinishReason:
    """Why a request ends whose grammar can't be had."""
    return FinishReason(
        kind="error",
        message=str(error),
        bad_request=isinstance(error, InvalidRequest),
        retry_after_s=error.retry_after_s if isinstance(error, Overloaded) else None,
    )
