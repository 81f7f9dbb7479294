"""The decode loop against transformers' own generate, and teacher forcing against one full pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from roofgap.e2e.decoder import Decoder, capacity_for
from roofgap.e2e.projections import join_projections
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure.fake import ScriptedDevice

CPU = torch.device("cpu")
ARCHITECTURES = [
    pytest.param({"tied": False, "seed": 3}, id="qwen2"),  # a tied model of random weights repeats its input
    pytest.param({"tied": False, "qkv_bias": False, "kv_heads": 4, "seed": 2}, id="llama"),
    pytest.param({"tied": False, "qkv_bias": False, "head_dim": 32, "seed": 2}, id="llama-wide-heads"),
]


def prompt(length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(128, (1, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("changes", ARCHITECTURES)
@pytest.mark.parametrize("joined", [False, True])
def test_loop_equals_transformers_generate(tiny_source, changes, joined) -> None:
    model = tiny_source(**changes).build(CPU, torch.float32)
    if joined:
        join_projections(model)
    decoder, tokens = Decoder(model, 64), prompt(9)
    want = decoder.generate(tokens, 12)[0]
    decoder.prefill(tokens)
    first = int(decoder.token)
    for _ in range(11):
        decoder.step()
    assert [first, *decoder.generated[9:20].tolist()] == want.tolist()
    assert len(set(want.tolist())) > 1, "a constant sequence would prove nothing"


def test_rewind_repeats_the_same_tokens(tiny_source) -> None:
    decoder = Decoder(tiny_source().build(CPU), 64)
    runs = []
    decoder.prefill(prompt(7))
    for _ in range(2):
        decoder.rewind()
        for _ in range(6):
            decoder.step()
        runs.append(decoder.generated[7:13].tolist())
    assert runs[0] == runs[1]
    decoder.prefill(prompt(5, seed=2))  # a shorter prompt after a longer one: what lies beyond is masked
    fresh = Decoder(decoder.model, 64)
    fresh.prefill(prompt(5, seed=2))
    for each in (decoder, fresh):
        each.step()
    assert torch.equal(decoder.logits, fresh.logits)


@pytest.mark.parametrize("tied", [True, False])
def test_teacher_forcing_equals_one_pass(tiny_source, tied) -> None:
    model, tokens = tiny_source(tied=tied).build(CPU, torch.float32), prompt(20)
    decoder = Decoder(model, 64)
    decoder.prefill(tokens[:, :12])
    logits = decoder.forced(decoder.step, tokens[0, 12:])
    want = model(input_ids=tokens).logits[0, 12:]
    torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-5)


def test_captured_step_is_the_eager_step(tiny_source) -> None:
    decoder, tokens = Decoder(tiny_source().build(CPU), 64), prompt(10)
    decoder.prefill(tokens[:, :6])
    graph = decoder.capture(ScriptedDevice())
    assert int(decoder.position) == 6
    captured = decoder.forced(graph.replay, tokens[0, 6:])
    decoder.rewind()
    assert torch.equal(captured, decoder.forced(decoder.step, tokens[0, 6:]))


class NoHostRead(TorchDispatchMode):
    """Refuses operations that bring a value to the host: they would end a capture, and stall an eager loop."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise AssertionError(f"{func} in a step")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("joined", [False, True])
def test_a_step_reads_nothing_on_the_host(tiny_source, joined) -> None:
    model = tiny_source().build(CPU)
    if joined:
        join_projections(model)
    decoder = Decoder(model, 64)
    decoder.prefill(prompt(6))
    with NoHostRead():
        decoder.step()
        with pytest.raises(AssertionError, match="in a step"):
            int(decoder.position)


def test_a_capture_that_holds_nothing_is_refused(tiny_source) -> None:
    decoder = Decoder(tiny_source().build(CPU), 64)
    decoder.prefill(prompt(6))
    with pytest.raises(RoofgapError, match="does not do the work"):
        decoder.capture(ScriptedDevice(drops=lambda work: True, counts_nodes=False))


def test_a_prompt_must_fit(tiny_source) -> None:
    decoder = Decoder(tiny_source().build(CPU), 8)
    for length in (0, 8):
        with pytest.raises(RoofgapError, match="must be 1 to 7"):
            decoder.prefill(prompt(length))


@pytest.mark.parametrize(
    ("depth", "steps", "capacity"), [(128, 128, 512), (512, 128, 1024), (383, 128, 512), (384, 128, 1024)]
)
def test_capacity_comes_in_whole_units(depth, steps, capacity) -> None:
    assert capacity_for(depth, steps) == capacity
