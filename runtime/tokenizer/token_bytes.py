"""From a token's spelling in the vocabulary to the bytes it stands for; knows no ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenDecoder:
    """How a family of tokenizers spells bytes.

    `byte_chars` maps each character to its byte (byte-level BPE; None: SentencePiece, where
    `<0xE4>` is a byte and `replacements` are made in all other tokens).
    `strips_leading_space`: encoding puts a space in front of a text, decoding takes it away.
    """

    byte_chars: Mapping[str, int] | None
    replacements: tuple[tuple[str, str], ...] = ()
    strips_leading_space: bool = False

    def bytes_of(self, token: str) -> bytes:
        """The token's bytes; a byte-level token with a foreign character stands for itself."""
        if self.byte_chars is not None:
            try:
                return bytes(map(self.byte_chars.__getitem__, token))
            except KeyError:
                return token.encode()
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode()


def byte_level_decoder() -> TokenDecoder:
    """GPT-2's: printable Latin-1 characters are their own bytes, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    chars = {chr(byte): byte for byte in printable}
    return TokenDecoder(chars | {chr(256 + i): byte for i, byte in enumerate(others)})


class _Literal(msgspec.Struct, forbid_unknown_fields=True):
    text: str = msgspec.field(name="String")


class _ByteLevel(msgspec.Struct, tag="ByteLevel"):
    pass


class _ByteFallback(msgspec.Struct, tag="ByteFallback"):
    pass


class _Fuse(msgspec.Struct, tag="Fuse"):
    pass


class _Replace(msgspec.Struct, tag="Replace"):
    pattern: _Literal
    content: str


class _Strip(msgspec.Struct, tag="Strip"):
    content: str
    start: int
    stop: int


class _Metaspace(msgspec.Struct, tag="Metaspace"):
    replacement: str
    prepend_scheme: str = "always"


class _Sequence(msgspec.Struct, tag="Sequence"):
    decoders: list[_Step | _Sequence]


_Step = _ByteLevel | _ByteFallback | _Fuse | _Replace | _Strip | _Metaspace


def read_decoder(path: Path, document: msgspec.Raw) -> TokenDecoder:
    """The decoder of a tokenizer.json; `ModelError` names what is not supported."""
    try:
        steps = _flatten(msgspec.json.decode(document, type=_Step | _Sequence))
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: the decoder is not supported: {error}") from None
    if any(isinstance(step, _ByteLevel) for step in steps):
        if len(steps) > 1:
            raise ModelError(f"{path}: a decoder with steps beside ByteLevel is not supported")
        return byte_level_decoder()
    if not any(isinstance(step, _ByteFallback) for step in steps):
        raise ModelError(f"{path}: a decoder without ByteLevel or ByteFallback is not supported")
    return _sentencepiece_decoder(path, steps)


def _flatten(decoder: _Step | _Sequence) -> list[_Step]:
    if isinstance(decoder, _Sequence):
        return [step for inner in decoder.decoders for step in _flatten(inner)]
    return [decoder]


def _sentencepiece_decoder(path: Path, steps: list[_Step]) -> TokenDecoder:
    replacements: list[tuple[str, str]] = []
    fused = strips = False
    for step in steps:
        match step:
            case _Replace():
                replacements.append((step.pattern.text, step.content))
            case _Metaspace():
                replacements.append((step.replacement, " "))
                strips = strips or step.prepend_scheme != "never"
            case _Fuse():
                fused = True
            case _Strip(content=" ", start=1, stop=0) if fused:
                strips = True
            case _Strip():
                raise ModelError(f"{path}: the decoder's {step} is not supported")
            case _:
                pass
    return TokenDecoder(None, tuple(replacements), strips)
