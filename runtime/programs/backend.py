"""The one interface between programs and whatever generates for them; token ids inside.

The in-process engine implements it, the tokenizer process's client, and an endpoint that
talks HTTP; tests have a scripted one. No torch here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec

from ..messages import (
    Constraint,
    FinishReason,
    GrammarReport,
    LogprobOptions,
    RequestTimes,
    SchedulingHints,
    TokenLogprob,
    Usage,
)
from ..sampling.params import SamplingParams


class TextPiece(msgspec.Struct, frozen=True):
    """A stretch of prompt text; control tokens are recognised in it only if `control`."""

    text: str
    control: bool = False


class RoleMarkers(msgspec.Struct, frozen=True):
    """The template's text around one message; for an assistant turn `open` is the
    generation prompt. Control tokens are recognised in both."""

    open: str
    close: str


class GenerateCall(msgspec.Struct, frozen=True, kw_only=True):
    """One `gen`: continue `input_ids`; `sampling.n` choices.

    Cached tokens are shared only with calls of the same `namespace`.
    """

    input_ids: list[int]
    sampling: SamplingParams
    constraint: Constraint | None = None
    logprobs: LogprobOptions | None = None
    namespace: tuple[str, ...] = ()
    hints: SchedulingHints = SchedulingHints()


class GenerateChunk(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """New output of one choice. With `finish` set it is that choice's last chunk.

    `text` is a delta: the concatenation over a choice's chunks is its output text, with a
    matched stop string already cut off. `num_kept_tokens` (last chunk) is the number of the
    choice's ids that lie wholly inside that text, `grammar` (last chunk) tells of its constraint.
    `forced` are the places in `ids` of tokens that a constraint forced.
    """

    choice: int = 0
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    usage: Usage | None = None
    num_kept_tokens: int = 0
    times: RequestTimes | None = None
    grammar: GrammarReport | None = None
    forced: tuple[int, ...] = ()


class Backend(Protocol):
    """Tokenises, generates and scores, here or far away.

    Methods are called on the executor's event loop only. Each may raise `Unavailable`.
    """

    async def encode(self, pieces: Sequence[TextPiece]) -> list[int]:
        """Ids of the joined text, tokenised as one string (canonical across the borders).

        Raises `InvalidRequest` for what is not text, or far too much of it.
        """
        ...

    async def role_markers(self, roles: Sequence[str]) -> RoleMarkers:
        """Markers of the last of `roles`, given the roles of all messages up to it.

        Raises `InvalidRequest` if the model has no chat template or it refuses the order.
        """
        ...

    def generate(self, call: GenerateCall) -> AsyncGenerator[GenerateChunk]:
        """Stream the output of `call`; closing the iterator aborts what still runs.

        Raises `InvalidRequest` for bad input, `RequestFailed` when an accepted request
        ends with an error or is aborted by somebody else.
        """
        ...

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[TokenLogprob]]:
        """Log-probabilities of each continuation's tokens after `prefix`, as one tree.

        The first token after an empty prefix has log-probability None.
        """
        ...
