"""Compiles launches as dependent ones for sm_90, where kernels are not interpreted; run by ``test_v4_pdl``."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import Any

import torch

from roofgap.kernels import step
from roofgap.kernels.inputs import meta_operands
from roofgap.kernels.registry import get_variant
from roofgap.kernels.static import sass
from roofgap.kernels.static.compile import compile_launch, with_file
from roofgap.kernels.static.targets import load_target
from roofgap.kernels.step import Launch, dependent_launches
from roofgap.shapes.problem import Problem
from roofgap.tuning.measure import stream
from roofgap.tuning.measure.bytestream import StreamConfig

EVENTS = re.compile(
    r"griddepcontrol\.\w+|\b(?:ld|st|atom|red)\.global\S*|cp\.async\.commit_group|"
    r"cp\.async\.\w+\.shared\.global (?:\[[^]]*\], ){2}\w+"
)
LABEL = re.compile(r"(\$\w+):")
BRANCH = re.compile(r"(?:@!?%p\d+\s+)?bra(?:\.uni)?\s+(?P<to>\$\w+);")
WRITES = re.compile(r"\b(?:st|red|atom)\.global")
BRACKETS = re.compile(r" \[[^]]*\],")
INSTRUCTIONS = re.compile(r"\b(?:ACQBULK|PREEXIT|LDG\S*|LDGSTS\S*|STG\S*|RED\S*|ATOM\S*)")


def waits_passed(ptx: str) -> tuple[set[int], set[int]]:
    """How often ``griddepcontrol.wait`` has run on the ways to a write to global memory, and on those to the end.

    A compiler may give every branch a wait of its own, so its place in the text says little. Counts stop at 2.
    """
    lines = [line.strip() for line in ptx.splitlines()]
    labels = {match[1]: at for at, line in enumerate(lines) if (match := LABEL.match(line))}
    start = next(at for at, line in enumerate(lines) if line.startswith("{"))
    seen: set[tuple[int, int]] = set()
    ways, at_writes, at_end = [(start, 0)], set(), set()
    while ways:
        at, count = ways.pop()
        if (at, count) in seen:
            continue
        seen.add((at, count))
        line = lines[at]
        count = min(2, count + line.startswith("griddepcontrol.wait"))
        if WRITES.search(line):
            at_writes.add(count)
        branch = BRANCH.match(line)
        if branch:
            ways.append((labels[branch["to"]], count))
        if re.match(r"(@\S+ )?ret;", line):
            at_end.add(count)
        if not (branch or line.startswith("ret;")) or line.startswith("@"):
            ways.append((at + 1, count))
    return at_writes, at_end


def events(launch: Launch, codes: torch.Tensor) -> dict[str, Any]:
    """Memory accesses and grid control of a launch, in the order of its text, in PTX and SASS."""
    compiled = compile_launch(launch, load_target("sm_90"), codes)
    text = with_file(compiled.binary, "cubin", sass.disassemble)
    at_writes, at_end = waits_passed(compiled.asm["ptx"])
    return {
        "waits_at_writes": sorted(at_writes),
        "waits": sorted(at_end),
        "ptx": [BRACKETS.sub("", event) for event in EVENTS.findall(compiled.asm["ptx"])],
        "sass": INSTRUCTIONS.findall(text),
        "spill_bytes": with_file(compiled.binary, "cubin", sass.read_resources).spill_bytes,
    }


def compiled_forms(variant: str, problem: Problem, config: str, epilogue: str) -> list[dict[str, Any]]:
    """Of every launch of a plan: plain and dependent."""
    chosen = get_variant(variant)
    operands = meta_operands(chosen, problem)
    if epilogue == "swiglu":
        operands = replace(operands, swiglu=True, y=operands.y[:, : problem.n // 2])
    elif epilogue == "residual":
        operands = replace(operands, residual=torch.empty_like(operands.y))
    launches = [
        one
        for one in chosen.plan(problem, chosen.config_type.parse(config), operands)
        if isinstance(one, Launch)
    ]
    return [
        {
            "kernel": launch.kernel.__name__,
            "plain": events(launch, operands.codes),
            "dependent": events(launch.dependent(), operands.codes),
        }
        for launch in launches
    ]


def compiled_streams() -> dict[str, dict[str, Any]]:
    """The streams that the probe sweeps, and the empty kernel, as dependent launches."""
    words, out = (torch.empty(1 << 14, dtype=torch.int32, device="meta") for _ in range(2))
    found: dict[str, dict[str, Any]] = {}
    for kernel in ("once", "lane", "loop"):
        config = StreamConfig(kernel=kernel, warps=4, loads=2, programs_per_sm=2 * (kernel == "loop"))
        found[kernel] = events(config.launch(words, out, 132).dependent(), words)
    empty = Launch(kernel=stream.empty, grid=(1,), args={}, num_warps=1).dependent()
    return found | {"empty": events(empty, words)}


def switched() -> list[list[bool]]:
    """PDL and launch_pdl of a launch before, inside, inside on an older GPU, and after ``dependent_launches``."""
    variant, problem, seen = get_variant("v4"), Problem(n=64, k=128), []
    (launch,) = variant.plan(problem, variant.default_config(problem), meta_operands(variant, problem))
    assert isinstance(launch, Launch)
    launch.kernel.run = lambda *, grid, warmup, **given: seen.append(
        [bool(given.get(name)) for name in ("PDL", "launch_pdl")]
    )
    step._device_can_depend = lambda: True
    launch.run()
    with dependent_launches():
        launch.run()
        with dependent_launches(False):
            launch.run()
        step._device_can_depend = lambda: False
        launch.run()
        step._device_can_depend = lambda: True
    launch.run()
    return seen


def main() -> None:
    """Requests on stdin, results on stdout, both JSON."""
    requests = json.load(sys.stdin)
    found = [
        compiled_forms(each["variant"], Problem(**each["problem"]), each["config"], each["epilogue"])
        for each in requests
    ]
    json.dump({"forms": found, "streams": compiled_streams(), "switched": switched()}, sys.stdout)


if __name__ == "__main__":
    main()
