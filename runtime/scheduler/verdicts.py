"""The last messages of requests under a schema, held until their text has been validated.

Such a request has ended and holds nothing else. Knows no steps, and not how texts are validated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import get_args

from msgspec.structs import replace

from ..grammar.guide import CompiledGrammar, Guide
from ..grammar.service import GrammarService
from ..grammar.validation import Verdict
from ..messages import GrammarReport, JsonSchema, TokenOutput
from .control import VerdictReady
from .ends import VisibleBytes
from .request import Request
from .stats import Judgement

logger = logging.getLogger(__name__)

_CUT_OFF = Verdict(None, "the text was cut off")
_GIVEN_UP = Verdict(None, "it was not checked: the request was aborted before")


@dataclass(frozen=True, slots=True)
class _Held:
    request: Request
    grammar: CompiledGrammar
    final: TokenOutput


class Verdicts:
    """`tell` is called, on any thread, with verdicts."""

    def __init__(
        self,
        grammars: GrammarService,
        visible_bytes: VisibleBytes,
        tell: Callable[[VerdictReady], None],
    ) -> None:
        self.num_structured: dict[Judgement, int] = dict.fromkeys(get_args(Judgement), 0)
        self.num_violations = 0
        self._grammars = grammars
        self._visible_bytes = visible_bytes
        self._tell = tell
        self._held: dict[int, _Held] = {}  # by the request's serial

    @property
    def num_held(self) -> int:
        return len(self._held)

    def report(self, request: Request, final: TokenOutput) -> TokenOutput | None:
        """The last message with what is to be said of its grammar; None if it is held: `ready`
        or `give_up` will return it, whichever comes first."""
        guide, grammar = request.guide, request.grammar
        if guide is None or grammar is None:
            return final
        constraint = request.message.constraint
        if not isinstance(constraint, JsonSchema):
            return _reported(final, grammar, Verdict(None, ""))
        text = self._whole_text(request, guide, final)
        if text is None:
            return _reported(final, grammar, _CUT_OFF)
        self._held[request.serial] = _Held(request, grammar, final)
        checking = self._grammars.check(constraint.schema, text)
        checking.add_done_callback(
            lambda verdict: self._tell(VerdictReady(request.serial, verdict))
        )
        return None

    def ready(self, serial: int, verdict: Future[Verdict]) -> TokenOutput | None:
        """The message that waited for this; None if it was given up."""
        held = self._held.pop(serial, None)
        return None if held is None else self._judged(held, _verdict_of(verdict))

    def give_up(self, chosen: Callable[[Request], bool]) -> list[TokenOutput]:
        """The messages of these requests, without a verdict."""
        given_up = [serial for serial, held in self._held.items() if chosen(held.request)]
        return [self._judged(self._held.pop(serial), _GIVEN_UP) for serial in given_up]

    def _whole_text(self, request: Request, guide: Guide, final: TokenOutput) -> str | None:
        """What the client gets, if it is all that the grammar asks for."""
        finish = final.finish
        if finish is None or finish.kind not in ("stop", "length") or not guide.is_completed:
            return None
        last = request.num_ids - guide.is_terminated  # a stop token is no text
        ids: list[int] = request.ids[request.prompt_len : last].tolist()
        text = b"".join(map(self._visible_bytes, ids))
        if len(text) != final.num_text_bytes:  # a stop of the caller's own
            return None
        return text.decode("utf-8", "replace")

    def _judged(self, held: _Held, verdict: Verdict) -> TokenOutput:
        self.num_structured[_JUDGEMENTS[verdict.valid]] += 1
        if verdict.valid is False and held.grammar.is_whole:
            self.num_violations += 1
            logger.error(
                "the output of %s breaks its schema, though its grammar enforces it: %s",
                *(held.request.key, verdict.trouble),
            )
        return _reported(held.final, held.grammar, verdict)


_JUDGEMENTS: dict[bool | None, Judgement] = {True: "valid", False: "invalid", None: "unknown"}


def _verdict_of(checked: Future[Verdict]) -> Verdict:
    """Whatever becomes of a check, it must not keep a message."""
    try:
        return checked.result()
    except Exception as error:  # a bug there
        logger.exception("a text could not be checked")
        return Verdict(None, f"it was not checked: {error}")


def _reported(final: TokenOutput, grammar: CompiledGrammar, verdict: Verdict) -> TokenOutput:
    report = GrammarReport(
        engine=grammar.engine_name,
        notes=grammar.notes,
        valid=verdict.valid,
        trouble=verdict.trouble,
    )
    return replace(final, grammar=report)
