"""What can never be served is refused at once, by the same numbers that admission uses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import InvalidRequest
from ..messages import TokenizedRequest
from ..sampling.params import check_int

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The bounds of one runtime. Lengths are in tokens.

    context_len: the longest sequence, prompt and output together.
    pool_tokens: slots of the KV pool.
    vocab_size: token ids are below it.
    """

    context_len: int
    pool_tokens: int
    vocab_size: int

    def check(self, request: TokenizedRequest) -> None:
        """Raise `InvalidRequest`, naming the field, if `request` can't be served ever.

        Its sampling parameters are valid.
        """
        self._check_ids(request)
        self._check_lengths(len(request.input_ids), request.sampling.max_new_tokens)
        self._check_logprobs(request)

    def _check_ids(self, request: TokenizedRequest) -> None:
        ids = request.input_ids
        if len(ids) == 0:
            raise InvalidRequest("the prompt is empty", param="input_ids")
        wrong = np.flatnonzero((ids < 0) | (ids >= self.vocab_size))
        if len(wrong):
            at = int(wrong[0])
            raise InvalidRequest(
                f"input_ids[{at}] is {int(ids[at])}, outside the vocabulary of {self.vocab_size}",
                param="input_ids",
            )

    def _check_lengths(self, prompt_len: int, max_new_tokens: int) -> None:
        if prompt_len > self.context_len:
            raise InvalidRequest(
                f"the prompt of {prompt_len} tokens is longer than the model's context length "
                f"of {self.context_len}",
                param="input_ids",
            )
        if prompt_len > self.pool_tokens:
            raise InvalidRequest(
                f"the prompt of {prompt_len} tokens is longer than the KV pool, which has "
                f"{self.pool_tokens} slots",
                param="input_ids",
            )
        if prompt_len + max_new_tokens > self.context_len:
            raise InvalidRequest(
                f"{prompt_len} prompt tokens and max_new_tokens={max_new_tokens} exceed the "
                f"context length of {self.context_len}",
                param="max_new_tokens",
            )
        needed = prompt_len + max(0, max_new_tokens - 1)  # the last token's KV is never needed
        if needed > self.pool_tokens:
            raise InvalidRequest(
                f"the request needs {needed} KV slots, the pool has {self.pool_tokens}",
                param="max_new_tokens",
            )

    def _check_logprobs(self, request: TokenizedRequest) -> None:
        options = request.logprobs
        if options is None:
            return
        check_int("top_logprobs", options.top, 0, MAX_TOP_LOGPROBS)
        if options.prompt_start is not None:
            check_int("prompt_start", options.prompt_start, 0, len(request.input_ids))
