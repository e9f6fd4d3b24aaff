"""The safetensors reader against the safetensors library, and against damaged files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from espalier.runtime.errors import ModelError
from espalier.runtime.hub.safetensors_file import read_safetensors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "some.safetensors"
    path.write_bytes(
        save(
            {
                "matrix": rng.standard_normal((5, 7), np.float32),
                "half": rng.standard_normal((2, 3)).astype(np.float16),
                "index": np.arange(4),
                "scalar": np.array(2.0, np.float32),
            },
            metadata={"format": "np"},
        )
    )
    return path


def test_tensors_equal_what_the_library_wrote(path: Path) -> None:
    file = read_safetensors(path)
    expected = load(path.read_bytes())
    assert set(file.tensors) == set(expected)
    for name, array in expected.items():
        assert file.tensors[name].shape == array.shape
        assert file.raw(name).tobytes() == array.tobytes()
        file.release(name)
        assert file.raw(name).tobytes() == array.tobytes()
    assert {name: tensor.dtype for name, tensor in file.tensors.items()} == {
        "matrix": "F32",
        "half": "F16",
        "index": "I64",
        "scalar": "F32",
    }


def test_every_truncation_is_an_error(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    cut = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.safetensors"):
            read_safetensors(cut)


def _entry(**changes: object) -> dict[str, object]:
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (_entry(dtype="F3"), "'t' has unknown type 'F3'"),
        (_entry(shape=[-2]), "'t'"),
        (_entry(shape=[3]), "disagree"),
        (_entry(data_offsets=[8, 0]), "disagree"),
        (_entry(data_offsets=[-8, 0]), "'t'"),
        (_entry(data_offsets=[0, 8, 9]), "'t'"),
        (_entry(data_offsets=[2**60, 2**60 + 8]), "truncated"),
        ({"t": 1}, "'t'"),
        ({"t": {}}, "'t'"),
    ],
)
def test_hostile_headers_say_what_is_wrong(
    tmp_path: Path, header: bytes | dict[str, object], words: str
) -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(8))
    with pytest.raises(ModelError, match=words) as caught:
        read_safetensors(path)
    assert "hostile.safetensors" in str(caught.value)


def test_an_absurd_header_length_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + bytes(64))
    with pytest.raises(ModelError, match="header bytes"):
        read_safetensors(path)
