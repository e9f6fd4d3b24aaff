"""The GGUF reader against the gguf library's, and against files made to hurt."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from espalier.runtime.errors import ModelError
from espalier.runtime.hub.gguf_file import read_gguf

_QUANTISED = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q8_0, Type.BF16)


def _write_all_kinds(path: Path) -> None:
    """A file with every value type and several tensor types."""
    writer = GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e300)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "naïve 漢字 🙂")
    writer.add_array("texts", ["", "a", "Ġword", "🙂"])
    writer.add_array("integers", [-1, 0, 1 << 20])
    writer.add_array("numbers", [0.5, -2.0])
    writer.add_array("flags", [True, False, True])
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((6, 64), np.float32)
    writer.add_tensor("f32.weight", matrix)
    writer.add_tensor("f16.weight", matrix.astype(np.float16))
    writer.add_tensor("vector", matrix[0])
    writer.add_tensor("cube", matrix.reshape(2, 3, 64))
    for kind in _QUANTISED:
        writer.add_tensor(kind.name, quantize(matrix, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "all.gguf"
    _write_all_kinds(path)
    return path


def test_metadata_equal_the_librarys(path: Path) -> None:
    file, reference = read_gguf(path), GGUFReader(path)
    expected = {
        name: field.contents()
        for name, field in reference.fields.items()
        if not name.startswith("GGUF.")
    }
    assert dict(file.metadata) == expected
    assert type(file.metadata["yes"]) is bool
    assert file.text("text") == "naïve 漢字 🙂"
    assert file.integer("u64") == 2**64 - 1
    assert file.number("f64") == 1e300
    assert file.number("i8") == -128.0
    assert file.flag("no") is False
    assert file.texts("texts") == ["", "a", "Ġword", "🙂"]
    assert file.integers("integers") == [-1, 0, 1 << 20]
    assert file.integer("absent", 7) == 7


def test_tensors_equal_the_librarys(path: Path) -> None:
    file, reference = read_gguf(path), GGUFReader(path)
    assert list(file.tensors) == [tensor.name for tensor in reference.tensors]
    for expected in reference.tensors:
        tensor = file.tensors[expected.name]
        assert tensor.shape == tuple(reversed(expected.shape.tolist()))
        assert (tensor.type, tensor.offset) == (expected.tensor_type, expected.data_offset)
        assert file.raw(tensor.name).tobytes() == expected.data.tobytes()
        rows = file.raw(tensor.name).reshape(tensor.shape[0] if len(tensor.shape) > 1 else 1, -1)
        np.testing.assert_array_equal(
            dequantize(rows, tensor.type).ravel(),
            dequantize(expected.data, expected.tensor_type).ravel(),
        )
        file.release(tensor.name)
        assert file.raw(tensor.name).tobytes() == expected.data.tobytes()


@pytest.mark.parametrize(
    ("getter", "key"),
    [
        ("text", "u8"),
        ("integer", "text"),
        ("integer", "yes"),
        ("integer", "f32"),
        ("number", "yes"),
        ("flag", "u8"),
        ("texts", "text"),
        ("texts", "integers"),
        ("integers", "flags"),
        ("integers", "numbers"),
        ("text", "absent"),
        ("integers", "absent"),
    ],
)
def test_getters_name_file_and_key(path: Path, getter: str, key: str) -> None:
    with pytest.raises(ModelError, match=f"all.gguf.*'{key}'"):
        getattr(read_gguf(path), getter)(key)


def test_every_truncation_is_an_error(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    end = max(tensor.offset + tensor.nbytes for tensor in read_gguf(path).tensors.values())
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, 1600, 7), *range(1600, end, 331), end - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_gguf(cut)


def test_damaged_headers_never_escape_as_other_errors(path: Path, tmp_path: Path) -> None:
    """Each byte of the header set to 255 in turn: the file reads, or a ModelError says why."""
    whole = path.read_bytes()
    first = min(tensor.offset for tensor in read_gguf(path).tensors.values())
    damaged = tmp_path / "damaged.gguf"
    errors = 0
    for position in range(first):
        data = bytearray(whole)
        data[position] = 0xFF
        damaged.write_bytes(data)
        try:
            read_gguf(damaged)
        except ModelError as error:
            assert "damaged.gguf" in str(error)
            errors += 1
    assert errors > 200


def _header(version: int, num_tensors: int, num_pairs: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs) + rest


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _tensor(name: bytes, dims: list[int], kind: int, offset: int) -> bytes:
    packed = b"".join(struct.pack("<Q", dim) for dim in dims)
    return _string(name) + struct.pack("<I", len(dims)) + packed + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (_header(1, 0, 0), "version 1"),
        (_header(9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (_header(3, 2**63, 0), "truncated or damaged"),
        (_header(3, 0, 2**63), "truncated or damaged"),
        (_header(3, 0, 1, struct.pack("<Q", 2**62) + bytes(32)), "truncated or damaged"),
        (_header(3, 0, 1, _string(b"k") + struct.pack("<I", 77) + bytes(32)), "value type 77"),
        (
            _header(3, 0, 1, _string(b"k") + struct.pack("<IIQ", 9, 4, 2**60) + bytes(32)),
            "truncated or damaged",
        ),
        (
            _header(3, 0, 1, _string(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9),
            "nested",
        ),
        (_header(3, 0, 1, _string(b"\xff\xfe") + bytes(32)), "UTF-8"),
        (
            _header(3, 0, 2, (_string(b"k") + struct.pack("<II", 4, 1)) * 2 + bytes(32)),
            "'k' appears twice",
        ),
        (
            _header(3, 0, 1, _string(b"general.alignment") + struct.pack("<II", 4, 3)),
            "alignment is 3",
        ),
        (_header(3, 1, 0, _tensor(b"t", [1] * 9, 0, 0) + bytes(99)), "9 dimensions"),
        (_header(3, 1, 0, _tensor(b"t", [8], 999, 0) + bytes(99)), "unknown type 999"),
        (_header(3, 1, 0, _tensor(b"t", [8], int(Type.Q8_0), 0) + bytes(99)), "bad shape"),
        (_header(3, 1, 0, _tensor(b"t", [2**40, 2**40], 0, 0) + bytes(99)), "bad shape"),
        (_header(3, 1, 0, _tensor(b"t", [8], 0, 2**62) + bytes(99)), "truncated"),
        (_header(3, 2, 0, _tensor(b"t", [8], 0, 0) * 2 + bytes(99)), "same name"),
    ],
)
def test_hostile_files_say_what_is_wrong(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=words) as caught:
        read_gguf(path)
    assert "hostile.gguf" in str(caught.value)


def test_a_missing_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent.gguf: No such file"):
        read_gguf(tmp_path / "absent.gguf")


def test_version_2_is_read(path: Path) -> None:
    data = bytearray(path.read_bytes())
    assert data[4:8] == struct.pack("<I", gguf.GGUF_VERSION)
    data[4:8] = struct.pack("<I", 2)
    path.write_bytes(data)
    assert read_gguf(path).integer("u8") == 255
