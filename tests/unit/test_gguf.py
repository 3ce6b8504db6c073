"""The GGUF reader: what it understands, and that no file makes it do anything but read or refuse."""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.engines import gguf as module
from adapters.engines.gguf import GgufError, Header, parse, read_header, split_files
from tests.support import gguf_files as files

EVERY_TYPE: dict[str, files.Typed] = {
    "general.architecture": (files.STRING, "llama"),
    "a.u8": (files.U8, 255),
    "a.i8": (files.I8, -1),
    "a.u16": (files.U16, 65535),
    "a.i16": (files.I16, -2),
    "a.u32": (files.U32, 4294967295),
    "a.i32": (files.I32, -3),
    "a.f32": (files.F32, 0.5),
    "a.bool": (files.BOOL, True),
    "a.u64": (files.U64, 1 << 63),
    "a.i64": (files.I64, -4),
    "a.f64": (files.F64, 0.25),
    "a.text": (files.STRING, "naïve"),
    "llama.head_count_kv": (files.ARRAY, (files.U32, [8, 0, 8])),
    "llama.pattern": (files.ARRAY, (files.BOOL, [True, False])),
    "tokenizer.ggml.tokens": (files.ARRAY, (files.STRING, ["a", "", "ccc"])),
    "llama.block_count": (files.U32, 3),
    "llama.negative": (files.I32, -7),
}


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_type_of_value(version: int) -> None:
    header = parse(files.gguf(EVERY_TYPE, version=version))
    assert header.version == version
    assert header.architecture == "llama"
    wanted = {key: value for key, (kind, value) in EVERY_TYPE.items() if kind != files.ARRAY}
    assert dict(header.scalars) == wanted
    assert header.arrays == {"llama.head_count_kv": (8, 0, 8), "llama.pattern": (True, False)}
    assert header.lengths == {"llama.head_count_kv": 3, "llama.pattern": 2, "tokenizer.ggml.tokens": 3}
    assert header.number("block_count") == 3
    assert header.number("negative") == 0
    assert header.number("no_such_key", 5) == 5


def test_keeps_only_the_length_of_long_arrays_and_no_long_texts() -> None:
    long = [0] * (module.MAX_KEPT_ITEMS + 1)
    header = parse(files.gguf({"x.scores": (files.ARRAY, (files.F32, long)), "x.template": (files.STRING, "t" * 70_000)}))
    assert header.lengths["x.scores"] == len(long)
    assert header.arrays == {}
    assert header.scalars == {}


def test_knows_where_the_tensors_end(tmp_path: Path) -> None:
    path = files.tiny_model(tmp_path / "tiny.gguf")
    header = read_header(path)
    assert header.file_bytes == path.stat().st_size
    assert header.end_bytes is not None
    assert header.file_bytes - 32 <= header.end_bytes <= header.file_bytes
    assert not header.truncated
    assert header.tensors == 3 + 9 * 2
    assert header.largest_packed_bytes == 64 * 260 * 4  # output.weight; the embedding of the same size does not count
    path.write_bytes(path.read_bytes()[:-100])
    assert read_header(path).truncated


def test_a_tensor_of_an_unknown_type_leaves_the_end_unknown() -> None:
    info = files.tensor("x", [4], 9999, 0)
    header = parse(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info)
    assert header.end_bytes is None
    assert not header.truncated


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"GG", "cut"),
        (b"GGML" + bytes(20), "begins with b'GGML'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata pairs"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "cut"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), "name of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + files.text("k") + struct.pack("<IQ", files.STRING, (1 << 64) - 1), "cut"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + files.text("k") + struct.pack("<I", 77), "value type 77"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + files.text("k") + struct.pack("<IIQ", files.ARRAY, files.ARRAY, 1),
            "array of value type",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + files.text("k") + struct.pack("<IIQ", files.ARRAY, files.U64, 1 << 61), "cut"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + files.text("k") + struct.pack("<IIQ", files.ARRAY, files.STRING, 1 << 61), "cut"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + files.text("t") + struct.pack("<I", 1 << 31), "rank"),
        (files.gguf({"general.alignment": (files.U32, 0)}), "alignment"),
        (files.gguf({"general.alignment": (files.U32, 24)}), "alignment"),
        (files.gguf({"general.alignment": (files.STRING, "x")}), "alignment"),
    ],
)
def test_refuses_what_cannot_be_right(data: bytes, message: str) -> None:
    with pytest.raises(GgufError, match=message):
        parse(data)


def test_every_cut_of_a_header_is_refused(tmp_path: Path) -> None:
    whole = files.gguf(EVERY_TYPE, [("token_embd.weight", (4,), bytes(16))])
    end = len(whole) - 32  # the data itself
    for length in range(end - 31):  # up to the padding in front of the data
        with pytest.raises(GgufError):
            parse(whole[:length])


@given(st.data())
def test_damage_is_refused_or_read_but_never_worse(data: st.DataObject) -> None:
    whole = bytearray(files.gguf(EVERY_TYPE, [("w", (4, 2), bytes(32))]))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        header = parse(bytes(whole))
    except GgufError:
        return
    assert isinstance(header, Header)


def test_a_header_longer_than_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(files.gguf({**EVERY_TYPE, "z.tokens": (files.ARRAY, (files.STRING, ["x" * 50] * 100))}))
    monkeypatch.setattr(module, "FIRST_READ_BYTES", 64)
    assert read_header(path).lengths["z.tokens"] == 100
    monkeypatch.setattr(module, "MAX_HEADER_BYTES", 1024)
    with pytest.raises(GgufError, match="does not end within"):
        read_header(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="folder"):
        read_header(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GgufError, match="regular file"):
        read_header(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "none.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GgufError, match="empty"):
        read_header(tmp_path / "empty.gguf")


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(GgufError):
            read_header(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_split_files() -> None:
    assert split_files(Path("/m/big-00002-of-00003.gguf")) == [Path(f"/m/big-0000{n}-of-00003.gguf") for n in (1, 2, 3)]
    assert split_files(Path("/m/big.gguf")) == [Path("/m/big.gguf")]
    assert len(split_files(Path("/m/big-00001-of-99999.gguf"))) == module.MAX_SPLITS
