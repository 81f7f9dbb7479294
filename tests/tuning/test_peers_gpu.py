"""Every peer on a device: packed, captured, checked, and caught when its weight is not what it should be.

Each is skipped with the reason where it is missing (Marlin: ``$ROOFGAP_MARLIN``). No time is asserted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roofgap.kernels.formats.weight import DTYPES
from roofgap.shapes.problem import Problem
from roofgap.tuning.measure.bench import Contender, Timed, prepare, time_in_turns
from roofgap.tuning.measure.cuda import CudaDevice
from roofgap.tuning.measure.failure import Failure
from roofgap.tuning.measure.gap import Ceilings
from roofgap.tuning.measure.op import Prepared
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.measure.workload import Workload
from roofgap.tuning.peers.contender import PeerContender
from roofgap.tuning.peers.gemlite import GemLite
from roofgap.tuning.peers.peer import Packed, Peer
from roofgap.tuning.peers.registry import PeerSettings, make_peers
from roofgap.tuning.status import Status

pytestmark = pytest.mark.gpu

POLICY = MeasurePolicy(min_launches=4, max_launches=4, replays=3, warmup_limit=4)
PROBLEM = Problem(n=1536, k=1024)
PEERS = make_peers(PeerSettings(gemlite_setting="default"))


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice()


def available(name: str, problem: Problem) -> Peer:
    peer = PEERS[name]
    reason = peer.refuses(problem) or peer.missing(peer.dtype_for(DTYPES[problem.x_dtype]))
    if reason is not None:
        pytest.skip(reason)
    return peer


@pytest.mark.parametrize("m", [1, 2, 16, 64])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", list(PEERS))
def test_a_peer_is_right_in_every_launch(device: CudaDevice, name: str, dtype: str, m: int) -> None:
    problem = replace(PROBLEM, m=m, x_dtype=dtype)  # type: ignore[arg-type]
    contender = PeerContender(available(name, problem))
    prepared = prepare(contender, Workload(problem, device), POLICY)
    assert isinstance(prepared, Prepared), prepared
    for _ in range(3):
        prepared.sample()
    assert 0 < prepared.rel_error < 0.05
    print(f"{name} {problem.key}: relative error {prepared.rel_error:.1e}, {prepared.read_bytes} bytes")


def faults() -> dict[str, Callable[[Packed], Packed]]:
    def one_code(packed: Packed) -> Packed:
        codes = packed.read["codes"].clone()
        codes.view(torch.uint8).flatten()[::64] ^= 0x11
        return replace(packed, read={**packed.read, "codes": codes})

    def one_scale(packed: Packed) -> Packed:
        name = next(key for key in ("absmax", "scales_zeros", "scales") if key in packed.read)
        scales = packed.read[name].clone()
        scales.flatten()[::32] *= 1.5
        return replace(packed, read={**packed.read, name: scales})

    return {"codes": one_code, "scales": one_scale}


@pytest.mark.parametrize("what", list(faults()))
@pytest.mark.parametrize("name", list(PEERS))
def test_a_damaged_copy_is_caught(device: CudaDevice, name: str, what: str, monkeypatch) -> None:
    """The damage is in the second copy: the first launch is right, one of the captured is not."""
    peer = available(name, PROBLEM)
    damage = faults()[what]
    monkeypatch.setattr(Packed, "clone", damage)
    load = Workload(PROBLEM, device)
    outcome = prepare(PeerContender(peer), load, POLICY)
    assert isinstance(outcome, Prepared), outcome
    rows = time_in_turns(load, [PeerContender(peer)], [outcome], POLICY, _ceilings(device))
    assert rows[0]["status"] == Status.WRONG.value, rows[0]


def _ceilings(device: CudaDevice) -> Ceilings:
    from roofgap.shapes.device import Bandwidth

    return Ceilings(Bandwidth(4000.0, "given"), 1.0, None)


def test_peers_beside_torch(device: CudaDevice) -> None:
    """Several outputs owned by graphs and several written in place, in turns."""
    load = Workload(PROBLEM, device)
    contenders: list[Timed] = [Contender(None, None), *(PeerContender(peer) for peer in PEERS.values())]
    ready = [prepare(contender, load, POLICY) for contender in contenders]
    rows = time_in_turns(load, contenders, ready, POLICY, _ceilings(device))
    for row, outcome in zip(rows, ready, strict=True):
        expected = outcome.status.value if isinstance(outcome, Failure) else "ok"
        assert row["status"] == expected, row
        assert expected in ("ok", "unsupported"), row


@pytest.mark.slow
def test_gemlite_finds_what_was_compiled_ahead(device: CudaDevice, tmp_path: Path, monkeypatch) -> None:
    """Its tuner compiles nothing more after the children did."""
    from triton import knobs

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "cache"))
    configs = tmp_path / "configs.json"
    peer = GemLite("fast", configs, workers=2)
    problem = replace(PROBLEM, k=2048)
    reason = peer.missing(torch.float16)
    if reason is not None:
        pytest.skip(reason)
    load = Workload(problem, device)
    packed = peer.pack(load.weight, torch.float16)
    seen: list[int] = []

    def compiled() -> int:
        return len(list((tmp_path / "cache").rglob("gemv_INT_revsplitK_kernel.cubin")))

    ahead = GemLite._compile_ahead

    def watched(self: GemLite, x: torch.Tensor, given: Packed) -> None:
        ahead(self, x, given)
        seen.append(compiled())

    monkeypatch.setattr(GemLite, "_compile_ahead", watched)
    try:
        tuned = peer.tune(load.x, packed)
    finally:
        peer.close()
    assert seen[0] >= 10
    assert compiled() == seen[0], "the tuner found every binary"
    assert str(tuned.config).startswith("GEMV_REVSPLITK")
    assert configs.exists()
    assert GemLite("fast", configs).tune(load.x, packed).config == tuned.config
