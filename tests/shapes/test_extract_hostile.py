"""Files that lie: each is one ``RoofgapError`` that names what is wrong, whatever the bytes."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.extract.checkpoint import read_checkpoint
from roofgap.shapes.extract.gguf import read_gguf
from roofgap.shapes.extract.huggingface import MAX_LAYERS, read_huggingface
from roofgap.shapes.extract.safetensors_header import HEADER_LIMIT, read_header, read_safetensors
from roofgap.shapes.extract.source import extract

FIXTURE = [HealthCheck.function_scoped_fixture]  # the folder is only where the file is written anew
Entry = dict[str, Any]


def entry(begin: int, end: int, shape: list[Any] | None = None, dtype: Any = "U8") -> Entry:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def safetensors(path: Path, header: bytes | dict[str, Any], data: int = 8, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data))
    return path


def test_a_good_header_is_read_in_any_order(tmp_path: Path) -> None:
    header = {
        "b": entry(4, 8, [2], "F16"),
        "a": entry(0, 4, [2, 2]),
        "__metadata__": {"format": "pt"},
        "c": entry(8, 8),
    }
    assert read_header(safetensors(tmp_path / "x", header)) == {"b": (2,), "a": (2, 2), "c": (0,)}


BAD_HEADERS: dict[str, tuple[bytes | dict[str, Any], int, str]] = {
    "overlap": ({"a": entry(0, 8), "b": entry(4, 8)}, 8, "overlap"),
    "same span": ({"a": entry(0, 8), "b": entry(0, 8)}, 8, "overlap"),
    "negative": ({"a": {"dtype": "U8", "shape": [8], "data_offsets": [-8, 0]}}, 8, "whole numbers"),
    "backwards": ({"a": {"dtype": "U8", "shape": [8], "data_offsets": [8, 0]}}, 8, "begin before they end"),
    "hole": ({"a": entry(0, 2), "b": entry(4, 8)}, 8, "hole"),
    "hole at the front": ({"a": entry(4, 8)}, 8, "hole"),
    "trailing data": ({"a": entry(0, 4)}, 8, "goes on"),
    "cut short": ({"a": entry(0, 4000)}, 8, "cut short"),
    "size": ({"a": entry(0, 8, [3], "F16")}, 8, "does not take"),
    "huge shape": ({"a": entry(0, 8, [2**62, 2**62])}, 8, "does not take"),
    "dimension": ({"a": entry(0, 8, [-8])}, 8, "whole numbers"),
    "giant dimension": ({"a": entry(0, 8, [2**63])}, 8, "whole numbers"),
    "float dimension": ({"a": entry(0, 8, [8.0])}, 8, "whole numbers"),
    "boolean dimension": ({"a": entry(0, 8, [True, 8])}, 8, "whole numbers"),
    "three offsets": ({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 4, 8]}}, 8, "offsets two"),
    "dtype": ({"a": entry(0, 8, [8], "U7")}, 8, "U7"),
    "dtype a list": ({"a": entry(0, 8, [8], ["U8"])}, 8, "is none of"),
    "missing field": ({"a": {"dtype": "U8", "shape": [8]}}, 8, "data_offsets"),
    "further field": ({"a": entry(0, 8) | {"code": "x"}}, 8, "nothing else"),
    "entry a number": ({"a": 3}, 8, "data_offsets"),
    "metadata": ({"a": entry(0, 8), "__metadata__": {"n": 1}}, 8, "strings"),
    "no tensors": ({"__metadata__": {}}, 0, "no tensors"),
    "twice": (b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{}}', 8, "twice"),
    "field twice": (b'{"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}}', 8, "twice"),
    "not JSON": (b"{nonsense}", 8, "not JSON"),
    "not UTF-8": (b'{"\xff\xfe":1}', 8, "UnicodeDecodeError"),
    "a list": (b"[]", 8, "object"),
    "leading space": (b" {}", 8, "first byte"),
    "nothing": (b"", 8, "not JSON"),
    "deep": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", 8, "not JSON"),
    "giant number": (b'{"a":' + b"9" * 20_000 + b"}", 8, "not JSON"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_bad_header(tmp_path: Path, case: str) -> None:
    header, data, says = BAD_HEADERS[case]
    path = safetensors(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(RoofgapError, match=says) as caught:
        read_header(path)
    assert str(path) in caught.value.value
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "0 bytes"),
        (b"1234567", "7 bytes"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "past the end"),
        (struct.pack("<Q", 3) + b"{}", "past the end"),
    ],
)
def test_bad_length(tmp_path: Path, raw: bytes, says: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw)
    with pytest.raises(RoofgapError, match=says):
        read_header(path)


def test_a_header_over_the_limit_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", HEADER_LIMIT + 1))
        file.truncate(HEADER_LIMIT + 100)
    with pytest.raises(RoofgapError, match=str(HEADER_LIMIT)):
        read_header(path)


@settings(deadline=None, suppress_health_check=FIXTURE)
@given(raw=st.binary(max_size=300))
def test_random_bytes_never_escape(tmp_path: Path, raw: bytes) -> None:
    for reader in (read_header, read_gguf):
        path = tmp_path / "random"
        path.write_bytes(raw)
        with pytest.raises(RoofgapError):
            reader(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F16", "F4", "F32", "?"]) | JSON,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 16), min_size=2, max_size=2) | JSON,
    }
)


@settings(deadline=None, suppress_health_check=FIXTURE)
@given(header=st.dictionaries(st.text(max_size=6), ENTRY | JSON, max_size=4), data=st.integers(0, 16))
def test_random_headers_are_read_soundly_or_refused(
    tmp_path: Path, header: dict[str, Any], data: int
) -> None:
    path = safetensors(tmp_path / "random", header, data)
    try:
        shapes = read_header(path)
    except RoofgapError:
        return
    assert shapes.keys() == header.keys() - {"__metadata__"}


@settings(deadline=None, suppress_health_check=FIXTURE)
@given(position=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_mutated_files_never_escape(tmp_path: Path, position: int, value: int, cut: bool) -> None:
    good = safetensors(tmp_path / "good", {"a": entry(0, 4, [2], "F16"), "b": entry(4, 8)}).read_bytes()
    for reader, raw in ((read_header, good), (read_gguf, small_gguf())):
        at = position % len(raw)
        path = tmp_path / "mutated"
        path.write_bytes(raw[:at] if cut else raw[:at] + bytes([value]) + raw[at + 1 :])
        try:
            reader(path)
        except RoofgapError:
            continue
        assert not cut


def index(folder: Path, mapped: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": mapped}))
    return path


@pytest.mark.parametrize(
    ("mapped", "says"),
    [
        ({"a": "../one.safetensors"}, "plain file name"),
        ({"a": "/etc/passwd"}, "plain file name"),
        ({"a": "one.safetensors", "z": "one.safetensors"}, "none of its shards"),
        ({"z": "one.safetensors"}, "does not place it"),
        ({"a": "gone.safetensors"}, "cannot be read"),
        ({"a": 1}, "file names"),
        ({}, "file names"),
        ([], "file names"),
    ],
)
def test_bad_index(tmp_path: Path, mapped: Any, says: str) -> None:
    safetensors(tmp_path / "one.safetensors", {"a": entry(0, 8)})
    with pytest.raises(RoofgapError, match=says):
        read_safetensors([index(tmp_path, mapped)])


def test_a_name_in_two_shards(tmp_path: Path) -> None:
    shards = [safetensors(tmp_path / f"{name}.safetensors", {"a": entry(0, 8)}) for name in "xy"]
    with pytest.raises(RoofgapError, match="another shard"):
        read_safetensors(shards)


class Payload:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_pickled_class_is_named_and_never_run(tmp_path: Path, legacy: bool) -> None:
    path, marker = tmp_path / "model.pt", tmp_path / "ran"
    content = {"model": {"w": torch.zeros(2)}, "args": Payload(marker)}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(RoofgapError, match="pickled class"):
        read_checkpoint(path)
    assert not marker.exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_bare_pickle_is_never_run(tmp_path: Path) -> None:
    path, marker = tmp_path / "model.pt", tmp_path / "ran"
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(RoofgapError):
        read_checkpoint(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([torch.zeros(2)], "list"),
        ({"a": 1}, "a"),
        ({}, "nothing"),
        ({"model": {"w": torch.zeros(1)}, "state_dict": {"w": torch.zeros(1)}}, "exactly one"),
        ({"model": {"model": {"step": 3}}}, "step"),
        (torch.zeros(2), "Tensor"),
    ],
)
def test_no_state_dict(tmp_path: Path, content: Any, says: str) -> None:
    path = tmp_path / "model.pt"
    torch.save(content, path)
    with pytest.raises(RoofgapError, match=says):
        read_checkpoint(path)


@pytest.mark.parametrize("raw", [b"", b"PK\x03\x04", b"not a checkpoint", b"\x80\x02}q\x00."])
def test_bytes_that_are_no_checkpoint(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(raw)
    with pytest.raises(RoofgapError):
        read_checkpoint(path)


GOOD_CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_attention_heads": 5}, "divide"),
        ({"num_key_value_heads": 3}, "heads"),
        ({"intermediate_size": 0}, "intermediate_size=0"),
        ({"hidden_size": -64}, "hidden_size=-64"),
        ({"vocab_size": "96"}, "vocab_size='96'"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers=2.5"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True"),
        ({"num_hidden_layers": MAX_LAYERS + 1}, str(MAX_LAYERS)),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_key_value_heads": None}, "num_key_value_heads"),
        ({"model_type": "no-such-model"}, "no-such-model"),
        ({"model_type": None}, "model_type"),
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": "t5"}, "t5"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "mixtral"),
        ({"hidden_act": "no-such-activation"}, "no-such-activation"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"max_position_embeddings": 1.5}, "max_position_embeddings"),
    ],
)
def test_bad_config(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    config = {key: value for key, value in (GOOD_CONFIG | change).items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RoofgapError, match=says):
        extract([tmp_path], {})


def test_the_good_config_is_good(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GOOD_CONFIG))
    assert extract([tmp_path], {}).architecture.head_dim == 16


def test_code_in_a_folder_is_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n")
    auto = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps(GOOD_CONFIG | {"model_type": "evil", "auto_map": auto}))
    with pytest.raises(RoofgapError, match="evil"):
        extract([tmp_path], {})
    (tmp_path / "config.json").write_text(json.dumps(GOOD_CONFIG | {"auto_map": auto}))
    extract([tmp_path], {})  # the model type is known; its own code is used, not the folder's
    assert not marker.exists()


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b"\xff", b"[" * 100_000], ids=["empty", "list", "cut", "bytes", "deep"]
)
def test_config_that_is_no_json_object(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(RoofgapError):
        read_huggingface(tmp_path / "config.json")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(
    tensors: bytes = b"", count: int = 0, pairs: bytes = b"", pair_count: int = 0, version: int = 3
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, count, pair_count) + pairs + tensors


def tensor(name: str = "a", shape: tuple[int, ...] = (4, 2), kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, offset)


def small_gguf() -> bytes:
    pairs = text("n") + struct.pack("<II", 4, 7) + text("s") + struct.pack("<I", 8) + text("value")
    raw = gguf(tensor(), 1, pairs, 2)
    return raw + bytes(-len(raw) % 32 + 32)


def array(kind: int, count: int, body: bytes = b"") -> bytes:
    return text("k") + struct.pack("<IIQ", 9, kind, count) + body


BAD_GGUF = {
    "magic": (b"GGML" + bytes(40), "GGUF"),
    "version": (gguf(version=9), "version 9"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
    "many tensors": (gguf(count=2**63), "do not fit"),
    "many pairs": (gguf(pair_count=2**63), "do not fit"),
    "long name": (gguf(struct.pack("<Q", 2**62) + bytes(40), 1), "past the end"),
    "long array": (gguf(pairs=array(4, 2**61), pair_count=1), "past the end"),
    "long string array": (gguf(pairs=array(8, 2**61), pair_count=1), "do not fit"),
    "deep array": (
        gguf(pairs=text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 40, pair_count=1),
        "deep",
    ),
    "value type": (gguf(pairs=text("k") + struct.pack("<I", 99), pair_count=1), "99"),
    "pair twice": (gguf(pairs=(text("k") + struct.pack("<II", 4, 1)) * 2, pair_count=2), "twice"),
    "tensor twice": (gguf(tensor() + tensor(offset=32), 2) + bytes(96), "twice"),
    "rank 0": (gguf(tensor(shape=()), 1) + bytes(96), "rank 0"),
    "rank 9": (gguf(tensor(shape=(1,) * 9), 1) + bytes(96), "rank 9"),
    "type": (gguf(tensor(kind=77), 1) + bytes(96), "type 77"),
    "ragged block": (gguf(tensor(shape=(33, 1), kind=2), 1) + bytes(96), "whole blocks"),
    "overlap": (gguf(tensor() + tensor("b", offset=16), 2) + bytes(96), "overlaps"),
    "cut short": (gguf(tensor(shape=(2**20, 2**20)), 1) + bytes(96), "cut short"),
    "alignment": (
        gguf(tensor(), 1, text("general.alignment") + struct.pack("<II", 4, 0), 1) + bytes(96),
        "alignment=0",
    ),
    "name not UTF-8": (gguf(struct.pack("<Q", 2) + b"\xff\xfe" + bytes(60), 1), "UTF-8"),
    "split": (gguf(b"", 0, text("split.count") + struct.pack("<IH", 2, 3), 1), "split"),
}


@pytest.mark.parametrize("case", BAD_GGUF)
def test_bad_gguf(tmp_path: Path, case: str) -> None:
    raw, says = BAD_GGUF[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises(RoofgapError, match=says):
        read_gguf(path)


def test_the_small_gguf_is_good(tmp_path: Path) -> None:
    (tmp_path / "good.gguf").write_bytes(small_gguf())
    assert read_gguf(tmp_path / "good.gguf").shapes == {"a": (2, 4)}
