"""Peers in the measuring: outputs that they return, faults that must show, packings and tolerances without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peer_toys import ToyPeer

from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.inputs import random_weight, random_x
from roofgap.kernels.reference import reference
from roofgap.kernels.tolerance import judge
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.measure.bench import Contender, bench, prepare, time_in_turns
from roofgap.tuning.measure.failure import Failure
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.measure.gap import Ceilings
from roofgap.tuning.measure.op import Prepared
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.measure.workload import Workload
from roofgap.tuning.peers.contender import PeerContender
from roofgap.tuning.peers.marlin import GROUPED, PER_ROW, Marlin, load
from roofgap.tuning.peers.nf4 import NF4, NF4Gemv, rows_of
from roofgap.tuning.peers.peer import NOT_TUNED, Packed, Tuned
from roofgap.tuning.peers.registry import PEER_NAMES, REQUIRED, choose_peers, make_peers
from roofgap.tuning.peers.returned import PreparedReturning
from roofgap.tuning.peers.rounding import with_atomics
from roofgap.tuning.peers.tinygemm import TinyGemm
from roofgap.tuning.status import Status

PROBLEM = Problem(n=48, k=256, group_size=64)
POLICY = MeasurePolicy(min_launches=3, max_launches=3, replays=2, warmup_window=1)


def workload(problem: Problem = PROBLEM, **options) -> Workload:
    return Workload(problem, ScriptedDevice(l2_bytes=256, work_us=3.0, **options))


@pytest.mark.parametrize("takes_out", [False, True])
@pytest.mark.parametrize("m", [1, 3])
def test_a_right_peer_is_measured(takes_out: bool, m: int) -> None:
    contender = PeerContender(ToyPeer(takes_out=takes_out))
    prepared = contender.prepare(workload(replace(PROBLEM, m=m)), POLICY)
    assert isinstance(prepared, PreparedReturning) == (not takes_out)
    assert [prepared.sample() for _ in range(3)] == [3.0, 3.0, 3.0]
    assert 0 < prepared.rel_error < 1e-3
    assert prepared.launches == 3
    assert prepared.read_bytes == PROBLEM.dense_bytes


@pytest.mark.parametrize(
    ("fault", "takes_out", "words"),
    [
        ("wrong group", False, "of bound"),
        ("wrong group", True, "of bound"),
        ("unwritten", False, "still hold the poison"),
        ("unwritten", True, "of bound"),
        ("one buffer", False, "returned 1 outputs"),
        ("shape", False, "instead of"),
    ],
)
def test_a_wrong_peer_has_no_time(fault: str, takes_out: bool, words: str) -> None:
    contender = PeerContender(ToyPeer(takes_out=takes_out, fault=fault))
    load = workload()
    outcome = prepare(contender, load, POLICY)
    if isinstance(outcome, Prepared):
        rows = time_in_turns(load, [contender], [outcome], POLICY, _ceilings())
        assert rows[0]["status"] == "wrong"
        evidence = str(rows[0]["evidence"])
    else:
        assert outcome.status is Status.WRONG
        evidence = outcome.evidence
    assert words in evidence


def test_a_launch_that_escapes_the_graph_is_seen() -> None:
    outcome = prepare(PeerContender(ToyPeer()), workload(drops=lambda work: True), POLICY)
    assert isinstance(outcome, Failure)
    assert outcome.status is Status.IMPLAUSIBLE
    assert "0 nodes for 3 launches" in outcome.evidence


@pytest.mark.parametrize(("fault", "words"), [("missing", "not installed"), ("refuses", "no such N")])
def test_an_absent_peer_says_why(fault: str, words: str) -> None:
    outcome = prepare(PeerContender(ToyPeer(fault=fault)), workload(), POLICY)
    assert outcome == Failure(status=Status.UNSUPPORTED, evidence=outcome.evidence)  # type: ignore[union-attr]
    assert words in outcome.evidence  # type: ignore[union-attr]


def _ceilings() -> Ceilings:
    from roofgap.shapes.device import Bandwidth

    return Ceilings(Bandwidth(4000.0, "measured read"), 1.0, None)


def test_bf16_only_peers_run_in_bf16_and_say_so() -> None:
    class Bf16Toy(ToyPeer):
        dtypes = ("bf16",)

    rows = bench(workload(), [PeerContender(Bf16Toy()), Contender(None, None)], POLICY, _ceilings())
    assert [(row["variant"], row["dtype"], row["status"]) for row in rows] == [
        ("toy", "bf16", "ok"),
        ("torch", "fp16", "ok"),
    ]
    assert float(rows[0]["rel_error"]) > 5 * float(rows[1]["rel_error"])  # type: ignore[arg-type]


def test_tuning_is_told_apart_from_the_time() -> None:
    tuned = Tuned(config="BLOCK=1", seconds=41.0)
    rows = bench(workload(), [PeerContender(ToyPeer(tuned=tuned))], POLICY, _ceilings())
    assert (rows[0]["config"], rows[0]["tuning_s"], rows[0]["latency_us"]) == ("BLOCK=1", 41.0, 3.0)
    assert rows[0]["weight_bytes"] == PROBLEM.dense_bytes


def test_registry() -> None:
    assert set(REQUIRED) < set(PEER_NAMES)
    assert choose_peers("all") == PEER_NAMES == ("torch", *make_peers())
    assert choose_peers("marlin, torch") == ("torch", "marlin")
    with pytest.raises(RoofgapError, match="tinygem"):
        choose_peers("tinygem")


@pytest.mark.parametrize(
    ("peer", "problem", "refused"),
    [
        (TinyGemm(), Problem(n=64, k=576), True),
        (TinyGemm(), Problem(n=64, k=1024), False),
        (NF4(), Problem(n=64, k=1000, group_size=64), True),
        (NF4Gemv(), Problem(n=64, k=1024, m=2), True),
        (NF4Gemv(), Problem(n=64, k=1024), False),
        (Marlin(), Problem(n=96, k=1024), True),
        (Marlin(), Problem(n=128, k=192, group_size=64), False),
        (Marlin(), Problem(n=64, k=1024, zero_mode="asym"), True),
        (make_peers()["gemlite"], Problem(n=64, k=1024, zero_mode="offset"), True),
        (make_peers()["gemlite"], Problem(n=64, k=1024, zero_mode="asym"), False),
    ],
)
def test_refusals(peer, problem: Problem, refused: bool) -> None:
    assert (peer.refuses(problem) is not None) == refused


def test_marlin_is_loaded_from_what_is_there(tmp_path) -> None:
    with pytest.raises(RoofgapError, match=r"holds no marlin_torch_fp16\.cpp"):
        load(str(tmp_path), torch.float16)
    with pytest.raises(FileNotFoundError, match="neither a library, a folder nor an installed package"):
        load("no_such_package", torch.float16)
    assert Marlin(str(tmp_path / "marlin.so")).version() == "marlin.so"


def test_marlins_orders_are_permutations() -> None:
    assert sorted(GROUPED) == list(range(64))
    assert sorted(PER_ROW) == list(range(32))


# Tolerances: the arithmetic that the peers' sources show, done in torch, lies within the bound; a fault does not.


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch rounds bf16, other than the interpreter, which the policy doubles its bound for."""
    monkeypatch.setattr("roofgap.kernels.tolerance.interpreted", lambda: False)


def _nf4(problem: Problem, dtype: torch.dtype) -> tuple[torch.Tensor, QuantizedWeight, Packed]:
    """NF4 of random weights, packed without the library."""
    from_library = [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0]
    from_library += [0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1.0]
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (problem.n, problem.k), generator=generator, dtype=torch.uint8)
    absmax = torch.rand(problem.n * problem.groups, generator=generator) * 0.05 + 0.01
    packed = Packed(
        n=problem.n,
        k=problem.k,
        group_size=problem.group_size,
        dtype=dtype,
        read={"codes": ((codes[:, ::2] << 4) | codes[:, 1::2]).reshape(-1, 1), "absmax": absmax},
        shared={"table": torch.tensor(from_library)},
    )
    return random_x(problem, 0), random_weight(problem, 0), packed


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.usefixtures("rounding")
def test_nf4s_roundings_are_within_its_bound(dtype: str) -> None:
    problem = Problem(n=512, k=1024, group_size=128, x_dtype=dtype, m=2)  # type: ignore[arg-type]
    x, weight, packed = _nf4(problem, random_x(problem, 0).dtype)
    kind = x.dtype
    table = packed.shared["table"].to(kind)
    dense = rows_of(packed, 0, problem.n)
    scale = packed.read["absmax"].reshape(problem.n, -1).repeat_interleave(128, 1).to(kind)
    codes = packed.read["codes"].reshape(problem.n, -1)
    index = torch.stack([codes >> 4, codes & 15], -1).reshape(problem.n, problem.k).long()
    w = table[index] * scale  # rounded to 16 bits, as the kernel's product is
    torch.testing.assert_close(w.double(), dense, rtol=2e-2, atol=1e-6)
    y = torch.stack([(row * w).float().sum(1) for row in x]).to(kind)
    ref = NF4().reference(x, weight, packed, NOT_TUNED)
    found = judge(y, ref, k=problem.k, rounds_weights=True)
    assert found.passed, found.detail
    assert found.rms_of_bound > 0.3, "the bound is not far above the arithmetic"
    swapped = table[index.reshape(problem.n, -1, 2).flip(-1).reshape(problem.n, -1)] * scale
    wrong = torch.stack([(row * swapped).float().sum(1) for row in x]).to(kind)
    assert not judge(wrong, ref, k=problem.k, rounds_weights=True).passed


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("splits", [8, 64])
@pytest.mark.usefixtures("rounding")
def test_16_bit_atomics_are_within_their_bound(dtype: str, splits: int) -> None:
    problem = Problem(n=2048, k=2048, group_size=128, x_dtype=dtype)  # type: ignore[arg-type]
    x, weight = random_x(problem, 0), random_weight(problem, 0)
    dense = weight.dequantise(x.dtype)
    order = torch.randperm(splits, generator=torch.Generator().manual_seed(0))
    parts = (x.float() * dense.float()).reshape(problem.n, splits, -1).sum(-1)[:, order]
    y = torch.zeros(problem.n, dtype=x.dtype)
    for part in parts.T:
        y = y + part.to(x.dtype)
    plain = reference(x, weight)
    found = judge(y[None], with_atomics(plain, splits), k=problem.k, rounds_weights=True)
    assert found.passed, found.detail
    assert found.rms_of_bound > 0.15
    assert not judge(y[None], plain, k=problem.k, rounds_weights=True).passed, "the widening is needed"
    assert with_atomics(plain, 1) is plain


def test_tinygemms_weights_are_those_it_stores() -> None:
    problem = Problem(n=64, k=256, group_size=64, zero_mode="sym")
    weight = random_weight(problem, 0)
    x = random_x(problem, 0).to(torch.bfloat16)
    scales = weight.scales.to(torch.bfloat16)
    pairs = torch.stack([scales.T, torch.zeros_like(scales.T)], -1)
    packed = Packed(n=64, k=256, group_size=64, dtype=x.dtype, read={"scales_zeros": pairs})
    found = TinyGemm().reference(x, weight, packed, NOT_TUNED)
    exact = reference(x, QuantizedWeight(codes=weight.codes, scales=scales, group_size=64))
    torch.testing.assert_close(found.y, exact.y, rtol=0, atol=1e-12)
    assert not torch.equal(found.y, reference(x, weight).y), "fp16 scales are not what it multiplies with"
