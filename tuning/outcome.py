"""What a tuning run says about one problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median

from pydantic import Field

from roofgap.kernels.config import KernelConfig
from roofgap.tuning.budget import TIE_BAND
from roofgap.tuning.runner import Attainable
from roofgap.tuning.search.board import Board
from roofgap.tuning.search.settle import Verdict
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Record, Trial, spread
from roofgap.tuning.winner import Baseline, Identity, Provenance, Reading, Rejected, Winner

EVIDENCE_CHARACTERS = 300  # a winner is read in a diff; the journal has the rest


class Seconds(Record):
    """Where the time of a problem went. ``compile`` is what the device waited for the compiler, not what it
    cost.
    """

    compile: float = 0.0
    check: float = 0.0
    measure: float = 0.0
    overhead: float = 0.0

    @property
    def total(self) -> float:
        """Wall-clock of the problem."""
        return self.compile + self.check + self.measure + self.overhead

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(**{name: getattr(self, name) + getattr(other, name) for name in Seconds.model_fields})


class Outcome(Record):
    """One problem of a run: a winner, or ``reason`` why there is none.

    ``roof_us`` and ``probe_us`` are what the hardware allows for the problem's bytes, None where unknown.
    """

    variant: str
    problem: str
    winner: Winner | None
    reason: str | None = None
    statuses: dict[str, int] = Field(default_factory=dict)
    rounds: int = 0
    seconds: Seconds = Seconds()
    roof_us: float | None = None
    probe_us: float | None = None


def make_outcome(
    board: Board,
    verdict: Verdict | None,
    *,
    identity: Identity,
    provenance: Provenance,
    previous: KernelConfig | None,
    baselines: dict[str, str | None],
    attainable: Attainable,
) -> Outcome:
    """Turns a verdict into a winner record."""
    statuses = dict(Counter(trial.status.value for trial in board.trials.values()))
    winner = None
    if verdict is not None:
        winner = _winner(
            board, verdict, identity, provenance=provenance, previous=previous, baselines=baselines
        )
    return Outcome(
        variant=identity.variant,
        problem=identity.problem,
        winner=winner,
        reason=None if winner else _why_none(board),
        statuses=statuses,
        rounds=len(board.rounds),
        seconds=_seconds(board),
        roof_us=attainable.roof_us,
        probe_us=attainable.probe_us,
    )


def _winner(
    board: Board,
    verdict: Verdict,
    identity: Identity,
    *,
    provenance: Provenance,
    previous: KernelConfig | None,
    baselines: dict[str, str | None],
) -> Winner:
    own = verdict.samples_us[verdict.winner.key]
    trial = board.trials[verdict.winner.key]
    p50, p20, p80 = spread(list(own))

    def beside(config: KernelConfig | None) -> Reading | None:
        samples = verdict.samples_us.get(config.key) if config else None
        if config is None or not samples:
            return None
        return Reading(
            config=config.key, latency_us=_rounded(median(samples)), ratio=_rounded(_paired(samples, own))
        )

    def near(config: KernelConfig, ratio: float) -> Reading:
        return Reading(
            config=config.key, latency_us=_rounded(board.latency_us(config)), ratio=_rounded(ratio)
        )

    return Winner(
        identity=identity,
        provenance=provenance.model_copy(update={"trials": len(board.trials)}),
        config=verdict.winner.to_dict(),
        latency_us=_rounded(p50),
        p20_us=_rounded(p20),
        p80_us=_rounded(p80),
        rel_error=trial.rel_error,
        reproducible=trial.reproducible,
        tie_band=TIE_BAND,
        tie_set=tuple(near(config, ratio) for config, ratio in verdict.ties),
        runner_up=near(*verdict.runner_up) if verdict.runner_up else None,
        default=beside(board.space.default),
        previous=beside(previous),
        baselines={name: _baseline(name, reason, verdict) for name, reason in sorted(baselines.items())},
        rejected=_rejected(board.trials.values(), verdict.dropped),
    )


def _baseline(name: str, reason: str | None, verdict: Verdict) -> Baseline:
    samples = verdict.samples_us.get(f"@{name}")
    if samples:
        return Baseline(latency_us=_rounded(median(samples)))
    return Baseline(reason=reason or verdict.dropped.get(f"@{name}") or "not measured")


def _rejected(trials: Iterable[Trial], dropped: dict[str, str]) -> dict[str, Rejected]:
    """By status, how many and the first; a config that failed only in the interleaved rounds counts as
    ``late``.
    """
    found: dict[str, Rejected] = {}
    failures = [
        (trial.status.value, trial.config_key, trial.evidence or "")
        for trial in trials
        if trial.status is not Status.OK
    ]
    failures += [("late", key, evidence) for key, evidence in dropped.items() if not key.startswith("@")]
    for status, key, whole in failures:
        evidence = _short(whole)
        first = found.get(status)
        found[status] = Rejected(
            count=first.count + 1 if first else 1,
            example=first.example if first else key,
            evidence=first.evidence if first else evidence,
        )
    return found


def _why_none(board: Board) -> str:
    for trial in board.trials.values():
        if trial.status is not Status.OK:
            return (
                f"no config was right; the first, {trial.config_key}: {trial.status.value}, {trial.evidence}"
            )
    return "every finalist failed in the interleaved rounds"


def _seconds(board: Board) -> Seconds:
    trials = board.trials.values()
    compiled = sum(trial.compile_s for trial in trials)
    checked = sum(trial.check_s for trial in trials)
    measured = sum(trial.measure_s for trial in trials) + sum(one.wall_s for one in board.rounds)
    overhead = max(0.0, board.spent_s - compiled - checked - measured)
    return Seconds(compile=compiled, check=checked, measure=measured, overhead=overhead)


def _paired(samples: tuple[float, ...], own: tuple[float, ...]) -> float:
    return median(a / b for a, b in zip(samples, own, strict=False))


def _rounded(value: float) -> float:
    """To 0.1 ns or 0.01 %: more digits than any measurement has, and few enough to read a diff."""
    return round(value, 4)


def _short(evidence: str) -> str:
    """First and last line: what kind of error, and what it said."""
    lines = [line.strip() for line in evidence.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))[:EVIDENCE_CHARACTERS]
