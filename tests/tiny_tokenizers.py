"""Small tokenizers as files, and transformers' view of them: what ids must equal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from gguf import GGUFWriter
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
BYTE_CHARS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "e n", "en d"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROLS = ["<|im_start|>", "<|im_end|>", "<|im_end|>>", "<s>", "<|user|>", "<|end|>"]
_TINY_CONTROLS = [(text, CONTROL) for text in CONTROLS]

CORPUS = [
    "The quick brown fox jumps over the lazy dog. 0123456789",
    "def f(x):\n    return x + 1  # a comment\n",
    "Größe, naïve café, 你好世界, привет, 😀👩‍💻",
    "hello world, hello there, hello again; the the the of of and and",
] * 20


def write_tokenizer_gguf(
    path: Path,
    tokens: Sequence[str],
    types: Sequence[int],
    merges: Sequence[str],
    **fields: str | int | bool,
) -> Path:
    """A GGUF file of metadata alone; `fields` are further `tokenizer.ggml.` keys."""
    writer = GGUFWriter(path, "llama")
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(types))
    writer.add_token_merges(list(merges))
    for name, value in ({"model": "gpt2", "pre": "smollm"} | fields).items():
        key = "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def tiny_gguf(
    path: Path,
    extra: Sequence[tuple[str, int]] = _TINY_CONTROLS,
    **fields: str | int | bool,
) -> Path:
    """All 256 bytes, a few merges, then the tokens `extra` with their types."""
    tokens = BYTE_CHARS + [merge.replace(" ", "") for merge in MERGES]
    types = [NORMAL] * len(tokens) + [kind for _, kind in extra]
    return write_tokenizer_gguf(
        path, [*tokens, *(text for text, _ in extra)], types, MERGES, **fields
    )


def byte_level_backend(special: Sequence[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE as GPT-2's, trained here."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(special),
        initial_alphabet=BYTE_CHARS,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def sentencepiece_backend(*, metaspace: str | None, bos: bool = False) -> tokenizers.Tokenizer:
    """BPE with byte fallback: a Metaspace of this scheme, or Llama 2's normalizer (None)."""
    pieces = ["▁", *"abcdefghijklmnopqrstuvwxyzTHé.,!<>|_", "▁t", "he", "▁the", "ll", "hell", "▁▁"]
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {token: i for i, token in enumerate(special + byte_tokens + pieces)}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("l", "l"), ("he", "ll"), ("▁", "▁")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metaspace is None:
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=metaspace, split=False)
    if metaspace != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
        )
    add_tokens(backend, [tokenizers.AddedToken(t, normalized=False) for t in special], special=True)
    return backend


def add_tokens(
    backend: tokenizers.Tokenizer,
    tokens: Sequence[str | tokenizers.AddedToken],
    *,
    special: bool = False,
) -> None:
    untyped: Any = backend
    (untyped.add_special_tokens if special else untyped.add_tokens)(list(tokens))


def write_directory(
    path: Path, backend: tokenizers.Tokenizer, **files: Mapping[str, object]
) -> Path:
    """A directory with tokenizer.json and `files`, JSON files by name."""
    path.mkdir(exist_ok=True)
    backend.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def reference(backend: tokenizers.Tokenizer, **settings: object) -> Any:
    """transformers' tokenizer around `backend`."""
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **settings)
