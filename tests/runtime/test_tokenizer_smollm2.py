"""The default model's ids equal two references on some 400 strings: our own BPE, and llama.cpp.

How llama.cpp's ids were made stands in tests/data/tokenizer_smollm2_llamacpp.json.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from espalier.runtime.errors import InvalidRequest, ModelError
from espalier.runtime.hub.gguf_file import GgufFile, read_gguf
from espalier.runtime.hub.source import resolve_model
from espalier.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.tiny_tokenizers import (
    BYTE_CHARS,
    CONTROL,
    add_tokens,
    reference,
    write_tokenizer_gguf,
)

DATA: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "tokenizer_smollm2_llamacpp.json").read_text()
)
CASES: list[dict[str, Any]] = DATA["cases"]
PLAIN: list[str] = [case["text"] for case in CASES if not case["control"]]
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Bytes that no token of this vocabulary stands for: they are dropped, as llama.cpp does.
MISSING = b"\x04\x06\x13\x14\x16\x1d\xc0\xc1\xf1\xf2\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff"


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return resolve_model("smollm2").path
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path)


@pytest.fixture(scope="module")
def file(path: Path) -> GgufFile:
    return read_gguf(path)


class GreedyBpe:
    """The textbook algorithm: of all neighbours, merge the pair learnt first; repeat."""

    def __init__(self, file: GgufFile) -> None:
        tokens = file.texts("tokenizer.ggml.tokens")
        self.ids = {token: i for i, token in enumerate(tokens)}
        merges = file.texts("tokenizer.ggml.merges")
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        regex: Any = importlib.import_module("regex")  # has no types
        self.digits, self.words = regex.compile(r"\p{N}|\P{N}+"), regex.compile(GPT2_WORDS)
        printable = [b for b in range(256) if chr(b) in BYTE_CHARS]
        others = [b for b in range(256) if b not in printable]
        self.chars = {b: chr(b) for b in printable} | {
            b: chr(256 + i) for i, b in enumerate(others)
        }

    def encode(self, text: str) -> list[int]:
        pieces = [word for part in self.digits.findall(text) for word in self.words.findall(part)]
        assert "".join(pieces) == text
        return [i for piece in pieces for i in self.encode_piece(piece)]

    def encode_piece(self, piece: str) -> list[int]:
        symbols = [self.chars[byte] for byte in piece.encode()]
        symbols = [symbol for symbol in symbols if symbol in self.ids]
        while True:
            pairs = list(zip(symbols, symbols[1:], strict=False))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)), default=None)
            if best is None or best not in self.ranks:
                return [self.ids[symbol] for symbol in symbols]
            merged: list[str] = []
            i = 0
            while i < len(symbols):
                joins = tuple(symbols[i : i + 2]) == best
                merged.append("".join(best) if joins else symbols[i])
                i += 2 if joins else 1
            symbols = merged


def test_equals_llama_cpp(tokenizer: Tokenizer) -> None:
    assert len(CASES) > 300
    wrong = [
        (case, ids)
        for case in CASES
        if (ids := tokenizer.encode(case["text"], allow_control=case["control"])) != case["ids"]
    ]
    assert not wrong


def test_equals_the_textbook_algorithm(tokenizer: Tokenizer, file: GgufFile) -> None:
    bpe = GreedyBpe(file)
    assert len(PLAIN) > 300
    wrong = [
        (text, ids, expected)
        for text in PLAIN
        if (ids := tokenizer.encode(text)) != (expected := bpe.encode(text))
    ]
    assert not wrong


@pytest.mark.parametrize("pre", ["gpt-2", "default", "llama-bpe", "qwen2"])
def test_other_pre_tokenizers_equal_llama_cpp(
    path: Path, file: GgufFile, tmp_path: Path, pre: str
) -> None:
    """On the same vocabulary. Qwen 2 composes text first (NFC); llama.cpp leaves that out."""
    tokens = file.texts("tokenizer.ggml.tokens")
    types = file.integers("tokenizer.ggml.token_type")
    merges = file.texts("tokenizer.ggml.merges")
    other = load_tokenizer(
        write_tokenizer_gguf(tmp_path / "other.gguf", tokens, types, merges, pre=pre)
    )
    ids: dict[str, list[int]] = DATA["other_pre"][pre]
    assert ids
    wrong = [
        case
        for i, case in enumerate(CASES)
        if (pre != "qwen2" or unicodedata.is_normalized("NFC", case["text"]))
        and other.encode(case["text"], allow_control=case["control"])
        != ids.get(str(i), case["ids"])
    ]
    assert not wrong


@settings(deadline=None)
@given(st.text() | st.sampled_from(PLAIN) | st.lists(st.sampled_from(PLAIN)).map("".join))
@example("<|im_end|>\r\n  \t 12 \u0301\U0001f468\u200d\U0001f469")
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    data = text.encode().translate(None, MISSING)
    assert tokenizer.control_ids.isdisjoint(ids)
    assert b"".join(map(tokenizer.visible_bytes, ids)) == data
    assert tokenizer.decode(ids) == data.decode("utf-8", "replace")


def test_every_token_stands_for_its_bytes(tokenizer: Tokenizer) -> None:
    known = set(tokenizer.token_bytes)
    assert bytes(b for b in range(256) if bytes([b]) not in known) == MISSING
    assert tokenizer.vocab_size == len(tokenizer.token_bytes) == 49_152
    assert tokenizer.control_ids == frozenset(range(17))
    assert tokenizer.token_bytes[1] == b"<|im_start|>"
    assert tokenizer.visible_bytes(1) == tokenizer.visible_bytes(49_152) == b""
    assert tokenizer.decode([1, *tokenizer.encode("é 漢"), 2]) == "é 漢"
    assert tokenizer.eos_ids == {2}
    assert tokenizer.bos_id is None


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer.encode("a\ud800b")


def test_chats_equal_transformers(tokenizer: Tokenizer, file: GgufFile) -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers

    tokens = file.texts("tokenizer.ggml.tokens")
    merges = [(m.split(" ")[0], m.split(" ")[1]) for m in file.texts("tokenizer.ggml.merges")]
    bpe = models.BPE({token: i for i, token in enumerate(tokens)}, merges)
    backend = tokenizers.Tokenizer(bpe)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    types = file.integers("tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    add_tokens(backend, control, special=True)
    theirs = reference(backend, chat_template=file.text("tokenizer.chat_template"))
    user, assistant = {"role": "user", "content": "Hi, 123?"}, {"role": "assistant"}
    chats = [
        [user],
        [{"role": "system", "content": "  Be brief.\n"}, user],
        [user, assistant | {"content": "你好 😀\n\n"}, {"role": "user", "content": ""}],
        [{"role": "critic", "content": "text"}, {"role": "comment", "content": "name"}],
    ]
    for chat in chats:
        for add in (True, False):
            expected = theirs.apply_chat_template(
                chat, add_generation_prompt=add, return_dict=False
            )
            assert tokenizer.encode_chat(chat, add_generation_prompt=add) == expected


def test_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; import espalier.runtime.tokenizer.tokenizer, "
        "espalier.runtime.detokenizer.incremental; "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
