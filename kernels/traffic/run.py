"""Counts a registered variant's traffic from any process, also one whose kernels were imported for a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from roofgap.kernels.traffic.measure import check_size, measure_traffic
from roofgap.kernels.traffic.record import Traffic
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem


def count_traffic(variant: str, problem: Problem, config: str | None = None) -> Traffic:
    """``measure_traffic`` by name: here if this process interprets its kernels, else in a child that does.

    Triton decides when a kernel is defined whether it will be compiled or interpreted; a process that
    launches on a GPU cannot interpret the same module.

    Args:
        variant: a name in the registry.
        problem: at most 256x1536 weights (``cut_problem``).
        config: ``"block_n=64,num_warps=4"``; fields left out keep the config type's defaults. None means the
            variant's default config for the problem.

    Raises:
        RoofgapError: as ``measure_traffic``, an unknown variant, or a config that cannot be read.
    """
    from triton.runtime.interpreter import InterpretedFunction

    from roofgap.kernels.registry import get_variant

    chosen = get_variant(variant)
    check_size(problem)
    if all(isinstance(kernel, InterpretedFunction) for kernel in chosen.kernels()):
        parsed = chosen.default_config(problem) if config is None else chosen.config_type.parse(config)
        return measure_traffic(chosen, problem, parsed)
    return _in_child({"variant": variant, "problem": asdict(problem), "config": config})


def _in_child(request: dict[str, Any]) -> Traffic:
    done = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(request)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == RoofgapError.exit_code:
        raise RoofgapError(*json.loads(done.stdout.splitlines()[-1]))
    if done.returncode:
        raise RuntimeError(f"the interpreting process ended with {done.returncode}; its stderr is above")
    return Traffic.model_validate_json(done.stdout.splitlines()[-1])


def _child(text: str) -> int:
    """Answers a request on stdout's last line: the record, or a refusal's three parts and its exit code."""
    request = json.loads(text)
    try:
        problem = TypeAdapter(Problem).validate_python(request["problem"])
        traffic = count_traffic(request["variant"], problem, request["config"])
    except RoofgapError as error:
        print(json.dumps([error.value, error.rule, error.remedy]))
        return error.exit_code
    print(traffic.model_dump_json(round_trip=True))
    return 0


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1]))
