"""Log-probabilities as OpenAI's two routes report them, for every token that was generated."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ...messages import TokenLogprob
from ...tokenizer.tokenizer import Tokenizer


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> dict[str, object]:
    """`logprobs` of a chat choice."""
    return {
        "content": [
            _chat_token(tokenizer, entry.token_id, entry.logprob)
            | {"top_logprobs": [_chat_token(tokenizer, *pair) for pair in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


class CompletionLogprobs:
    """`logprobs` of one choice of a plain completion, in order of its tokens.

    `text_offset` counts characters of the choice's text before a token; a token that only
    completes a character begins where that does.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def take(self, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        """For the next tokens."""
        return {
            "tokens": [_text(self._tokenizer, entry.token_id) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries] if self._num_top else None,
            "text_offset": [self._offset(entry.token_id) for entry in entries],
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float | None]:
        """By text, so the likelier of two tokens with one text stands for both."""
        top: dict[str, float | None] = {_text(self._tokenizer, entry.token_id): entry.logprob}
        for token_id, logprob in entry.top:
            top.setdefault(_text(self._tokenizer, token_id), logprob)
        return top

    def _offset(self, token_id: int) -> int:
        offset = self._num_chars
        self._num_chars += len(self._decoder.decode(self._tokenizer.visible_bytes(token_id)))
        return offset


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> dict[str, object]:
    data = tokenizer.token_bytes[token_id]
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.token_bytes[token_id].decode("utf-8", "replace")
