"""One `gen` or `select` on one stream, from its tokens to its output; no queues, no errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..errors import RequestFailed
from ..messages import FinishReason, GrammarReport, TokenLogprob, Usage
from . import choices
from .backend import Backend, GenerateCall, GenerateChunk, TextPiece
from .ir import Gen, Select
from .tokens import TokenState, kept_ids
from .values import GenInfo, Output, Outputs, SelectInfo
from .waiting import Log


@dataclass(slots=True)
class _Choice:
    """One output while it grows."""

    texts: list[str] = field(default_factory=list[str])
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    usage: Usage | None = None
    num_kept_tokens: int = 0
    grammar: GrammarReport | None = None

    def add(self, chunk: GenerateChunk) -> None:
        self.texts.append(chunk.text)
        self.ids += chunk.ids
        self.logprobs += chunk.logprobs or ()
        self.prompt_logprobs = self.prompt_logprobs or chunk.prompt_logprobs
        if chunk.finish is not None:
            self.finish, self.usage = chunk.finish, chunk.usage
            self.num_kept_tokens, self.grammar = chunk.num_kept_tokens, chunk.grammar

    def output(self, with_logprobs: bool) -> Output:
        if self.finish is None or self.usage is None:
            raise RequestFailed("the backend's output ended without a finish reason and usage")
        info = GenInfo(
            finish=self.finish,
            usage=self.usage,
            logprobs=tuple(self.logprobs) if with_logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
            grammar=self.grammar,
        )
        return Output("".join(self.texts), info)


async def run_gen(
    backend: Backend,
    tokens: TokenState,
    node: Gen,
    text: Log[str],
    count: Callable[[Usage], None],
) -> Outputs:
    """Generate from `tokens` and extend them, unless there are several outputs.

    The text goes to `text` as it comes. However this ends, the backend's iterator is closed.
    """
    call = GenerateCall(
        input_ids=await tokens.ids(),
        sampling=node.sampling,
        constraint=node.constraint,
        logprobs=node.logprobs,
    )
    parts = [_Choice() for _ in range(node.sampling.n)]
    chunks = backend.generate(call)
    try:
        async for chunk in chunks:
            parts[chunk.choice].add(chunk)
            if len(parts) == 1 and chunk.text:
                text.append(chunk.text)
            if chunk.usage is not None:
                count(chunk.usage)
    finally:
        await chunks.aclose()
    outputs = tuple(part.output(node.logprobs is not None) for part in parts)
    if len(parts) > 1:
        return outputs
    [part] = parts
    assert part.finish is not None
    await tokens.append_ids(kept_ids(part.ids, part.num_kept_tokens, part.finish))
    return outputs[0]


async def run_select(backend: Backend, tokens: TokenState, node: Select) -> Output:
    """Score the choices under their common prefix and extend `tokens` by the winner."""
    prefix, continuations = await _split(backend, tokens, node.choices)
    logprobs = await _score(backend, prefix, continuations)
    unconditional: tuple[tuple[TokenLogprob, ...], ...] | None = None
    match node.method:
        case "token_length_normalized":
            decision = choices.token_length_normalized(logprobs)
        case "greedy_token_selection":
            decision = choices.greedy_token_selection(logprobs)
        case "unconditional_likelihood_normalized":
            unconditional = await _score(backend, [], continuations)
            decision = choices.unconditional_likelihood_normalized(logprobs, unconditional)
    choice = node.choices[decision.index]
    tokens.append_text(TextPiece(choice))
    await tokens.append_ids(())
    info = SelectInfo(
        scores=decision.scores, logprobs=logprobs, unconditional_logprobs=unconditional
    )
    return Output(choice, info)


async def _split(
    backend: Backend, tokens: TokenState, options: Sequence[str]
) -> tuple[list[int], list[list[int]]]:
    """The ids before all choices, and each choice's ids after them.

    A choice is tokenised together with the constants before it. What all these have in
    common, the constants alone included, is the prefix: so where a choice changes the
    tokens before it, those tokens are scored with it, and no token of a choice is lost.
    """
    pending = tokens.pending
    texts = [pending, *((*pending, TextPiece(option)) for option in options)]
    bare, *whole = await _encode_all(backend, texts)
    shared = 0
    while shared < len(bare) and all(
        shared < len(ids) and ids[shared] == bare[shared] for ids in whole
    ):
        shared += 1
    return tokens.settled() + bare[:shared], [ids[shared:] for ids in whole]


async def _encode_all(backend: Backend, texts: Sequence[Sequence[TextPiece]]) -> list[list[int]]:
    """Tokenise at the same time; an error is raised when none is under way any more."""
    results = await asyncio.gather(*map(backend.encode, texts), return_exceptions=True)
    found: list[list[int]] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found


async def _score(
    backend: Backend, prefix: list[int], continuations: list[list[int]]
) -> tuple[tuple[TokenLogprob, ...], ...]:
    return tuple(tuple(option) for option in await backend.score(prefix, continuations))
