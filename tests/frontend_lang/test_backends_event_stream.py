"""Server-sent events, in whatever chunks they come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from espalier.frontend_lang.backends.event_stream import EventReader

STREAM = (
    b'data: {"text": "a"}\n\n'
    b": a comment\n\n"
    b"event: token\nid: 3\ndata:without a space\r\n\r\n"
    b"data: two\ndata: lines\n\n"
    b"data:\n\n"
    b"\n\ndata: [DONE]\n\n"
    b"data: never ended\n"
)
EVENTS = [b'{"text": "a"}', b"without a space", b"two\nlines", b"", b"[DONE]"]


def test_events_of_a_whole_stream() -> None:
    assert EventReader().feed(STREAM) == EVENTS


@given(st.lists(st.integers(0, len(STREAM))).map(sorted))
def test_any_chunks_give_the_same_events(cuts: list[int]) -> None:
    reader = EventReader()
    borders = [0, *cuts, len(STREAM)]
    events: list[bytes] = []
    for start, end in zip(borders, borders[1:], strict=False):
        events += reader.feed(STREAM[start:end])
    assert events == EVENTS


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)))
def test_other_ends_of_lines_are_data(texts: list[str]) -> None:
    reader = EventReader()
    given_texts = ["\u2028 \x85 \x0b \x0c \x1c", *texts]
    stream = "".join(f"data: {text}\n\n" for text in given_texts).encode()
    assert reader.feed(stream) == [text.encode() for text in given_texts]
