"""Whole results, gathered from chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec

from .messages import FinishReason, GrammarReport, TokenLogprob, Usage
from .programs.backend import GenerateChunk


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one choice gave. `ids` has all output tokens, a matched stop included.

    `num_kept_tokens` of them lie wholly inside the text; at the places `forced` are those that a
    constraint forced. `grammar` is there if there was a constraint. Where the end did not come
    from the scheduler, as a process died or the runtime shut down, `usage` says nothing of the
    cache.
    """

    text: str
    ids: tuple[int, ...]
    finish: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    num_kept_tokens: int = 0
    grammar: GrammarReport | None = None
    forced: tuple[int, ...] = ()


def collect(chunks: Iterable[GenerateChunk]) -> list[Completion]:
    """The completions of all choices, in the order of the choices."""
    by_choice: dict[int, list[GenerateChunk]] = {}
    for chunk in chunks:
        by_choice.setdefault(chunk.choice, []).append(chunk)
    return [complete(merge(by_choice[choice])) for choice in sorted(by_choice)]


def merge(chunks: Sequence[GenerateChunk]) -> GenerateChunk:
    """Neighbouring chunks of one choice as one."""
    if len(chunks) == 1:
        return chunks[0]
    logprobs = [entry for chunk in chunks for entry in chunk.logprobs or ()]
    wanted = any(chunk.logprobs is not None for chunk in chunks)
    starts = accumulate((len(chunk.ids) for chunk in chunks), initial=0)
    forced = [
        start + place
        for start, chunk in zip(starts, chunks, strict=False)
        for place in chunk.forced
    ]
    prompt = next((c.prompt_logprobs for c in chunks if c.prompt_logprobs is not None), None)
    return msgspec.structs.replace(
        chunks[-1],
        text="".join(chunk.text for chunk in chunks),
        ids=tuple(token_id for chunk in chunks for token_id in chunk.ids),
        logprobs=tuple(logprobs) if wanted else None,
        prompt_logprobs=prompt,
        forced=tuple(forced),
    )


def complete(whole: GenerateChunk) -> Completion:
    """A choice that came as one chunk, its last."""
    assert whole.finish is not None, "a choice has no last chunk"
    return Completion(
        text=whole.text,
        ids=whole.ids,
        finish=whole.finish,
        usage=whole.usage or Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=0),
        logprobs=whole.logprobs,
        prompt_logprobs=whole.prompt_logprobs,
        num_kept_tokens=whole.num_kept_tokens,
        grammar=whole.grammar,
        forced=whole.forced,
    )
