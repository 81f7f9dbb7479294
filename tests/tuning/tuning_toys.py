"""A variant without kernels and the requests made of it: all of the tuner except the device, in milliseconds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from roofgap.kernels.config import KernelConfig, Value
from roofgap.kernels.formats.layout import Layout
from roofgap.kernels.step import Step
from roofgap.kernels.variant import Limits, Operands, Variant
from roofgap.shapes.problem import Problem
from roofgap.tuning.budget import BUDGETS, Budget
from roofgap.tuning.scripted import ScriptedRunner
from roofgap.tuning.tune import TuneRequest, tune
from roofgap.tuning.winner import Toolchain

PROBLEM = Problem(n=1536, k=1536)
PROBLEMS = (PROBLEM, Problem(n=8960, k=1536), Problem(n=1536, k=8960, m=16))
TOOLCHAIN = Toolchain(driver="580.1", cuda="13.0", torch="2.11.0", triton="3.6.0")


@dataclass(frozen=True, kw_only=True)
class ToyConfig(KernelConfig):
    block_n: int = 32
    split_k: int = 1
    reduce: str = "atomic"


class Toy(Variant):
    name = "toy"
    summary = "a space without kernels"
    layout = Layout
    config_type = ToyConfig
    known: ClassVar[dict[Problem, tuple[KernelConfig, ...]]] = {}

    def default_config(self, problem: Problem, limits: Limits = Limits()) -> ToyConfig:
        return ToyConfig(num_warps=4)

    def space(self, problem: Problem) -> dict[str, tuple[Value, ...]]:
        return {
            "num_warps": (1, 2, 4, 8),
            "num_stages": (1, 2, 3),
            "block_n": (16, 32, 64, 128, 256),
            "split_k": (1, 2, 4, 8),
            "reduce": ("atomic", "partials"),
        }

    def is_valid(self, problem: Problem, config: KernelConfig, limits: Limits = Limits()) -> str | None:
        assert isinstance(config, ToyConfig)
        if config.block_n * config.split_k > 1024:
            return "too wide"
        if config.split_k == 1 and config.reduce == "partials":
            return "nothing to reduce"
        return None

    def configs(self, problem: Problem, limits: Limits = Limits()) -> Iterator[KernelConfig]:
        if problem not in self.known:  # hundreds of runs enumerate the same few problems
            self.known[problem] = tuple(super().configs(problem, limits))
        return iter(self.known[problem])

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        return []

    def kernels(self) -> tuple[Any, ...]:
        return ()

    def split_count(self, problem: Problem, config: KernelConfig) -> int:
        assert isinstance(config, ToyConfig)
        return config.split_k

    def is_deterministic(self, problem: Problem, config: KernelConfig) -> bool:
        assert isinstance(config, ToyConfig)
        return config.split_k == 1 or config.reduce == "partials"


TOY = Toy()


def rugged(config: KernelConfig) -> float:
    """A latency with a valley, interactions, and a little roughness of its own per config."""
    assert isinstance(config, ToyConfig)
    away = abs(math.log2(config.block_n) - 6) + abs(math.log2(config.num_warps) - 1)
    split = abs(math.log2(config.split_k * config.block_n) - 8)
    rough = int(hashlib.sha256(config.key.encode()).hexdigest()[:4], 16) / 0xFFFF
    return 3.0 * (1 + 0.12 * away + 0.07 * split + 0.02 * (config.num_stages - 1) + 0.08 * rough)


class Silent:
    """An observer that keeps count."""

    def __init__(self) -> None:
        self.fresh, self.replayed = 0, 0

    def started(self, problem: Problem, candidates: int) -> None: ...

    def tried(self, problem: Problem, trial: Any, replayed: bool) -> None:
        self.replayed += replayed
        self.fresh += not replayed

    def compared(self, problem: Problem, answer: Any, replayed: bool) -> None: ...


def request(
    problems: tuple[Problem, ...] = (PROBLEM,),
    strategy: str = "racing",
    budget: Budget = BUDGETS["quick"],
    seed: int = 0,
    variant: Variant = TOY,
) -> TuneRequest:
    return TuneRequest(
        variant=variant,
        problems=problems,
        gpu="h200",
        gpu_name="NVIDIA H200",
        toolchain=TOOLCHAIN,
        limits=Limits(),
        strategy=strategy,
        budget=budget,
        budget_text=budget.name,
        seed=seed,
    )


def run(
    folder: Path, asked: TuneRequest, runner: ScriptedRunner, name: str = "run", publish: bool = True
) -> Any:
    """Tunes in ``folder``; the winners go below it."""
    return tune(
        asked,
        [runner],
        journal_path=folder / f"{name}.jsonl",
        winners=folder / "winners" if publish else None,
        date="2026-11-29T12:00:00+00:00",
        observer=Silent(),
    )


def table(results: Any) -> list[str]:
    """The final table, byte for byte."""
    return [outcome.model_dump_json() for outcome, _ in results]
