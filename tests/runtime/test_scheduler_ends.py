"""The end matcher against a search over the whole text after every token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from espalier.runtime.messages import FinishReason
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.ends import End, EndMatcher

VOCABULARY = [b"a", b"b", b"ab", b"ba", b"aab", "é".encode(), "é".encode()[:1], b""]
EOS = 7  # a control token: it has no visible bytes


def push_all(matcher: EndMatcher, ids: list[int]) -> End | None:
    for token_id in ids:
        if end := matcher.push(token_id):
            return end
    return None


def oracle(params: SamplingParams, ids: list[int]) -> End | None:
    """Look through all the text after each token; the stop that ends first, then begins first."""
    for count in range(1, len(ids) + 1):
        ends = [len(b"".join(VOCABULARY[i] for i in ids[:k])) for k in range(count + 1)]
        if ids[count - 1] == EOS and not params.ignore_eos and count > params.min_new_tokens:
            reason = FinishReason(kind="stop", matched=EOS)
            return End(reason, ends[count - 1], count - 1)
        text = b"".join(VOCABULARY[i] for i in ids[:count])
        found: list[tuple[int, int, str]] = []
        for stop in params.stop:
            width = len(stop.encode())
            for at in range(len(text) - width + 1):
                if text[at : at + width] == stop.encode() and at + width > ends[count - 1]:
                    found.append((at + width, at, stop))
        if found and count >= params.min_new_tokens:
            _, at, stop = min(found)
            kept = max(k for k in range(count + 1) if ends[k] <= at)
            return End(FinishReason(kind="stop", matched=stop), at, kept)
        if count >= params.max_new_tokens:
            return End(FinishReason(kind="length"), ends[count], count)
    return None


@given(
    ids=st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=24),
    stops=st.lists(st.text("abé", min_size=1, max_size=4), max_size=3, unique=True),
    min_new_tokens=st.integers(0, 4),
    ignore_eos=st.booleans(),
)
def test_matches_a_search_over_the_whole_text(
    ids: list[int], stops: list[str], min_new_tokens: int, ignore_eos: bool
) -> None:
    params = SamplingParams(
        stop=tuple(stops),
        min_new_tokens=min_new_tokens,
        max_new_tokens=20,
        ignore_eos=ignore_eos,
    )
    matcher = EndMatcher(params, (EOS,), VOCABULARY.__getitem__)
    assert push_all(matcher, ids) == oracle(params, ids)


def test_a_stop_inside_a_token_keeps_the_whole_tokens_before_it() -> None:
    matcher = EndMatcher(SamplingParams(stop=("b",)), (EOS,), VOCABULARY.__getitem__)
    end = push_all(matcher, [0, 4])  # "a", "aab": the text is "aaa", the whole tokens are "a"
    assert end == End(FinishReason(kind="stop", matched="b"), 3, 1)


def test_a_stop_token_id_ends_without_its_text() -> None:
    params = SamplingParams(stop_token_ids=(1,))
    end = push_all(EndMatcher(params, (EOS,), VOCABULARY.__getitem__), [0, 1])
    assert end == End(FinishReason(kind="stop", matched=1), 1, 1)


def test_the_work_per_token_is_bounded_by_the_longest_stop() -> None:
    """A window never grows with the text: the bytes kept are fewer than the longest stop."""
    params = SamplingParams(stop=("abababab",), max_new_tokens=10_000)
    matcher = EndMatcher(params, (EOS,), VOCABULARY.__getitem__)
    for _ in range(2_000):
        assert matcher.push(0) is None
        assert matcher.num_window_bytes < 8
