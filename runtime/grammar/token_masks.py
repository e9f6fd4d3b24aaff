"""Which tokens may occur in constrained output at all, whatever the grammar says.

Tokens are bytes here; knows no grammar. A mask has bit i % 32 of word i // 32 for token i.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bitmask = npt.NDArray[np.int32]

# U+D800 to U+DFFF in UTF-8. They are no characters, but xgrammar's character classes let
# them pass when they come byte by byte.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")
_SURROGATE_TAIL = re.compile(rb"[\xa0-\xbf]")
# Compact JSON has no control character anywhere, yet xgrammar lets them into strings with a
# length limit.
_CONTROL_BYTE = re.compile(rb"[\x00-\x1f]")


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """`after_ed` holds after a token whose last byte is 0xED, `anywhere` otherwise."""

    anywhere: Bitmask
    after_ed: Bitmask
    ending_in_ed: frozenset[int]

    def after(self, token_id: int | None) -> Bitmask:
        """The mask for the token that follows `token_id` (None: at the start)."""
        return self.after_ed if token_id in self.ending_in_ed else self.anywhere

    def with_ids(self, token_ids: Sequence[int]) -> TokenMasks:
        """The same, and these tokens as well."""
        if not token_ids:
            return self
        anywhere, after_ed = self.anywhere.copy(), self.after_ed.copy()
        for mask in (anywhere, after_ed):
            bits = mask.view(np.uint32)
            for token_id in token_ids:
                bits[token_id // 32] |= np.uint32(1 << token_id % 32)
        return TokenMasks(anywhere, after_ed, self.ending_in_ed)


def has_bit(mask: Bitmask, token_id: int) -> bool:
    """False for ids outside the mask, too."""
    if not 0 <= token_id < 32 * len(mask):
        return False
    return bool(mask[token_id // 32] >> (token_id % 32) & 1)


def text_masks(
    token_bytes: Sequence[bytes],
    *,
    control_ids: Collection[int],
    stop_ids: Collection[int],
    vocab_width: int,
    is_json: bool,
) -> TokenMasks:
    """Everything but control tokens, ids beyond `token_bytes`, and broken characters.

    Stop tokens stay in: the grammar says where the text may end.
    """
    allowed = np.zeros((vocab_width + 31) // 32 * 32, dtype=np.bool_)
    after_ed = allowed.copy()
    for token_id, text in enumerate(token_bytes):
        allowed[token_id] = not _SURROGATE.search(text) and not (
            is_json and _CONTROL_BYTE.search(text)
        )
        after_ed[token_id] = allowed[token_id] and not _SURROGATE_TAIL.match(text)
    for mask in (allowed, after_ed):
        mask[list(control_ids)] = False
        mask[list(stop_ids)] = True
    ending = (i for i, text in enumerate(token_bytes) if text.endswith(b"\xed"))
    return TokenMasks(_packed(allowed), _packed(after_ed), frozenset(ending))


def _packed(allowed: npt.NDArray[np.bool_]) -> Bitmask:
    return np.packbits(allowed, bitorder="little").view("<i4").astype(np.int32)
