"""GGUF files and Hugging Face directories give transformers' ids, or say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from espalier.runtime.errors import ModelError
from espalier.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.tiny_tokenizers import (
    BYTE_CHARS,
    CHATML,
    CONTROL,
    CONTROLS,
    MERGES,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    add_tokens,
    byte_level_backend,
    reference,
    sentencepiece_backend,
    tiny_gguf,
    write_directory,
    write_tokenizer_gguf,
)

FRAGMENTS = ["the", " the", "hell", "  ", " ", "é", "漢😀", "\n", "The", "x1", "<s>", "</s>", "▁"]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join) | st.text(max_size=10)


def theirs_without_control(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    """The library's own way to read control spellings as text."""
    backend.encode_special_tokens = True
    try:
        return backend.encode(text, add_special_tokens=False).ids
    finally:
        backend.encode_special_tokens = False


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    backend = byte_level_backend(CONTROLS)
    return load_tokenizer(write_directory(tmp_path_factory.mktemp("b"), backend)), backend


@settings(deadline=None)
@given(TEXTS)
def test_byte_level_directory(byte_level: tuple[Tokenizer, Any], text: str) -> None:
    ours, backend = byte_level
    assert ours.encode(text) == theirs_without_control(backend, text)
    assert ours.encode(text, allow_control=True) == reference(backend).encode(
        text, add_special_tokens=False
    )
    assert ours.decode(ours.encode(text)) == text


@pytest.fixture(scope="module", params=["always", "first", "never", None])
def sentencepiece(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    backend = sentencepiece_backend(metaspace=request.param)
    return load_tokenizer(write_directory(tmp_path_factory.mktemp("s"), backend)), backend


@settings(deadline=None)
@given(TEXTS)
def test_sentencepiece_directory(sentencepiece: tuple[Tokenizer, Any], text: str) -> None:
    """The schemes differ in which stretches between control tokens get a space in front."""
    ours, backend = sentencepiece
    theirs = reference(backend)
    assert ours.encode(text) == theirs_without_control(backend, text)
    ids = ours.encode(text, allow_control=True)
    assert ids == theirs.encode(text, add_special_tokens=False)
    plain = ours.encode(text)
    assert ours.control_ids.isdisjoint(plain)
    assert ours.decode(plain) == theirs.decode(plain)


@pytest.mark.parametrize("metaspace", ["always", "never"])
def test_sentencepiece_bytes(tmp_path: Path, metaspace: str) -> None:
    backend = sentencepiece_backend(metaspace=metaspace)
    ours = load_tokenizer(write_directory(tmp_path, backend))
    assert ours.decode(ours.encode("two  漢 spaces ")) == "two  漢 spaces "
    ids = backend.get_vocab()
    assert ours.visible_bytes(ids["▁the"]) == b" the"
    assert ours.visible_bytes(ids["<0xE4>"]) == b"\xe4"
    assert ours.visible_bytes(ids["<s>"]) == b""
    assert ours.token_bytes[ids["<s>"]] == b"<s>"
    assert ours.decode(ours.encode("the")) == "the"


def test_bos_is_what_the_post_processor_says(tmp_path: Path) -> None:
    backend = sentencepiece_backend(metaspace="first", bos=True)
    bos = backend.token_to_id("<s>")
    ours = load_tokenizer(write_directory(tmp_path / "a", backend))
    assert ours.bos_id == bos
    assert ours.encode("the", add_bos=True) == reference(backend).encode("the")
    assert ours.encode("the") == ours.encode("the", add_bos=True)[1:]
    no = {"add_bos_token": False, "bos_token": "<s>"}
    assert (
        load_tokenizer(write_directory(tmp_path / "b", backend, tokenizer_config=no)).bos_id is None
    )
    plain = sentencepiece_backend(metaspace="first")
    assert load_tokenizer(write_directory(tmp_path / "c", plain)).bos_id is None
    yes = {"add_bos_token": True, "bos_token": {"content": "<s>", "lstrip": False}}
    ours = load_tokenizer(write_directory(tmp_path / "d", plain, tokenizer_config=yes))
    assert ours.bos_id == ours.encode("", add_bos=True)[0] == bos


def test_an_end_token_of_the_post_processor_is_no_bos(tmp_path: Path) -> None:
    backend = byte_level_backend(["<s>", "</s>"])
    for single, bos_id in (("$A </s>", None), ("<s> $A </s>", 0)):
        backend.post_processor = processors.TemplateProcessing(
            single=single, pair="$A $B", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
        assert load_tokenizer(write_directory(tmp_path, backend)).bos_id == bos_id
    backend.post_processor = processors.TemplateProcessing(
        single="<s> </s> $A", pair="$A $B", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    with pytest.raises(ModelError, match="two tokens in front"):
        load_tokenizer(write_directory(tmp_path, backend))


def test_ends_of_generation(tmp_path: Path) -> None:
    backend = byte_level_backend(["<s>", "</s>", "<|end|>"])
    own = {"eos_token": "</s>"}
    steps: list[tuple[dict[str, dict[str, Any]], set[int]]] = [
        ({}, set()),
        ({"tokenizer_config": own}, {1}),
        ({"tokenizer_config": own, "config": {"eos_token_id": 2}}, {2}),
        ({"config": {"eos_token_id": 2}, "generation_config": {}}, {2}),
        ({"config": {"eos_token_id": 2}, "generation_config": {"eos_token_id": [0, 1]}}, {0, 1}),
    ]
    for i, (files, expected) in enumerate(steps):
        directory = write_directory(tmp_path / str(i), backend, **files)
        assert load_tokenizer(directory).eos_ids == expected


def test_added_tokens(tmp_path: Path) -> None:
    """Special ones are control tokens, others are visible text with their own ids."""
    backend = byte_level_backend(["<s>"])
    size = backend.get_vocab_size()
    add_tokens(backend, [tokenizers.AddedToken("<tool é>", normalized=False), "<think>"])
    end = tokenizers.AddedToken("<|end|>", rstrip=True, lstrip=True)
    add_tokens(backend, [end], special=True)
    add_tokens(backend, ["<stop>"])
    config = {"eos_token_id": size + 3}
    ours = load_tokenizer(write_directory(tmp_path, backend, generation_config=config))
    theirs = reference(backend)
    assert ours.vocab_size == size + 4
    assert ours.control_ids == {0, size + 2, size + 3}  # an end is one too
    for text in ("a<tool é>b <think>", "x <|end|> \n <|end|>\t<think> y", "<s> <s><stop>"):
        ids = ours.encode(text, allow_control=True)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.control_ids.isdisjoint(ours.encode(text))
        assert ours.decode(ours.encode(text)) == text
    assert ours.visible_bytes(size) == "<tool é>".encode()


def test_holes_in_the_vocabulary_are_hidden(tmp_path: Path) -> None:
    backend = byte_level_backend(["<s>"])
    path = write_directory(tmp_path, backend) / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["vocab"]["é!"] = 1000
    path.write_text(json.dumps(document))
    ours = load_tokenizer(tmp_path)
    assert ours.vocab_size == 1001
    assert 999 in ours.control_ids
    assert ours.token_bytes[999] == b""
    assert ours.token_bytes[1000] == bytes([0xE9]) + b"!"


def test_chat_templates_of_directories(tmp_path: Path) -> None:
    backend = byte_level_backend(CONTROLS)
    message = [{"role": "user", "content": "x"}]
    named = [{"name": "default", "template": CHATML}, {"name": "tool", "template": "t"}]
    for value in (CHATML, named):
        write_directory(tmp_path, backend, tokenizer_config={"chat_template": value})
        assert load_tokenizer(tmp_path).encode_chat(message)[0] == 0
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    ours = load_tokenizer(tmp_path)
    assert ours.encode_chat(message) == ours.encode("x")


def broken(decoder: Any = None, model: Any = None) -> tokenizers.Tokenizer:
    backend = byte_level_backend(["<s>"])
    if decoder is not None:
        backend.decoder = decoder
    if model is not None:
        backend.model = model
    return backend


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (broken(decoders.WordPiece()), "decoder is not supported.*WordPiece"),
        (broken(decoders.Metaspace()), "without ByteLevel or ByteFallback"),
        (broken(model=models.WordLevel({"a": 0}, "a")), "model type 'WordLevel'"),
        (
            broken(
                decoders.Sequence(
                    [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 2, 0)]
                )
            ),
            "start=2",
        ),
    ],
)
def test_unsupported_directories(tmp_path: Path, backend: tokenizers.Tokenizer, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load_tokenizer(write_directory(tmp_path, backend))


def test_broken_directories(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="neither a .gguf file nor a directory"):
        load_tokenizer(tmp_path / "absent.gguf")
    path = write_directory(tmp_path, byte_level_backend(["<s>"])) / "tokenizer.json"
    document = json.loads(path.read_text())
    for change, words in (
        ({"vocab": {"a": -1}}, "vocab"),
        ({"surprise": 1}, "unknown field `surprise`"),
        ({"end_of_word_suffix": "</w>"}, "word suffix is not supported"),
        ({"merges": [["q", "zzz"]]}, "'zzz' is not in the vocabulary"),
        ({"merges": ["q z"]}, "'qz' is not in the vocabulary"),
    ):
        path.write_text(json.dumps(document | {"model": document["model"] | change}))
        with pytest.raises(ModelError, match=words):
            load_tokenizer(tmp_path)
    path.write_text("{")
    with pytest.raises(ModelError, match="tokenizer.json"):
        load_tokenizer(tmp_path)
    path.write_text(json.dumps(document))
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelError, match="tokenizer_config.json"):
        load_tokenizer(tmp_path)


def test_normalizers_apply_between_control_tokens(tmp_path: Path) -> None:
    backend = byte_level_backend(["<s>"])
    backend.normalizer = normalizers.NFC()
    ours = load_tokenizer(write_directory(tmp_path, backend))
    text = "e\u0301<s>e\u0301"
    assert ours.encode(text, allow_control=True) == reference(backend).encode(
        text, add_special_tokens=False
    )


def test_prefix_space_of_byte_level(tmp_path: Path) -> None:
    backend = byte_level_backend(["<s>"])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    ours = load_tokenizer(write_directory(tmp_path, backend))
    for text in ("the", " the", "the<s>the<s> the"):
        assert ours.encode(text, allow_control=True) == reference(backend).encode(
            text, add_special_tokens=False
        )


def test_token_types_of_gguf(tmp_path: Path) -> None:
    extra = [("<s>", CONTROL), ("<é >", USER_DEFINED), ("[PAD]", UNUSED), ("</s>", NORMAL)]
    size = len(BYTE_CHARS) + len(MERGES)
    ours = load_tokenizer(
        tiny_gguf(
            tmp_path / "t.gguf",
            extra,
            eos_token_id=size,
            eot_token_id=size + 3,
            bos_token_id=size,
            add_bos_token=True,
            chat_template="{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        )
    )
    assert ours.control_ids == {size, size + 2, size + 3}
    assert ours.eos_ids == {size, size + 3}
    assert ours.bos_id == size
    assert ours.encode("a<é >", add_bos=True) == [size, *ours.encode("a"), size + 1]
    assert ours.token_bytes[size + 1] == "<é >".encode()
    text = "[PAD]</s><é ><s>"
    assert ours.decode(ours.encode(text)) == text
    ids = ours.encode(text, allow_control=True)
    assert [i for i in ids if i in ours.control_ids] == [size + 3, size]
    assert ours.encode_chat([{"role": "user", "content": "<s>"}]) == [
        size,
        *ours.encode("<s>"),
        size,
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pre": "made-up"}, "tokenizer.ggml.pre 'made-up' is not supported"),
        ({"model": "llama"}, "tokenizer.ggml.model 'llama' is not supported"),
        ({"eos_token_id": 9999}, "eos_token_id 9999 is not in the vocabulary"),
    ],
)
def test_unsupported_gguf_files(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load_tokenizer(tiny_gguf(tmp_path / "t.gguf", **fields))


def test_broken_gguf_vocabularies(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    for tokens, types, merges, words in (
        (["a", "b"], [1], ["a b"], "2 tokens but 1 token types"),
        (["a", "a"], [1, 1], ["a a"], "a token twice"),
        (["a", "b"], [1, 1], ["a b"], "'ab' is not in the"),
        (["a", "b", "ab"], [1, 1, 1], ["ab"], "'' is not in the vocabulary"),
        (["a", "b", "ab"], [1, 1, 3], ["a b"], "'ab' is not in the"),  # text would become control
    ):
        with pytest.raises(ModelError, match=words):
            load_tokenizer(write_tokenizer_gguf(path, tokens, types, merges))
