"""A stream's token ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from espalier.runtime.messages import FinishReason
from espalier.runtime.programs.backend import TextPiece
from espalier.runtime.programs.tokens import TokenState, kept_ids
from tests.scripted_backend import EOS, ScriptedCodec, byte_ids

BY_STRING = FinishReason(kind="stop", matched="\n")
BY_EOS = FinishReason(kind="stop", matched=EOS)
BY_LENGTH = FinishReason(kind="length")


def test_kept_ids_are_the_whole_tokens_before_the_stop() -> None:
    assert kept_ids([1, 2, 3], 2, BY_STRING) == (1, 2)
    assert kept_ids([1, 2, 3], 3, BY_LENGTH) == (1, 2, 3)


def test_the_matched_end_token_is_left_out_however_it_is_counted() -> None:
    assert kept_ids([1, 2, EOS], 2, BY_EOS) == (1, 2)
    assert kept_ids([1, 2, EOS], 3, BY_EOS) == (1, 2)
    assert kept_ids([EOS], 1, BY_EOS) == ()


def test_adjacent_constants_are_tokenised_once_and_canonically() -> None:
    codec = ScriptedCodec()
    state = TokenState(codec)
    for text in ["a", "b", "c"]:
        state.append_text(TextPiece(text))
    assert codec.encoded == []
    assert state.ids() == codec.encode_pieces([TextPiece("abc")])
    assert len(state.ids()) == 1
    assert len(codec.encoded) == 2


def test_generated_ids_are_never_tokenised_again() -> None:
    codec = ScriptedCodec()
    state = TokenState(codec)
    state.append_text(TextPiece("ab"))
    state.append_ids(byte_ids("ab"))
    state.append_text(TextPiece("c"))
    state.append_text(TextPiece("d"))
    [merged_ab] = codec.encode_pieces([TextPiece("ab")])
    [merged_cd] = codec.encode_pieces([TextPiece("cd")])
    assert state.ids() == [merged_ab, *byte_ids("ab"), merged_cd]


pieces = st.one_of(
    st.text("abcd", min_size=1, max_size=3).map(TextPiece),
    st.lists(st.integers(0, 255), max_size=3).map(tuple),
)


@given(st.lists(pieces, max_size=8), st.lists(pieces, max_size=8), st.booleans())
def test_a_copy_goes_its_own_way_and_can_be_appended_back(
    before: list[TextPiece | tuple[int, ...]],
    after: list[TextPiece | tuple[int, ...]],
    settle_early: bool,
) -> None:
    codec = ScriptedCodec()
    parent, whole = TokenState(codec), TokenState(codec)
    parent.extend(before)
    whole.extend([*before, *after])
    expected = whole.ids()
    child = parent.copy()
    if settle_early:
        child.copy().ids()
    child.extend(after)
    assert child.ids() == expected
    num_before = parent.num_items
    parent.extend(child.items_since(num_before))
    assert parent.ids() == expected
