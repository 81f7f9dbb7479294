"""Why a problem runs with the config it runs with: the lookup step by step, then the winner's own record."""

from __future__ import annotations

from itertools import product

from roofgap.kernels.variant import Limits, Variant
from roofgap.shapes.problem import Problem
from roofgap.tuning import winners_store
from roofgap.tuning.lookup import bucket, choose, choose_chained, identity_of, tune_command
from roofgap.tuning.measure.policy import CHAINED
from roofgap.tuning.winner import DEFAULT_POLICY, Winner


def explain(
    variant: Variant, problem: Problem, gpu: str, limits: Limits | None = None, *, chained: bool = False
) -> list[str]:
    """Lines for people; ``chained``: of a dependent launch.

    Raises:
        RoofgapError: a winner file on the way is damaged.
    """
    lines = [f"{variant.name} {problem.key} on {gpu}{', chained' if chained else ''}"]
    policies = (CHAINED.key, DEFAULT_POLICY) if chained else (DEFAULT_POLICY,)
    for policy, m in product(policies, dict.fromkeys((problem.m, bucket(problem.m)))):
        found = winners_store.find(identity_of(variant, problem.with_m(m), gpu, policy))
        lines += [
            f"  {'hit ' if said == 'hit' else 'miss'} {path}{_because(said)}" for path, said in found.steps
        ]
        if found.winner is not None:
            break
    choice = (choose_chained if chained else choose)(variant, problem, gpu, limits=limits, strict=False)
    lines.append(f"config: {choice.config.key} ({choice.source})")
    if choice.winner is None:
        return [*lines, f"  tune it: {tune_command(variant, problem, policies[0])}"]
    if choice.m != problem.m:
        lines.append(f"  tuned at M={choice.m}, which serves M={choice.m // 2 + 1}..{choice.m}")
    lines += [f"  unvalidated: {note}" for note in choice.notes]
    return [*lines, *describe_winner(choice.winner)]


def describe_winner(winner: Winner) -> list[str]:
    """What was measured, what was second and by how much, what was rejected and why."""
    made = winner.provenance
    spread = (winner.p80_us - winner.p20_us) / winner.latency_us
    lines = [
        f"time: {winner.latency_us:.3f} us (p20 to p80: {spread:.1%} of it), run {made.run} of {made.date}, "
        f"{made.strategy}, {made.trials} configs tried",
    ]
    if winner.rel_error is not None:
        bits = "the same bits in every run" if winner.reproducible else "bits that differ from run to run"
        lines.append(f"  relative error {winner.rel_error:.1e} against fp64, {bits}")
    if winner.default is not None:
        lines.append(f"default: {winner.default.ratio:.3f} times as slow: {winner.default.config}")
    lines.append(f"tie set: {len(winner.tie_set)} within {winner.tie_band:.0%} of the fastest")
    lines += [f"  {reading.ratio:.4f}  {reading.config}" for reading in winner.tie_set]
    if winner.runner_up is not None:
        changed = _changed(winner.config_key, winner.runner_up.config)
        slower = f"{winner.runner_up.ratio - 1:.1%} behind the fastest"
        lines.append(f"second: {slower} with {changed or 'the same fields'}")
    if winner.previous is not None:
        lines.append(f"previous winner: {winner.previous.ratio:.3f} times as slow: {winner.previous.config}")
    for name, baseline in winner.baselines.items():
        if baseline.latency_us is None:
            lines.append(f"{name}: not measured ({baseline.reason})")
        else:
            lines.append(f"{name}: {baseline.latency_us / winner.latency_us:.2f} times as slow")
    for status, rejected in winner.rejected.items():
        evidence = (rejected.evidence.splitlines() or [""])[0]
        lines.append(f"rejected: {rejected.count} {status}, for example {rejected.example}: {evidence}")
    return lines


def _because(said: str) -> str:
    return "" if said == "hit" else f": {said}"


def _changed(one: str, other: str) -> str:
    """Fields of the second config text that differ from the first's."""
    have = set(one.split(","))
    return ", ".join(field for field in other.split(",") if field not in have)
