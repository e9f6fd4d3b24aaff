"""What a tokenizer file says, in one form for all formats; made by the loaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers

from .controls import ControlToken


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """The parts of one tokenizer.

    backend, inner_backend: encode plain text at the start of the input and after a control
    token; neither knows any control token. token_bytes: by id, b"" where there is no token.
    controls: tokens that control text may spell. hidden_ids: further ids without visible text.
    template: the chat template; special_tokens: its variables, such as `bos_token`.
    """

    backend: tokenizers.Tokenizer
    inner_backend: tokenizers.Tokenizer
    token_bytes: tuple[bytes, ...]
    controls: tuple[ControlToken, ...]
    hidden_ids: frozenset[int]
    eos_ids: frozenset[int]
    bos_id: int | None
    strips_leading_space: bool
    template: str | None
    special_tokens: Mapping[str, str]
