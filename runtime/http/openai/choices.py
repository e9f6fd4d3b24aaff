"""The shapes of one choice in OpenAI's answers: chat and plain, whole and in a stream.

Knows no requests and no usage. A choice's text includes the matched stop if `keep_stop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ...completion import Completion
from ...messages import TokenLogprob
from ...programs.backend import GenerateChunk
from ...tokenizer.tokenizer import Tokenizer
from ..outputs import matched_text
from .logprobs import CompletionLogprobs, chat_logprobs

Choice = dict[str, object]


class ChoiceShape(Protocol):
    """How a route shows its choices. `index` is the choice's within the whole answer."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def whole(self, index: int, completion: Completion) -> Choice: ...

    def opening(self, index: int) -> Choice | None:
        """What the stream of a choice begins with."""
        ...

    def delta(self, index: int, chunk: GenerateChunk) -> Choice | None:
        """The next part of a choice; None if there is nothing to show yet."""
        ...


class ChatChoices:
    """Choices of /v1/chat/completions."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, *, keep_stop: bool) -> None:
        self._tokenizer = tokenizer
        self._keep_stop = keep_stop

    def whole(self, index: int, completion: Completion) -> Choice:
        text = _text(completion, self._tokenizer, self._keep_stop)
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(completion.logprobs),
            **_end(completion),
        }

    def opening(self, index: int) -> Choice | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, **_end(None)}

    def delta(self, index: int, chunk: GenerateChunk) -> Choice | None:
        text = _text(chunk, self._tokenizer, self._keep_stop)
        if not text and chunk.finish is None and not chunk.logprobs:
            return None
        return {
            "index": index,
            "delta": {"content": text} if text else {},
            "logprobs": self._logprobs(chunk.logprobs),
            **_end(chunk),
        }

    def _logprobs(self, entries: Sequence[TokenLogprob] | None) -> dict[str, object] | None:
        return None if entries is None else chat_logprobs(self._tokenizer, entries)


class TextChoices:
    """Choices of /v1/completions, with `num_top` alternatives to each token."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, *, keep_stop: bool, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._keep_stop = keep_stop
        self._num_top = num_top
        self._logprobs_of: dict[int, CompletionLogprobs] = {}

    def whole(self, index: int, completion: Completion) -> Choice:
        return self._choice(index, completion)

    def opening(self, index: int) -> Choice | None:
        return None

    def delta(self, index: int, chunk: GenerateChunk) -> Choice | None:
        if not chunk.text and chunk.finish is None and not chunk.logprobs:
            return None
        return self._choice(index, chunk)

    def _choice(self, index: int, output: Completion | GenerateChunk) -> Choice:
        return {
            "index": index,
            "text": _text(output, self._tokenizer, self._keep_stop),
            "logprobs": self._logprobs(index, output.logprobs),
            **_end(output),
        }

    def _logprobs(
        self, index: int, entries: Sequence[TokenLogprob] | None
    ) -> dict[str, object] | None:
        if entries is None:
            return None
        if index not in self._logprobs_of:
            self._logprobs_of[index] = CompletionLogprobs(self._tokenizer, self._num_top)
        return self._logprobs_of[index].take(entries)


def _text(output: Completion | GenerateChunk, tokenizer: Tokenizer, keep_stop: bool) -> str:
    if not keep_stop or output.finish is None:
        return output.text
    return output.text + matched_text(output.finish, tokenizer)


def _end(output: Completion | GenerateChunk | None) -> Choice:
    if output is None or output.finish is None:
        return {"finish_reason": None, "matched_stop": None}
    end: Choice = {"finish_reason": output.finish.kind, "matched_stop": output.finish.matched}
    if output.finish.incomplete:
        end["incomplete"] = True
    if output.grammar is not None:
        end["grammar"] = msgspec.to_builtins(output.grammar)
    return end
