"""Counts the tokens of one HTTP request for OpenAI's `usage`; the prompt of n choices once."""

from __future__ import annotations

from collections.abc import Sequence

from ...completion import Completion
from ...programs.backend import GenerateChunk


class UsageTally:
    """Prompts of `prompt_lens` tokens and what came for them."""

    def __init__(self, prompt_lens: Sequence[int]) -> None:
        self._num_prompt = sum(prompt_lens)
        self._num_completion = 0
        self._num_forced = 0
        self._cached: dict[int, int] = {}

    def take(self, call: int, output: GenerateChunk | Completion) -> None:
        """Count an output of the call with this index."""
        self._num_completion += len(output.ids)
        if output.finish is not None and output.usage is not None:
            self._num_forced += output.usage.forced_tokens
            # Of the choices of one prompt, all but the first find it cached by their sister.
            cached = output.usage.cached_tokens
            self._cached[call] = min(cached, self._cached.get(call, cached))

    def so_far(self) -> dict[str, object]:
        """Without cached tokens, which are known at the end."""
        return {
            "prompt_tokens": self._num_prompt,
            "completion_tokens": self._num_completion,
            "total_tokens": self._num_prompt + self._num_completion,
        }

    def total(self) -> dict[str, object]:
        """After the last output."""
        found = self.so_far()
        found["prompt_tokens_details"] = {"cached_tokens": sum(self._cached.values())}
        if self._num_forced:
            found["completion_tokens_details"] = {"forced_tokens": self._num_forced}
        return found
