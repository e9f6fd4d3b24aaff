"""Many outputs at once, through the wire: the stream is the whole, for two tokenizer families."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from espalier.runtime.detokenizer.batches import BatchDetokenizer
from espalier.runtime.ipc import to_detokenizer, to_tokenizer
from espalier.runtime.ipc.to_detokenizer import TextStart, TokenBatch
from espalier.runtime.messages import FinishReason, TokenOutput, Usage
from espalier.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.inprocess import smollm2_tokenizer
from tests.tiny_tokenizers import sentencepiece_backend, write_directory

NUM_TEXTS = 1000  # for each of the two families
ALPHABETS = [
    "abcdefgh the and ,.\n",
    "äöüßéèñçøåæ",
    "漢字仮名交じり文北京上海",
    "😀👩‍💻🏳️‍🌈🇩🇪👨‍👩‍👧",
    "приветмир שלום مرحبا हिन्दी ไทย",
    "".join(chr(c) for c in range(0x20, 0x7F)) + "\t\n",
    "\u0301\u200d\ufeff\u00a0\U0010ffff\U000e0041ﬁǅ",
]


def random_text(rng: random.Random) -> str:
    return "".join(
        "".join(rng.choices(rng.choice(ALPHABETS), k=rng.randint(1, 12)))
        for _ in range(rng.randint(1, 6))
    )


@pytest.fixture(params=["byte-level", "byte-fallback"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    if request.param == "byte-level":
        return smollm2_tokenizer()
    return load_tokenizer(write_directory(tmp_path / "s", sentencepiece_backend(metaspace="never")))


def through_the_wire(detokenizer: BatchDetokenizer, batch: TokenBatch) -> list[tuple[str, str]]:
    """(rid, text delta) of each output, as the tokenizer process gets them."""
    arrived = to_detokenizer.WIRE.decode(to_detokenizer.WIRE.encode(batch))
    news = to_tokenizer.WIRE.decode(to_tokenizer.WIRE.encode(detokenizer.take(arrived)))
    assert isinstance(news, to_tokenizer.TextBatch)
    return [(output.rid, output.chunk.text) for output in news.outputs]


def final(rid: str, ids: tuple[int, ...], num_text_bytes: int) -> TokenOutput:
    return TokenOutput(
        rid=rid,
        ids=ids,
        finish=FinishReason(kind="length"),
        usage=Usage(prompt_tokens=1, completion_tokens=len(ids), cached_tokens=0),
        num_text_bytes=num_text_bytes,
    )


def test_streams_equal_wholes_for_random_texts_and_chunkings(tokenizer: Tokenizer) -> None:
    """All texts are open at once, and are fed in random order, random numbers of tokens a time."""
    rng = random.Random(3)
    texts = [random_text(rng) for _ in range(NUM_TEXTS)]
    left = {str(i): tokenizer.encode(text) for i, text in enumerate(texts)}
    lengths = {rid: len(b"".join(map(tokenizer.visible_bytes, ids))) for rid, ids in left.items()}
    streams = dict.fromkeys(left, "")
    detokenizer = BatchDetokenizer(tokenizer.visible_bytes)
    starts = tuple(TextStart(rid, 0, ("never in it!",)) for rid in left)
    through_the_wire(detokenizer, TokenBatch(0, starts, ()))
    while left:
        outputs: list[TokenOutput] = []
        for rid in rng.sample(sorted(left), min(64, len(left))):
            count = rng.randint(1, 5)
            ids, left[rid] = tuple(left[rid][:count]), left[rid][count:]
            if left[rid]:
                outputs.append(TokenOutput(rid=rid, ids=ids))
            else:
                outputs.append(final(rid, ids, lengths[rid]))
                del left[rid]
        for rid, delta in through_the_wire(detokenizer, TokenBatch(0, (), tuple(outputs))):
            streams[rid] += delta
    assert detokenizer.num_open == 0
    for rid, stream in streams.items():
        whole = map(tokenizer.visible_bytes, tokenizer.encode(texts[int(rid)]))
        assert stream == b"".join(whole).decode()
        assert "\ufffd" not in stream


def test_the_fuzz_covers_tokens_that_split_characters() -> None:
    tokenizer = smollm2_tokenizer()
    rng = random.Random(3)
    partial = 0
    for _ in range(NUM_TEXTS):
        for token_id in tokenizer.encode(random_text(rng)):
            try:
                tokenizer.visible_bytes(token_id).decode()
            except UnicodeDecodeError:
                partial += 1
    assert partial > 1000


def test_a_new_epoch_forgets_what_is_open() -> None:
    detokenizer = BatchDetokenizer(lambda token_id: bytes([token_id]))
    through_the_wire(detokenizer, TokenBatch(0, (TextStart("a", 0, ()),), ()))
    detokenizer.clear()
    assert detokenizer.num_open == 0
    start = TokenBatch(1, (TextStart("a", 0, ()),), (TokenOutput(rid="a", ids=(65,)),))
    assert through_the_wire(detokenizer, start) == [("a", "A")]


def test_choices_of_one_request_have_their_own_text() -> None:
    detokenizer = BatchDetokenizer(lambda token_id: bytes([token_id]))
    starts = (TextStart("a", 0, ("xy",)), TextStart("a", 1, ()))
    outputs = (
        TokenOutput(rid="a", choice=0, ids=(120,)),
        TokenOutput(rid="a", choice=1, ids=(120,)),
    )
    given = through_the_wire(detokenizer, TokenBatch(0, starts, outputs))
    assert given == [("a", ""), ("a", "x")]  # the first may yet become its stop string
