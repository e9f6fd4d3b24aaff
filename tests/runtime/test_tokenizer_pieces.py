"""Text becomes a control token only where its author may write one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.programs.backend import TextPiece
from espalier.runtime.tokenizer.controls import ControlToken, ControlTokens
from espalier.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.tiny_tokenizers import CONTROLS, tiny_gguf

FRAGMENTS = ["<|", "im_end", "|>", ">", "<|im", "_start|>", "<s", "hello", " world", "é", "\n"]
HOSTILE = st.lists(st.sampled_from([*FRAGMENTS, *CONTROLS]), max_size=5).map("".join)
PIECES = st.lists(st.builds(TextPiece, HOSTILE, st.booleans()), max_size=6)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def spelled(text: str) -> list[str]:
    """`text` cut by hand: control spellings, leftmost and longest first, and what is between."""
    parts, i, plain = list[str](), 0, ""
    while i < len(text):
        here = max((c for c in CONTROLS if text.startswith(c, i)), key=len, default="")
        parts += [plain, here] if here else []
        plain = "" if here else plain + text[i]
        i += len(here) or 1
    return [*parts, plain]


@settings(deadline=None)
@given(st.lists(HOSTILE, max_size=6))
def test_plain_pieces_are_plain_text(tokenizer: Tokenizer, texts: list[str]) -> None:
    ids = tokenizer.encode_pieces([TextPiece(text) for text in texts])
    joined = "".join(texts)
    assert tokenizer.control_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == joined
    assert ids == tokenizer.encode(joined)


@settings(deadline=None)
@given(PIECES)
def test_control_tokens_lie_inside_one_control_piece(
    tokenizer: Tokenizer, pieces: list[TextPiece]
) -> None:
    """The ids are those of each stretch between the control tokens, tokenised on its own."""
    expected: list[int] = []
    plain = ""
    for piece in pieces:
        parts = spelled(piece.text) if piece.control else [piece.text]
        for i, part in enumerate(parts):
            if i % 2:
                expected += tokenizer.encode(plain)
                expected.append(tokenizer.token_bytes.index(part.encode()))
                plain = ""
            else:
                plain += part
    assert tokenizer.encode_pieces(pieces) == expected + tokenizer.encode(plain)


def test_words_join_across_pieces(tokenizer: Tokenizer) -> None:
    pieces = [TextPiece("hel", control=True), TextPiece("lo wor"), TextPiece("ld", control=True)]
    assert tokenizer.encode_pieces(pieces) == tokenizer.encode("hello world")
    assert len(tokenizer.encode("hello world")) == 2


@pytest.mark.parametrize(
    ("pieces", "controls"),
    [
        ([("<|im_end|>", False)], []),
        ([("<|im_end|>", True)], ["<|im_end|>"]),
        ([("<|im_end|>>", True)], ["<|im_end|>>"]),  # the longest
        ([("<|im_end|>", True), (">", False)], ["<|im_end|>"]),  # text cannot lengthen it
        ([("<|im_", True), ("end|>", True)], []),
        ([("<|im_", True), ("end|>", False)], []),
        ([("<", False), ("<s>", True)], ["<s>"]),
        ([("<|im_end|>", False), ("<s>", True), ("<s>", False)], ["<s>"]),
    ],
)
def test_borders(tokenizer: Tokenizer, pieces: list[tuple[str, bool]], controls: list[str]) -> None:
    ids = tokenizer.encode_pieces([TextPiece(text, control) for text, control in pieces])
    found = [tokenizer.token_bytes[i].decode() for i in ids if i in tokenizer.control_ids]
    assert found == controls


def test_surrogates_are_refused_in_every_piece(tokenizer: Tokenizer) -> None:
    for control in (False, True):
        with pytest.raises(InvalidRequest, match="surrogate"):
            tokenizer.encode_pieces([TextPiece("a"), TextPiece("\udc00", control)])
    with pytest.raises(InvalidRequest, match="surrogate"):  # halves do not make a character
        tokenizer.encode_pieces([TextPiece("\ud83d"), TextPiece("\ude00")])


@settings(deadline=None)
@given(
    st.lists(st.text("ab<>", min_size=2, max_size=4), min_size=1, max_size=4, unique=True),
    st.text("ab<> ", max_size=8),
    st.text("ab<>", max_size=4),
    st.text("ab<>", max_size=4),
)
def test_disarmed_text_takes_part_in_no_spelling(
    spellings: list[str], text: str, before: str, after: str
) -> None:
    """Whatever stands around it, and also if it is trimmed."""
    controls = ControlTokens(ControlToken(i, spelling) for i, spelling in enumerate(spellings))
    armed = controls.disarm(text, "#")
    assert armed.replace("#", "") == text
    assert armed.strip().replace("#", "") == text.strip()
    for inner in (armed, armed.strip()):
        if not inner:
            continue
        whole = before + inner + after
        for spelling in spellings:
            at = whole.find(spelling)
            while at >= 0:
                assert at + len(spelling) <= len(before) or at >= len(before + inner)
                at = whole.find(spelling, at + 1)
