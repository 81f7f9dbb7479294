"""Programmatic dependent launch of v4, v3 and the reduction, as compiled for sm_90."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_cases import DEVICE

from roofgap.kernels.formats.interleaved import Interleaved
from roofgap.kernels.inputs import meta_operands, random_weight, random_x
from roofgap.kernels.ops import linear
from roofgap.kernels.registry import get_variant
from roofgap.kernels.step import Launch, dependent_launches
from roofgap.shapes.problem import Problem

GATE_UP = {"n": 17920, "k": 1536, "x_dtype": "bf16", "zero_mode": "asym"}
CASES: dict[str, dict[str, Any]] = {
    name: {"variant": variant, "problem": problem, "config": config, "epilogue": epilogue}
    for name, variant, config, epilogue, problem in (
        ("default", "v4", "num_warps=4,tiles=2,num_stages=3", "", GATE_UP),
        ("tokens", "v4", "num_warps=4", "", GATE_UP | {"m": 4, "x_dtype": "fp16", "zero_mode": "offset"}),
        ("masked", "v4", "num_warps=4", "residual", GATE_UP | {"n": 1537, "k": 1600, "bias": True}),
        ("residual", "v4", "num_warps=4,num_stages=3", "residual", GATE_UP | {"bias": True}),
        ("swiglu", "v4", "num_warps=4,num_stages=3", "swiglu", GATE_UP),
        ("deep", "v4", "num_warps=2,num_stages=2,ahead=4", "", GATE_UP),
        ("split", "v4", "num_warps=4,split_k=3", "swiglu", GATE_UP),
        ("limbs", "v4", "decode=limbs,num_warps=4,num_stages=3", "residual", GATE_UP | {"bias": True}),
        ("limbs-swiglu", "v4", "decode=limbs,num_warps=4,num_stages=6,tiles=4", "swiglu", GATE_UP),
        ("portable", "v4", "decode=portable,num_warps=4", "residual", GATE_UP),
        ("v3", "v3", "split_k=4", "", GATE_UP),
        ("v3-atomic", "v3", "split_k=4,reduce=atomic", "", GATE_UP),
        ("v3-pipelined", "v3", "split_k=1,num_stages=3", "", GATE_UP),
    )
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """Everything from one process without the interpreter."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("pdl_script.py"))],
        input=json.dumps(list(CASES.values())),
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {
        "switched": found["switched"],
        "streams": found["streams"],
        **dict(zip(CASES, found["forms"], strict=True)),
    }


@pytest.mark.parametrize("name", CASES)
def test_only_dependent_launches_control_the_grid(compiled: dict[str, Any], name: str) -> None:
    for launch in compiled[name]:
        assert not [event for event in launch["plain"]["ptx"] if event.startswith("griddepcontrol")]
        assert not {"ACQBULK", "PREEXIT"} & set(launch["plain"]["sass"])
        assert launch["dependent"]["ptx"][0] == "griddepcontrol.launch_dependents"
        if launch["kernel"] == "v3_kernel":  # waits in a loop, which always runs but does not look so
            assert launch["dependent"]["ptx"].count("griddepcontrol.wait") == 1
        else:
            assert launch["dependent"]["waits"] == [1]  # on whatever way a program takes
        assert launch["plain"]["waits"] == [0]
        assert "ACQBULK" in launch["dependent"]["sass"]
        assert launch["dependent"]["spill_bytes"] == 0


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_written_before_the_wait(compiled: dict[str, Any], name: str) -> None:
    for launch in compiled[name]:
        dependent = launch["dependent"]
        if launch["kernel"] != "v3_kernel":
            assert dependent["waits_at_writes"] == [1], launch["kernel"]
        writes = [event for event in dependent["sass"] if event.startswith(("STG", "RED", "ATOM"))]
        assert writes
        first = dependent["sass"].index("ACQBULK")
        assert not set(writes) & set(dependent["sass"][:first]), launch["kernel"]


CODES, X, NARROW = (
    f"cp.async.{kind}" for kind in ("cg.shared.global 16", "ca.shared.global 16", "ca.shared.global 4")
)
CODES_SASS, X_SASS = "LDGSTS.E.BYPASS.128", "LDGSTS.E.128"


@pytest.mark.parametrize(
    ("name", "tiles", "early_pairs", "late_pairs"),
    [
        ("default", 2, 4, 0),  # scales and zeros of two tiles
        ("tokens", 1, 2, 0),
        ("masked", 1, 3, 1),  # and the bias; late the residual
        ("residual", 1, 3, 1),
        ("swiglu", 2, 4, 0),
        ("deep", 1, 2, 0),
    ],
)
def test_weights_are_asked_for_before_the_wait_and_x_after_it(
    compiled: dict[str, Any], name: str, tiles: int, early_pairs: int, late_pairs: int
) -> None:
    dependent = compiled[name][0]["dependent"]
    ptx, sass = dependent["ptx"], dependent["sass"]
    wait, acquire = ptx.index("griddepcontrol.wait"), sass.index("ACQBULK")
    # A loop over stages on either side, then the main loop, which ends with a group.
    main = len(ptx) - ptx[::-1].index("cp.async.commit_group")
    first_late = ptx.index("cp.async.commit_group", wait)
    early, late, steady = ptx[:wait], ptx[wait:first_late], ptx[first_late:main]
    assert early.count(CODES) == 2 * tiles  # of rows r and r + 8
    assert early.count(NARROW) == early_pairs
    assert early.count(X) == 0
    x_copies = 2 if name == "tokens" else 1  # a warp copies two tokens at a time, of four
    assert [event for event in late if event.startswith("cp.async")] == [X] * x_copies
    again = name in ("deep", "masked", "tokens")  # more blocks than are under way
    assert steady.count(CODES) == (2 * tiles if again else 0)
    assert steady.count(NARROW) == late_pairs + (2 * tiles if again else 0)
    # And the assembler leaves it so.
    assert [event for event in sass[:acquire] if event.startswith(CODES_SASS)]
    assert not [event for event in sass[:acquire] if event.startswith(X_SASS)]
    assert [event for event in sass[acquire:] if event.startswith(X_SASS)]
    assert bool([event for event in sass[acquire:] if event.startswith(CODES_SASS)]) is again


def test_limbs_are_made_after_the_wait_of_weights_asked_for_before_it(compiled: dict[str, Any]) -> None:
    dependent = compiled["limbs"][0]["dependent"]
    ptx, sass = dependent["ptx"], dependent["sass"]
    wait, acquire = ptx.index("griddepcontrol.wait"), sass.index("ACQBULK")
    early, late = ptx[:wait], ptx[wait:]
    assert early.count(CODES) == 6  # three blocks of rows r and r + 8
    assert early.count(NARROW) == 7  # scales, zeros, bias
    assert early.count(X) == 0
    assert (late.count(CODES), late.count(X), late.count(NARROW)) == (0, 3, 1)  # residual
    assert not [event for event in sass[:acquire] if event.startswith(X_SASS)]
    assert not [event for event in sass[acquire:] if event.startswith(CODES_SASS)]


def test_a_pipeline_waits_before_its_first_copy(compiled: dict[str, Any]) -> None:
    listed = compiled["v3-pipelined"][0]["dependent"]["ptx"]
    first = next(at for at, event in enumerate(listed) if event.startswith("cp.async"))
    assert listed.index("griddepcontrol.wait") < first


@pytest.mark.parametrize("kernel", ["once", "lane", "loop", "empty"])
def test_a_chained_stream_reads_before_the_wait_and_writes_after_it(
    compiled: dict[str, Any], kernel: str
) -> None:
    stream = compiled["streams"][kernel]
    assert stream["ptx"][0] == "griddepcontrol.launch_dependents"
    assert stream["waits"] == [1]
    assert stream["waits_at_writes"] == ([] if kernel == "empty" else [1])
    acquire = stream["sass"].index("ACQBULK")
    assert bool([event for event in stream["sass"][:acquire] if event.startswith("LDG")]) is (
        kernel != "empty"
    )
    assert not [event for event in stream["sass"][acquire:] if event.startswith("LDG")]


def test_the_switch_is_the_context(compiled: dict[str, Any]) -> None:
    plain, dependent = [False, False], [True, True]
    assert compiled["switched"] == [plain, dependent, plain, plain, plain]


def test_the_interpreter_launches_as_ever() -> None:
    variant, problem = get_variant("v4"), Problem(n=32, k=64)
    (launch,) = variant.plan(problem, variant.default_config(problem), meta_operands(variant, problem))
    assert isinstance(launch, Launch)
    if DEVICE.type == "cpu":
        assert not launch.can_depend
        ran: list[torch.Tensor] = []
        x, packed = random_x(problem, 1, DEVICE), Interleaved.pack(random_weight(problem, 1, DEVICE))
        for chained in (False, True):
            with dependent_launches(chained):
                ran.append(linear(x, packed, variant="v4"))
        assert torch.equal(*ran)
    with dependent_launches():
        assert "PDL" not in launch.args
    assert launch.dependent().args["PDL"]
    assert launch.dependent().options["launch_pdl"]
    assert "PDL" not in launch.args
