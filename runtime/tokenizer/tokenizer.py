"""One model's tokenizer: text, pieces and messages to ids, and ids to bytes and text.

Text never becomes a control token unless its author says `control`. The library that does
the BPE knows no control tokens: they are looked for here, and in control text alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import tokenizers

from ..errors import InvalidRequest, ModelError
from ..programs.backend import RoleMarkers, TextPiece
from .chat_template import ChatTemplate
from .controls import ControlToken, ControlTokens
from .gguf_vocabulary import read_gguf_tokenizer
from .huggingface_directory import read_directory_tokenizer
from .parts import TokenizerParts


class Tokenizer:
    """Ids 0 to `vocab_size` - 1 and what they stand for.

    token_bytes: the exact bytes of each id; a control token's literal text, b"" for an id
    that is not used; max_token_bytes is the length of the longest. control_ids: ids without
    visible text. eos_ids: ends of generation. bos_id: what the model's convention puts in
    front of a text, None if nothing.
    chat: the model's own chat template, None if it has none.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self.token_bytes: Sequence[bytes] = parts.token_bytes
        self.vocab_size = len(parts.token_bytes)
        self.max_token_bytes = max(map(len, parts.token_bytes))
        self.control_ids = frozenset(token.id for token in parts.controls) | parts.hidden_ids
        self.eos_ids = parts.eos_ids
        self.bos_id = parts.bos_id
        self._backend, self._inner_backend = parts.backend, parts.inner_backend
        self._strips_leading_space = parts.strips_leading_space
        self._controls = ControlTokens(parts.controls)
        self._visible_bytes = [
            b"" if i in self.control_ids else text for i, text in enumerate(parts.token_bytes)
        ]
        self.chat: ChatTemplate | None = None
        if parts.template is not None:
            self.chat = ChatTemplate(
                parts.template, special_tokens=parts.special_tokens, controls=self._controls
            )

    def encode(self, text: str, *, allow_control: bool = False, add_bos: bool = False) -> list[int]:
        """Ids of `text`, as the model's own tokenizer gives without special tokens.

        `add_bos` puts `bos_id` in front if the model has one. Bytes for which the vocabulary
        has no token are left out, as they are there. Raises `InvalidRequest` for lone
        surrogates, which are not text.
        """
        bos = [self.bos_id] if add_bos and self.bos_id is not None else []
        return bos + self.encode_pieces([TextPiece(text, control=allow_control)])

    def encode_pieces(self, pieces: Sequence[TextPiece]) -> list[int]:
        """Ids of the joined text, tokenised as one string across the borders of pieces.

        A control token is recognised only where it lies wholly inside one control piece.
        """
        parts: list[str | ControlToken] = []
        for piece in pieces:
            parts += self._controls.split(piece.text) if piece.control else [piece.text]
        ids: list[int] = []
        for i, part in enumerate(_join_texts(parts)):
            if isinstance(part, ControlToken):
                ids.append(part.id)
            else:
                ids += self._encode_plain(part, self._inner_backend if i else self._backend)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` as a whole text, without control tokens.

        Invalid UTF-8 becomes U+FFFD. A space that encoding puts in front of every text is
        taken away again.
        """
        data = b"".join(map(self.visible_bytes, ids))
        if self._strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def visible_bytes(self, token_id: int) -> bytes:
        """The token's part of the text: b"" for control tokens and ids that do not exist."""
        return self._visible_bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Ids of the prompt that the model's chat template makes of `messages`.

        Raises `InvalidRequest` if there is no template, it refuses the messages, or a
        message is not one.
        """
        pieces = self._template().render(messages, add_generation_prompt=add_generation_prompt)
        return self.encode_pieces(pieces)

    def role_markers(self, roles: Sequence[str]) -> RoleMarkers:
        """The template's text around the last message, given the roles of all up to it."""
        return self._template().role_markers(roles)

    def _template(self) -> ChatTemplate:
        if self.chat is None:
            raise InvalidRequest("the model has no chat template")
        return self.chat

    def _encode_plain(self, text: str, backend: tokenizers.Tokenizer) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the text has a lone surrogate: {error}") from None
        # The batch call, unlike the single one, lets other Python threads run.
        return backend.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _join_texts(parts: Iterable[str | ControlToken]) -> Iterator[str | ControlToken]:
    """`parts` with neighbouring texts joined, without the white space that controls swallow."""
    texts: list[str] = []
    swallow = False  # white space behind the control token before
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        text = "".join(texts)
        yield from _trimmed(text, left=swallow, right=part.lstrip)
        yield part
        texts, swallow = [], part.rstrip
    yield from _trimmed("".join(texts), left=swallow, right=False)


def _trimmed(text: str, *, left: bool, right: bool) -> Iterator[str]:
    text = text.lstrip() if left else text
    text = text.rstrip() if right else text
    if text:
        yield text


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a .gguf file or of a Hugging Face directory.

    Raises `ModelError`, naming file and field, for whatever is missing or not supported.
    """
    if path.is_dir():
        return Tokenizer(read_directory_tokenizer(path))
    if path.suffix == ".gguf" and path.is_file():
        return Tokenizer(read_gguf_tokenizer(path))
    raise ModelError(f"{path}: neither a .gguf file nor a directory")
