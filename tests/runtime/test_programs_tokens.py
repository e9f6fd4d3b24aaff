"""A stream's token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.runtime.errors import Unavailable
from espalier.runtime.messages import FinishReason
from espalier.runtime.programs.backend import TextPiece
from espalier.runtime.programs.tokens import TokenState, kept_ids
from tests.scripted_backend import EOS, ScriptedBackend, byte_ids

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
    backend = ScriptedBackend()

    async def main() -> None:
        state = TokenState(backend.encode)
        for text in ["a", "b", "c"]:
            state.append_text(TextPiece(text))
        assert backend.codec.encoded == []
        assert await state.ids() == await backend.encode([TextPiece("abc")])
        assert len(await state.ids()) == 1
        assert len(backend.codec.encoded) == 2

    asyncio.run(main())


def test_generated_ids_are_never_tokenised_again() -> None:
    encode = ScriptedBackend().encode

    async def main() -> None:
        state = TokenState(encode)
        state.append_text(TextPiece("ab"))
        await state.append_ids(byte_ids("ab"))
        state.append_text(TextPiece("c"))
        state.append_text(TextPiece("d"))
        [merged_ab] = await encode([TextPiece("ab")])
        [merged_cd] = await encode([TextPiece("cd")])
        assert await state.ids() == [merged_ab, *byte_ids("ab"), merged_cd]

    asyncio.run(main())


def test_tokenising_that_fails_or_is_cancelled_changes_nothing() -> None:
    encode = ScriptedBackend().encode
    failures: list[BaseException] = [Unavailable("not now"), asyncio.CancelledError()]

    async def flaky(pieces: Sequence[TextPiece]) -> list[int]:
        if failures:
            raise failures.pop()
        return await encode(pieces)

    async def main() -> None:
        state = TokenState(flaky)
        state.append_text(TextPiece("a"))
        with pytest.raises(asyncio.CancelledError):
            await state.append_ids(byte_ids("x"))
        with pytest.raises(Unavailable):
            await state.ids()
        assert (state.num_items, state.pending) == (1, (TextPiece("a"),))
        state.append_text(TextPiece("b"))
        assert await state.ids() == await encode([TextPiece("ab")])

    asyncio.run(main())


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
    encode = ScriptedBackend().encode

    async def main() -> None:
        parent, whole = TokenState(encode), TokenState(encode)
        await parent.extend(before)
        await whole.extend([*before, *after])
        expected = await whole.ids()
        child = parent.copy()
        if settle_early:
            await child.copy().ids()
        await child.extend(after)
        assert await child.ids() == expected
        num_before = parent.num_items
        await parent.extend(child.items_since(num_before))
        assert await parent.ids() == expected

    asyncio.run(main())
