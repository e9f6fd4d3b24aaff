"""Reads the tokenizer of a Hugging Face directory; knows BPE, byte-level or SentencePiece's.

Read are tokenizer.json and, where they exist, tokenizer_config.json, chat_template.jinja,
generation_config.json and config.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar, cast

import msgspec
import tokenizers

from ..errors import ModelError
from .controls import ControlToken
from .merges import Merge, checked_merges
from .parts import TokenizerParts
from .token_bytes import TokenDecoder, read_decoder

_NULL = msgspec.Raw(b"null")
_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]
_Document = TypeVar("_Document")


class _ModelKind(msgspec.Struct):
    type: str = "BPE"  # absent from old files


class _Bpe(msgspec.Struct, forbid_unknown_fields=True):
    vocab: dict[str, _Id]
    merges: list[str | Merge]
    type: str = "BPE"
    dropout: float | None = None
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False


class _AddedToken(msgspec.Struct):
    id: _Id
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class _TokenizerJson(msgspec.Struct):
    """What of a tokenizer.json tells text from ids; truncation and padding are left out."""

    model: msgspec.Raw
    version: str = "1.0"
    added_tokens: list[_AddedToken] = []
    normalizer: msgspec.Raw = _NULL
    pre_tokenizer: msgspec.Raw = _NULL
    post_processor: msgspec.Raw = _NULL
    decoder: msgspec.Raw = _NULL


class _Spelled(msgspec.Struct):
    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    bos_token: str | _Spelled | None = None
    eos_token: str | _Spelled | None = None
    unk_token: str | _Spelled | None = None
    pad_token: str | _Spelled | None = None
    sep_token: str | _Spelled | None = None
    cls_token: str | _Spelled | None = None
    mask_token: str | _Spelled | None = None
    add_bos_token: bool | None = None
    chat_template: str | list[_NamedTemplate] | None = None

    def special_tokens(self) -> dict[str, str]:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        named = {name: value for name, value in values.items() if name.endswith("_token")}
        texts = {k: v.content if isinstance(v, _Spelled) else v for k, v in named.items()}
        return {name: text for name, text in texts.items() if isinstance(text, str)}


class _Ends(msgspec.Struct):
    """Of generation_config.json, and of config.json where that is missing."""

    eos_token_id: _Id | list[_Id] | None = None


def read_directory_tokenizer(directory: Path) -> TokenizerParts:
    """The tokenizer of a directory; `ModelError` names what is missing or not supported."""
    path = directory / "tokenizer.json"
    document = _read(path, _TokenizerJson, None)
    model = _read_model(path, document.model)
    config = _read(directory / "tokenizer_config.json", _TokenizerConfig, _TokenizerConfig())
    decoder = read_decoder(path, document.decoder)
    special_tokens = config.special_tokens()
    ids = model.vocab | {token.content: token.id for token in document.added_tokens}
    eos_ids = _eos_ids(directory, ids, special_tokens.get("eos_token"))
    controls = [t for t in document.added_tokens if t.special or t.id in eos_ids]
    if words := [token.content for token in controls if token.single_word]:
        raise ModelError(f"{path}: control token {words[0]!r} is single_word: not supported")
    token_bytes = _token_bytes(decoder, model, document.added_tokens)
    backend, inner_backend = _backends(path, document, model, {token.id for token in controls})
    return TokenizerParts(
        backend=backend,
        inner_backend=inner_backend,
        token_bytes=token_bytes,
        controls=tuple(ControlToken(t.id, t.content, t.lstrip, t.rstrip) for t in controls),
        hidden_ids=frozenset(set(range(len(token_bytes))) - set(ids.values())),
        eos_ids=eos_ids,
        bos_id=_bos_id(path, backend, config, ids),
        strips_leading_space=decoder.strips_leading_space,
        template=_chat_template(directory, config),
        special_tokens=special_tokens,
    )


def _read(path: Path, kind: type[_Document], absent: _Document | None) -> _Document:
    """The JSON file `path` as `kind`; `absent`, unless that is None, if there is no file."""
    if absent is not None and not path.exists():
        return absent
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path}: {error}") from error


def _read_model(path: Path, model: msgspec.Raw) -> _Bpe:
    try:
        kind = msgspec.json.decode(model, type=_ModelKind).type
        if kind != "BPE":
            raise ModelError(f"{path}: model type {kind!r} is not supported (only 'BPE' is)")
        bpe = msgspec.json.decode(model, type=_Bpe)
    except msgspec.DecodeError as error:
        raise ModelError(f"{path}: model: {error}") from error
    if bpe.continuing_subword_prefix or bpe.end_of_word_suffix:
        raise ModelError(f"{path}: a subword prefix or word suffix is not supported")
    return bpe


def _eos_ids(directory: Path, ids: dict[str, int], eos_token: str | None) -> frozenset[int]:
    """Ends of generation: generation_config.json's, else config.json's, else `eos_token`."""
    for name in ("generation_config.json", "config.json"):
        found = _read(directory / name, _Ends, _Ends()).eos_token_id
        if found is not None:
            return frozenset(found if isinstance(found, list) else [found])
    return frozenset([ids[eos_token]] if eos_token in ids else [])


def _token_bytes(decoder: TokenDecoder, model: _Bpe, added: list[_AddedToken]) -> tuple[bytes, ...]:
    """By id. An added token is spelled as text: byte-level characters mean nothing in it."""
    known = {i: decoder.bytes_of(token) for token, i in model.vocab.items()}
    for token in added:
        literal = token.special or decoder.byte_chars is not None
        content = token.content
        known[token.id] = content.encode() if literal else decoder.bytes_of(content)
    return tuple(known.get(i, b"") for i in range(max(known, default=-1) + 1))


def _backends(
    path: Path, document: _TokenizerJson, model: _Bpe, controls: set[int]
) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """Tokenizers of plain text that know no control token: at the start of input, and inside.

    Other added tokens go into the model's vocabulary, where the library looks their ids up.
    """
    added = [token for token in document.added_tokens if token.id not in controls]
    vocab = model.vocab | {token.content: token.id for token in added}
    model.vocab = {token: i for token, i in vocab.items() if i not in controls}
    model.merges = [*checked_merges(path, model.merges, model.vocab)]
    model.unk_token = model.dropout = None
    plain = msgspec.structs.replace(
        document, model=msgspec.Raw(msgspec.json.encode(model)), added_tokens=added
    )
    backend = _from_json(path, plain)
    inside = _pre_tokenizer_inside(document.pre_tokenizer)
    if inside is document.pre_tokenizer:
        return backend, backend
    return backend, _from_json(path, msgspec.structs.replace(plain, pre_tokenizer=inside))


def _pre_tokenizer_inside(pre_tokenizer: msgspec.Raw) -> msgspec.Raw:
    """The same, but a Metaspace that marks the first word of the input marks none."""

    def walk(value: object) -> object:
        if isinstance(value, list):
            return [walk(item) for item in cast("list[object]", value)]
        if not isinstance(value, dict):
            return value
        fields = {k: walk(v) for k, v in cast("dict[str, object]", value).items()}
        if fields.get("type") == "Metaspace" and fields.get("prepend_scheme") == "first":
            fields["prepend_scheme"] = "never"
        return fields

    before: object = msgspec.json.decode(pre_tokenizer)
    after = walk(before)
    return pre_tokenizer if after == before else msgspec.Raw(msgspec.json.encode(after))


def _from_json(path: Path, document: _TokenizerJson) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(msgspec.json.encode(document).decode())
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{path}: {error}") from error


def _bos_id(
    path: Path, backend: tokenizers.Tokenizer, config: _TokenizerConfig, ids: dict[str, int]
) -> int | None:
    """What the post-processor puts in front, unless the configuration says yes or no."""
    if config.add_bos_token is not None:
        bos_token = config.special_tokens().get("bos_token", "")
        return ids.get(bos_token) if config.add_bos_token else None
    text = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    starts = [i for i in range(len(whole)) if text and whole[i : i + len(text)] == text]
    if starts and starts[0] > 1:
        raise ModelError(f"{path}: a post_processor that puts two tokens in front: not supported")
    return whole[0] if starts == [1] else None


def _chat_template(directory: Path, config: _TokenizerConfig) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}: {error}") from error
    if isinstance(config.chat_template, list):
        named = {entry.name: entry.template for entry in config.chat_template}
        return named.get("default")
    return config.chat_template
