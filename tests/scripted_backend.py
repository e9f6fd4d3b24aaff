"""A backend that answers from a script, and a tokenizer of bytes and a few merges.

Generated ids are single bytes, never merges, so text that a program tokenised again would
get other ids than those that were generated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.messages import FinishReason, GrammarReport, TokenLogprob, Usage
from espalier.runtime.programs.backend import (
    GenerateCall,
    GenerateChunk,
    RoleMarkers,
    TextPiece,
)

EOS = 1001
_CONTROL = {"<|im_start|>": 1000, "<|im_end|>": EOS}
_MERGES = {
    text: 300 + index
    for index, text in enumerate(["ab", "abc", "cd", " yes", "yes", "no", " the", "user", "ss"])
}
_TEXTS = {id_: text for text, id_ in (_CONTROL | _MERGES).items()}


class ScriptedCodec:
    """Greedy longest match over bytes, merges and, where allowed, control tokens."""

    def __init__(self) -> None:
        self.encoded: list[tuple[TextPiece, ...]] = []

    def encode_pieces(self, pieces: Sequence[TextPiece]) -> list[int]:
        self.encoded.append(tuple(pieces))
        ids: list[int] = []
        plain = ""
        for piece in pieces:
            rest = piece.text
            while piece.control and (found := _first_control(rest)):
                before, token, rest = found
                ids += _encode_plain(plain + before) + [_CONTROL[token]]
                plain = ""
            plain += rest
        return ids + _encode_plain(plain)

    def decode(self, ids: Sequence[int]) -> str:
        return show([id_ for id_ in ids if id_ not in _CONTROL.values()])

    def role_markers(self, roles: Sequence[str]) -> RoleMarkers:
        if roles[-1] == "system" and len(roles) > 1:
            raise InvalidRequest("the system message comes first")
        return RoleMarkers(f"<|im_start|>{roles[-1]}\n", "<|im_end|>\n")


def show(ids: Sequence[int]) -> str:
    """The text of `ids`, control tokens included."""
    data = b"".join(bytes([id_]) if id_ < 256 else _TEXTS[id_].encode() for id_ in ids)
    return data.decode("utf-8", "replace")


def byte_ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def _first_control(text: str) -> tuple[str, str, str] | None:
    found = [(text.index(token), token) for token in _CONTROL if token in text]
    if not found:
        return None
    at, token = min(found)
    return text[:at], token, text[at + len(token) :]


def _encode_plain(text: str) -> list[int]:
    ids: list[int] = []
    while text:
        merge = max((m for m in _MERGES if text.startswith(m)), key=len, default=None)
        ids += [_MERGES[merge]] if merge else text[0].encode()
        text = text[len(merge or text[0]) :]
    return ids


class Gate:
    """Something to wait for on the backend's loop; opened from any thread."""

    def __init__(self) -> None:
        self._opened: Future[None] = Future()

    def open(self) -> None:
        self._opened.set_result(None)

    async def wait(self) -> None:
        await asyncio.shield(asyncio.wrap_future(self._opened))


@dataclass(frozen=True)
class Answer:
    """One output: each part is a chunk; then `error`, or the end.

    `gates[i]` is waited for before part i. With `ids` given they are the ids of the one
    part, of which `num_kept` lie inside its text.
    """

    parts: tuple[str, ...] = ()
    finish: FinishReason = FinishReason(kind="stop", matched=EOS)
    error: BaseException | None = None
    gates: dict[int, Gate] = field(default_factory=dict[int, Gate])
    ids: tuple[int, ...] | None = None
    num_kept: int = 0
    grammar: GrammarReport | None = None


def answer(*parts: str, **options: object) -> Answer:
    return Answer(parts, **options)  # type: ignore[arg-type]


Script = Callable[[str, GenerateCall], Answer | str]


class ScriptedBackend:
    """`script` gives the answer to a prompt, `score_of` the log-probability of a token."""

    def __init__(
        self,
        script: Script = lambda prompt, call: "ok",
        score_of: Callable[[str, str], float] = lambda prefix, continuation: -1.0,
    ) -> None:
        self.codec = ScriptedCodec()
        self.calls: list[GenerateCall] = []
        self.scored: list[tuple[list[int], list[list[int]]]] = []
        self.num_running = 0
        self.num_aborted = 0
        self._script = script
        self._score_of = score_of

    @property
    def prompts(self) -> list[str]:
        return [show(call.input_ids) for call in self.calls]

    async def encode(self, pieces: Sequence[TextPiece]) -> list[int]:
        return self.codec.encode_pieces(pieces)

    async def role_markers(self, roles: Sequence[str]) -> RoleMarkers:
        return self.codec.role_markers(roles)

    async def generate(self, call: GenerateCall) -> AsyncGenerator[GenerateChunk]:
        self.calls.append(call)
        self.num_running += 1
        is_done = False
        try:
            for choice in range(call.sampling.n):
                async for chunk in self._answer(choice, call):
                    yield chunk
            is_done = True
        finally:
            self.num_running -= 1
            self.num_aborted += not is_done

    async def _answer(self, choice: int, call: GenerateCall) -> AsyncGenerator[GenerateChunk]:
        scripted = self._script(show(call.input_ids), call)
        given = Answer((scripted,)) if isinstance(scripted, str) else scripted
        num_ids = 0
        for index, part in enumerate(given.parts):
            if index in given.gates:
                await given.gates[index].wait()
            ids = byte_ids(part) if given.ids is None else given.ids
            num_ids += len(ids)
            logprobs = tuple(TokenLogprob(id_, -0.5) for id_ in ids) if call.logprobs else None
            yield GenerateChunk(choice=choice, text=part, ids=ids, logprobs=logprobs)
        if len(given.parts) in given.gates:
            await given.gates[len(given.parts)].wait()
        if given.error is not None:
            raise given.error
        end = (EOS,) if given.finish.matched == EOS else ()
        yield GenerateChunk(
            choice=choice,
            ids=end,
            finish=given.finish,
            usage=Usage(
                prompt_tokens=len(call.input_ids),
                completion_tokens=num_ids + len(end),
                cached_tokens=len(call.input_ids) // 2,
            ),
            num_kept_tokens=num_ids if given.ids is None else given.num_kept,
            grammar=given.grammar,
        )

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[TokenLogprob]]:
        self.scored.append((list(prefix), [list(ids) for ids in continuations]))
        return [
            [
                TokenLogprob(
                    id_,
                    self._score_of(show(prefix), show(ids)) if prefix or index else None,
                )
                for index, id_ in enumerate(ids)
            ]
            for ids in continuations
        ]
