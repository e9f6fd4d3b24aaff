"""Whole results, gathered from chunks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .messages import FinishReason, TokenLogprob, Usage
from .programs.backend import GenerateChunk


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one choice gave. `ids` has all output tokens, a matched stop included."""

    text: str
    ids: tuple[int, ...]
    finish: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None


def collect(chunks: Iterable[GenerateChunk]) -> list[Completion]:
    """The completions of all choices, in the order of the choices."""
    by_choice: dict[int, list[GenerateChunk]] = {}
    for chunk in chunks:
        by_choice.setdefault(chunk.choice, []).append(chunk)
    return [_join(by_choice[choice]) for choice in sorted(by_choice)]


def _join(chunks: list[GenerateChunk]) -> Completion:
    last = chunks[-1]
    assert last.finish is not None and last.usage is not None, "a choice has no last chunk"
    logprobs = [entry for chunk in chunks for entry in chunk.logprobs or ()]
    prompt = next((c.prompt_logprobs for c in chunks if c.prompt_logprobs is not None), None)
    wanted = any(chunk.logprobs is not None for chunk in chunks)
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        ids=tuple(token_id for chunk in chunks for token_id in chunk.ids),
        finish=last.finish,
        usage=last.usage,
        logprobs=tuple(logprobs) if wanted else None,
        prompt_logprobs=prompt,
    )
