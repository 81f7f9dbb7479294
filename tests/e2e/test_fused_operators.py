"""Fused small operators against fp64, on the CPU's interpreter or a GPU."""

from __future__ import annotations

import pytest
import torch

from roofgap.e2e.fused import reference
from roofgap.e2e.fused.argmax import argmax, next_token
from roofgap.e2e.fused.attention import BLOCK, MOST_SPLITS, chunk_of, decode_attention
from roofgap.e2e.fused.norm import add_rms_norm
from roofgap.e2e.fused.swiglu import swiglu
from roofgap.kernels.reference import rounded
from roofgap.shapes.errors import RoofgapError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float16, torch.bfloat16)


def noise(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 96), (3, 576), (1, 1536)])
def test_norm_adds_and_normalises(dtype: torch.dtype, rows: int, hidden: int) -> None:
    x, residual = (noise(rows, hidden, dtype=dtype, seed=seed, scale=3) for seed in (1, 2))
    weight = noise(hidden, dtype=dtype, seed=3)
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, rounded(x.float() + residual.float(), dtype))
    assert reference.rms_norm(total, weight, 1e-6).worst_of(normed) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_without_an_addend_passes_the_residual_on(dtype: torch.dtype) -> None:
    residual, weight = noise(2, 100, dtype=dtype), noise(100, dtype=dtype, seed=1)
    normed, total = add_rms_norm(None, residual, weight, 1e-5)
    assert torch.equal(total, residual)
    assert reference.rms_norm(residual, weight, 1e-5).worst_of(normed) <= 1


def test_norm_needs_its_epsilon() -> None:
    residual = noise(1, 64, dtype=torch.float16, scale=1e-3)
    normed, _ = add_rms_norm(None, residual, torch.ones_like(residual[0]), 1e-2)
    assert reference.rms_norm(residual, torch.ones_like(residual[0]), 0.0).worst_of(normed) > 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("joined", [True, False])
def test_swiglu(dtype: torch.dtype, joined: bool) -> None:
    both = noise(2, 2 * 700, dtype=dtype, scale=4)
    both[0, 0], both[1, 1] = 60, -60  # both ends of the exponential
    gate, up = both.chunk(2, dim=-1) if joined else (part.contiguous() for part in both.chunk(2, dim=-1))
    assert reference.swiglu(gate, up).worst_of(swiglu(gate, up)) <= 1


class Case:
    """A cache with some tokens in it, and the next one."""

    def __init__(
        self, dtype: torch.dtype, *, heads: int, kv_heads: int, head_dim: int, length: int, capacity: int
    ) -> None:
        self.q, self.k, self.v = noise(1, (heads + 2 * kv_heads) * head_dim, dtype=dtype, seed=5).split(
            [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=-1
        )
        angle = torch.arange(capacity)[:, None] * 0.7 ** torch.arange(head_dim // 2)[None]
        self.cos, self.sin = (
            torch.cat([part, part], -1).to(dtype).to(DEVICE) for part in (angle.cos(), angle.sin())
        )
        shape = (1, kv_heads, capacity, head_dim)
        self.keys, self.values = (noise(*shape, dtype=dtype, seed=seed) for seed in (6, 7))
        self.keys[:, :, length:], self.values[:, :, length:] = (
            float("nan"),
            float("nan"),
        )  # must never be used
        self.length = torch.tensor(length, device=DEVICE)
        self.position = torch.tensor([[length]], device=DEVICE)
        self.dtype, self.head_dim, self.scale = dtype, head_dim, head_dim**-0.5

    def run(self) -> torch.Tensor:
        return decode_attention(
            self.q,
            self.k,
            self.v,
            cos=self.cos,
            sin=self.sin,
            position=self.position,
            keys=self.keys,
            values=self.values,
            length=self.length,
            scale=self.scale,
        )

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        position = int(self.position)
        return reference.rotate(x.view(-1, self.head_dim), self.cos[position], self.sin[position])

    def worst(self, y: torch.Tensor, filled: int) -> float:
        """Judges with the cache as the kernel left it."""
        keys, values = self.keys[0, :, :filled], self.values[0, :, :filled]
        expected = reference.attention(self.rotated(self.q), keys, values, self.scale)
        return expected.worst_of(y.view(-1, self.head_dim))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "length", "capacity"),
    [
        (6, 2, 16, 0, 40),  # the first token of all
        (6, 2, 64, BLOCK - 1, 128),  # fills a block
        (4, 4, 32, BLOCK, 100),  # begins one; no shared heads; a ragged last split
        (12, 2, 128, 70, 128),  # Qwen2.5-1.5B's heads
        (3, 1, 64, 99, 100),  # fills the cache
    ],
)
def test_attention(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, length: int, capacity: int
) -> None:
    case = Case(dtype, heads=heads, kv_heads=kv_heads, head_dim=head_dim, length=length, capacity=capacity)
    before = case.keys[:, :, :length].clone()
    y = case.run()
    assert int(case.length) == length + 1
    assert torch.equal(case.keys[:, :, :length], before)
    assert torch.equal(case.values[0, :, length].reshape(1, -1), case.v)
    unit = reference.unit_of(dtype)
    new_key = case.rotated(case.k)
    assert bool((case.keys[0, :, length].double() - new_key).abs().le(unit * new_key.abs() + 1e-6).all())
    assert bool(torch.isnan(case.keys[:, :, length + 1 :]).all())
    assert case.worst(y, length + 1) <= 1


def test_attention_loops_over_long_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofgap.e2e.fused.attention.MOST_SPLITS", 2)
    case = Case(torch.float16, heads=2, kv_heads=1, head_dim=16, length=150, capacity=256)
    assert chunk_of(256) == 4 * BLOCK
    assert case.worst(case.run(), 151) <= 1


def test_attention_is_repeatable() -> None:
    cases = [
        Case(torch.bfloat16, heads=4, kv_heads=2, head_dim=16, length=67, capacity=128) for _ in range(2)
    ]
    assert torch.equal(cases[0].run(), cases[1].run())


@pytest.mark.parametrize("fault", ["length", "position", "value"])
def test_attention_reference_tells_faults(fault: str) -> None:
    case = Case(torch.float16, heads=4, kv_heads=2, head_dim=64, length=50, capacity=64)
    y = case.run()
    if fault == "length":
        assert case.worst(y, 50) > 1
        return
    if fault == "position":
        case.position += 1
    else:
        case.values[0, 0, 3] += 1
    assert case.worst(y, 51) > 1


def test_splits_cover_any_cache() -> None:
    for capacity in (1, 31, 32, 33, 1024, 2049, 32768):
        chunk = chunk_of(capacity)
        assert chunk % BLOCK == 0
        assert -(-capacity // chunk) <= MOST_SPLITS


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32])
@pytest.mark.parametrize("vocab", [1, 97, 3000])
def test_argmax(dtype: torch.dtype, vocab: int) -> None:
    logits = noise(2, vocab, dtype=dtype)
    assert torch.equal(argmax(logits), logits.argmax(-1))


def test_argmax_takes_the_first_of_equals_and_sees_nan() -> None:
    logits = torch.zeros((2, 2500), dtype=torch.float16, device=DEVICE)
    logits[0, [7, 1100, 2400]] = 3
    logits[1, 2300] = float("nan")
    assert argmax(logits).tolist() == [7, 2300]


def test_next_token_ends_a_step() -> None:
    logits = noise(1, 2500, dtype=torch.bfloat16)
    token, position = (torch.full((1, 1), value, device=DEVICE) for value in (9, 4))
    generated = torch.full((6,), -1, device=DEVICE)
    best = int(logits.argmax())
    next_token(logits, token, generated, position)
    assert (token.tolist(), position.tolist()) == ([[best]], [[5]])
    assert generated.tolist() == [-1, -1, -1, -1, best, -1]
    with pytest.raises(RoofgapError, match="rows of logits"):
        next_token(logits.expand(2, -1), token, generated, position)
    with pytest.raises(RoofgapError, match="position int32"):
        next_token(logits, token, generated, position.int())


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"head_dim": 48}, "power of two"),
        ({"position": torch.tensor([1, 2])}, "one int64"),
        ({"length": torch.tensor(3, dtype=torch.int32)}, "one int64"),
        ({"q": torch.zeros(2, 64, dtype=torch.float16)[:, ::2]}, "contiguous"),
        ({"k": torch.zeros(1, 32, dtype=torch.bfloat16)}, "must be float16"),
        ({"v": torch.zeros(1, 16, dtype=torch.float16)}, "one token"),
        ({"cos": torch.zeros(8, 32, dtype=torch.float16)}, "cos"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_attention_refuses(change: dict[str, object], rule: str) -> None:
    head_dim = change.pop("head_dim", 16)
    assert isinstance(head_dim, int)
    case = Case(torch.float16, heads=4, kv_heads=2, head_dim=head_dim, length=3, capacity=8)
    for name, value in change.items():
        setattr(case, name, value.to(DEVICE) if isinstance(value, torch.Tensor) else value)
    with pytest.raises(RoofgapError, match=rule):
        case.run()


def test_small_operators_refuse() -> None:
    half = noise(1, 16, dtype=torch.float16)
    with pytest.raises(RoofgapError, match="fp16 or bf16"):
        add_rms_norm(None, half.float(), half[0].float(), 1e-6)
    with pytest.raises(RoofgapError, match="weight"):
        add_rms_norm(None, half, half[0, :8], 1e-6)
    with pytest.raises(RoofgapError, match=r"both be \[M, I\]"):
        swiglu(half, half[:, :8])
    with pytest.raises(RoofgapError, match="floats"):
        argmax(half.long())


@pytest.mark.parametrize("op", ["add_rms_norm", "rms_norm", "swiglu", "argmax", "next_token"])
def test_ops_keep_torchs_contract(op: str) -> None:
    half = noise(2, 24, dtype=torch.float16)
    args = {
        "add_rms_norm": (half, half, half[0], 1e-6),
        "rms_norm": (half, half[0], 1e-6),
        "swiglu": (half, half),
        "argmax": (half,),
        "next_token": (
            half[:1],
            *(torch.zeros(size, dtype=torch.int64, device=DEVICE) for size in (1, 3, 1)),
        ),
    }[op]
    torch.library.opcheck(getattr(torch.ops.roofgap, op).default, args)


def test_attention_keeps_torchs_contract() -> None:
    case = Case(torch.float16, heads=2, kv_heads=1, head_dim=16, length=3, capacity=8)
    case.keys, case.values = (torch.nan_to_num(part) for part in (case.keys, case.values))
    args = (
        case.q,
        case.k,
        case.v,
        case.cos,
        case.sin,
        case.position,
        case.keys,
        case.values,
        case.length,
        0.25,
    )
    torch.library.opcheck(torch.ops.roofgap.decode_attention.default, args)


@pytest.mark.gpu
def test_attention_in_a_graph_follows_the_counter() -> None:
    case = Case(torch.bfloat16, heads=12, kv_heads=2, head_dim=128, length=500, capacity=1024)
    start = case.keys.clone(), case.values.clone()
    case.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = case.run()
    case.keys.copy_(start[0])
    case.values.copy_(start[1])
    case.length.fill_(500)
    for step in range(40):
        case.position.fill_(500 + step)
        graph.replay()
        assert int(case.length) == 501 + step
        assert case.worst(y, 501 + step) <= 1
