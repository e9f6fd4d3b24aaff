"""Rebuilds a tokenizer from GGUF metadata; knows byte-level BPE alone.

Key names and token types: the GGUF specification. What a `tokenizer.ggml.pre` name means is
defined by llama.cpp (`llama-vocab.cpp`) and by the tokenizer.json files it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from ..errors import ModelError
from ..hub.gguf_file import GgufFile, read_gguf
from .controls import ControlToken
from .merges import checked_merges
from .parts import TokenizerParts
from .token_bytes import byte_level_decoder

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # token types; 1 is normal, 6 a byte
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SPECIAL_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How text is cut up before BPE: by each pattern in turn, each match a piece of its own.

    `gpt2_words` adds GPT-2's pattern as the last one.
    """

    patterns: tuple[str, ...] = ()
    gpt2_words: bool = False
    ignore_merges: bool = False
    prepends_bos: bool = False
    nfc: bool = False


_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_PRE_TOKENIZERS = {
    "smollm": _PreTokenizer((r"\p{N}",), gpt2_words=True),
    "gpt-2": _PreTokenizer(gpt2_words=True),
    "default": _PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9]{3}")),
    "llama-bpe": _PreTokenizer((_LLAMA3_WORDS,), ignore_merges=True, prepends_bos=True),
    "qwen2": _PreTokenizer((_QWEN2_WORDS,), nfc=True),
}


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """The tokenizer of a GGUF file; `ModelError` names what is missing or not supported."""
    file = read_gguf(path)
    if (kind := file.text("tokenizer.ggml.model")) != "gpt2":
        raise ModelError(f"{path}: tokenizer.ggml.model {kind!r} is not supported (only 'gpt2' is)")
    name = file.text("tokenizer.ggml.pre")
    if (pre := _PRE_TOKENIZERS.get(name)) is None:
        supported = ", ".join(_PRE_TOKENIZERS)
        raise ModelError(f"{path}: tokenizer.ggml.pre {name!r} is not supported ({supported} are)")
    tokens, types = _tokens_and_types(file)
    eos_ids = frozenset(i for key in _END_KEYS if (i := _token_id(file, key, tokens)) is not None)
    controls = tuple(
        ControlToken(i, token)
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_UNKNOWN, _CONTROL) or i in eos_ids
    )
    backend = _backend(file, pre, tokens, types, {control.id for control in controls})
    return TokenizerParts(
        backend=backend,
        inner_backend=backend,
        token_bytes=_token_bytes(tokens, types),
        controls=controls,
        hidden_ids=frozenset(i for i, kind in enumerate(types) if kind == _UNUSED),
        eos_ids=eos_ids,
        bos_id=_bos_id(file, pre, tokens),
        strips_leading_space=False,
        template=file.text("tokenizer.chat_template", "") or None,
        special_tokens={
            name: tokens[i]
            for name, key in _SPECIAL_KEYS.items()
            if (i := _token_id(file, key, tokens)) is not None
        },
    )


def _tokens_and_types(file: GgufFile) -> tuple[list[str], list[int]]:
    tokens = file.texts("tokenizer.ggml.tokens")
    types = file.integers("tokenizer.ggml.token_type")
    if len(tokens) != len(types):
        raise ModelError(f"{file.path}: {len(tokens)} tokens but {len(types)} token types")
    if len(set(tokens)) < len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens has a token twice")
    return tokens, types


def _token_id(file: GgufFile, key: str, tokens: list[str]) -> int | None:
    token_id = file.integer(f"tokenizer.ggml.{key}", -1)
    if token_id == -1:
        return None
    if not 0 <= token_id < len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.{key} {token_id} is not in the vocabulary")
    return token_id


def _bos_id(file: GgufFile, pre: _PreTokenizer, tokens: list[str]) -> int | None:
    prepends = file.flag("tokenizer.ggml.add_bos_token", pre.prepends_bos)
    return _token_id(file, "bos_token_id", tokens) if prepends else None


def _token_bytes(tokens: list[str], types: list[int]) -> tuple[bytes, ...]:
    decoder = byte_level_decoder()
    literal = (_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED)
    return tuple(
        token.encode() if kind in literal else decoder.bytes_of(token)
        for token, kind in zip(tokens, types, strict=True)
    )


def _backend(
    file: GgufFile, pre: _PreTokenizer, tokens: list[str], types: list[int], hidden: set[int]
) -> tokenizers.Tokenizer:
    """Byte-level BPE without the `hidden` ids; user-defined tokens are matched before it."""
    vocabulary = {
        token: i
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if i not in hidden and kind != _UNUSED
    }
    merges = checked_merges(file.path, file.texts("tokenizer.ggml.merges"), vocabulary)
    model = models.BPE(vocabulary, merges, ignore_merges=pre.ignore_merges)
    backend = tokenizers.Tokenizer(model)
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    words = [
        pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in pre.patterns
    ]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.gpt2_words)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, byte_level])
    add_tokens = cast("Callable[[Sequence[tokenizers.AddedToken]], int]", backend.add_tokens)  # pyright: ignore[reportUnknownMemberType]
    add_tokens(
        [
            tokenizers.AddedToken(token, normalized=False, special=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _USER_DEFINED
        ]
    )
    return backend
