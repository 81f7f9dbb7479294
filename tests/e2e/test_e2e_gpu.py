"""Every kind of arm once, on a GPU, with a small model: built, captured, gated, profiled. No time is asserted."""

from __future__ import annotations

import pytest
import torch

from roofgap.e2e.arms import choose_arms
from roofgap.e2e.compare import compare
from roofgap.e2e.peers import missing
from roofgap.e2e.prepare import Options
from roofgap.tuning.measure.bandwidth import read_bandwidth

ARMS = (
    "bf16-eager,bf16-graph,bf16-fused-ops-graph,nf4-graph,w4-v2-graph,w4-v3-eager,w4-v3-fused-head-graph,"
    "w4-v3-fused-ops-head-pdl-graph,w4-v4-fused-graph,w4-v4-fused-ops-head-pdl-graph,"
    "w4-v4-fused-epilogues-head-graph,w4-v4-fused-epilogues-head-pdl-graph,tinygemm-graph,marlin-graph,"
    "hf-generate-bf16,stream-w4"
)


@pytest.mark.gpu
@pytest.mark.slow
def test_every_kind_of_arm_runs(tiny_source, monkeypatch) -> None:
    from roofgap.tuning.measure.cuda import CudaDevice

    monkeypatch.setattr("roofgap.e2e.rows.MOST_CV", 1e9)  # steps of microseconds scatter
    monkeypatch.setattr("roofgap.e2e.turns.MOST_CV", 1e9)
    device = CudaDevice()
    source = tiny_source(
        layers=3,
        hidden=512,
        intermediate=1024,
        heads=8,
        kv_heads=2,
        head_dim=64,
        vocab=4096,
        max_context=4096,
    )
    arms = choose_arms(ARMS)
    found = compare(
        source,
        arms,
        device,
        Options(depth=64, steps=16, repeats=3),
        read_gbps=lambda: read_bandwidth(device).gbps,
    )
    for arm, row in zip(arms, found.rows, strict=True):
        reason = None if arm.loop == "stream" else missing(arm.build)
        assert row.status == ("ok" if reason is None else "skipped"), f"{arm.name}: {row.evidence}"
        if row.status == "ok":
            assert row.tok_s is not None
            assert row.launches_per_token is not None or arm.loop == "generate"
            if arm.loop in ("eager", "graph"):
                assert row.top1 is not None
                assert row.logit_error is not None
                assert row.logit_error < 0.05, arm.name


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["v3", "v4"])
def test_dependent_launches_give_the_same_bits(tiny_source, variant: str) -> None:
    """Replays queued one after the other without a pause, where a missing wait would show."""
    from roofgap.e2e.arms import Build
    from roofgap.e2e.decoder import Decoder
    from roofgap.e2e.fused.argmax import next_token
    from roofgap.e2e.swap import build_model
    from roofgap.tuning.measure.cuda import CudaDevice

    device = CudaDevice()
    source = tiny_source(
        layers=8, hidden=512, intermediate=1024, heads=8, kv_heads=2, head_dim=64, vocab=4096, tied=False
    )
    build = Build(
        weights="w4",
        variant=variant,
        fused_linears=True,
        head_w4=True,
        fused_operators=True,
        epilogues=variant == "v4",
    )
    model = build_model(source, build, device.torch_device).model
    prompt = torch.arange(48, device=device.torch_device)[None] * 37 % 4096
    forced = torch.arange(96, device=device.torch_device) * 101 % 4096
    found = []
    for pdl in (False, True):
        decoder = Decoder(model, 512, next_token)
        decoder.prefill(prompt)
        graph = decoder.capture(device, pdl=pdl)
        logits = decoder.forced(graph.replay, forced)
        for _ in range(5):
            decoder.rewind()
            for _ in range(400):
                graph.replay()
            found.append((decoder.generated[48:448].tolist(), logits, decoder.logits.clone()))
    tokens, logits, last = found[0]
    assert len(set(tokens)) > 10, "a constant sequence would prove nothing"
    for other_tokens, other_logits, other_last in found[1:]:
        assert other_tokens == tokens
        assert torch.equal(other_logits, logits)
        assert torch.equal(other_last, last)


@pytest.mark.gpu
def test_swapping_frees_the_dense_weights(tiny_source) -> None:
    """What torch's allocator holds is what the manifest says, not only what the modules point to."""
    import gc

    from roofgap.e2e.arms import Build
    from roofgap.e2e.swap import build_model

    source = tiny_source(
        layers=4, hidden=1024, intermediate=4096, heads=16, kv_heads=4, head_dim=64, vocab=8192
    )

    def requested() -> int:
        # Not memory_allocated: that also counts what the allocator does not split off a block (up to 1 MiB each).
        gc.collect()
        return int(torch.cuda.memory_stats()["requested_bytes.all.current"])

    before = requested()
    built = build_model(source, Build(weights="w4", variant="v3", fused_linears=True), torch.device("cuda"))
    held = requested() - before
    assert held == pytest.approx(built.expected_bytes, rel=0.01)
