"""Reading a header costs what the header costs, however large the file behind it is."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roofgap.shapes.extract.safetensors_header import read_header
from roofgap.shapes.extract.source import extract
from roofgap.shapes.manifest import load_manifest

NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def sparse_model(path: Path, model: str = "qwen2.5-14b") -> int:
    """A whole model in bf16 as one sparse file: a real header before a hole. Returns the header's bytes."""
    manifest = load_manifest(model)
    a = manifest.architecture
    shapes: dict[str, list[int]] = {"model.embed_tokens.weight": [a.vocab, a.hidden]}
    for layer in range(a.layers):
        prefix = f"model.layers.{layer}."
        for matrix in manifest.matrices[:-1]:
            name = prefix + NAMES[matrix.role]
            shapes[f"{name}.weight"] = [matrix.n, matrix.k]
            if matrix.bias:
                shapes[f"{name}.bias"] = [matrix.n]
        shapes[f"{prefix}input_layernorm.weight"] = [a.hidden]
        shapes[f"{prefix}post_attention_layernorm.weight"] = [a.hidden]
    shapes["model.norm.weight"] = [a.hidden]
    if not a.tied:
        shapes["lm_head.weight"] = [a.vocab, a.hidden]
    header: dict[str, Any] = {}
    position = 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + position)
    assert position == 2 * manifest.parameters
    return len(raw)


def bytes_read() -> int:
    """What this process has asked the kernel to read so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_only_the_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = sparse_model(path)
    assert path.stat().st_size > 29e9
    if not Path("/proc/self/io").exists():
        pytest.skip("needs /proc/self/io")
    own = -bytes_read() + bytes_read()  # what one look at the counter itself adds
    before = bytes_read()
    read_header(path)
    assert header + 8 <= bytes_read() - before <= header + 8 + 4 * own


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for size in (10**3, 10**9, 10**12):
        path = tmp_path / f"{size}.safetensors"
        raw = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(raw)) + raw)
            file.truncate(8 + len(raw) + size)
        read_header(path)
        tracemalloc.start()
        read_header(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 100_000
    assert max(peaks) - min(peaks) < 4_000


def test_a_whole_model_gives_the_shipped_matrices(tmp_path: Path) -> None:
    path = tmp_path / "qwen.safetensors"
    sparse_model(path)
    shipped = load_manifest("qwen2.5-14b")
    manifest = extract([path], {"head_dim": 128})
    assert manifest.parameters == shipped.parameters
    unsourced = [m.model_copy(update={"provenance": "published"}) for m in manifest.matrices]
    assert tuple(unsourced) == shipped.matrices


def test_benchmark_header_of_a_29_gb_file(benchmark: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    sparse_model(path)
    shapes = benchmark(read_header, path)
    assert len(shapes) == 48 * 12 + 3


def test_benchmark_extract_of_a_29_gb_file(benchmark: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    sparse_model(path)
    assert benchmark(extract, [path], {"head_dim": 128}).architecture.layers == 48
