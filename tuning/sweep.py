"""Recorded exhaustive sweeps: every config of a problem with its time, small enough for git, to search again
anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.variant import Limits, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.journal import read_journal
from roofgap.tuning.outcome import Outcome
from roofgap.tuning.results import Cell, ResultFile, make_results, read_results
from roofgap.tuning.scripted import COMPILE_S, ScriptedRunner
from roofgap.tuning.space import Space
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Trial
from roofgap.tuning.tune import TuneRequest
from roofgap.tuning.winner import Winner

LEAST_SIGMA = 0.001
EVIDENCE_CHARACTERS = 200


@dataclass(frozen=True)
class Sweep:
    """A recorded sweep, ready to be searched.

    Attributes:
        path: the file.
        gpu: slug of the GPU it was recorded on.
        variant: the variant that was swept.
        problem: the problem.
        trials: per config key its recorded row.
        default: key of the default config.
        baselines_us: other implementations timed beside the winner.
    """

    path: Path
    gpu: str
    variant: Variant
    problem: Problem
    trials: dict[str, Trial]
    default: str
    baselines_us: dict[str, float]

    @property
    def best_us(self) -> float:
        """Least recorded latency."""
        return min(trial.latency_us for trial in self.trials.values() if trial.latency_us is not None)

    def regret(self, config: KernelConfig) -> float:
        """How much slower a config is than the best recorded one, as a fraction."""
        latency = self.trials[config.key].latency_us
        assert latency is not None
        return latency / self.best_us - 1

    def space(self) -> Space:
        """The configs that were recorded, whatever the variant's space is today."""
        configs = [self.variant.config_type.parse(key) for key in (self.default, *self.trials)]
        values = [config.to_dict() for config in configs]
        fields = {name: tuple(sorted({one[name] for one in values}, key=str)) for name in values[0]}
        return Space(self.variant, self.problem, Limits(), tuple(dict.fromkeys(configs)), fields)

    def runner(self, seed: int = 0) -> ScriptedRunner:
        """A runner that answers from the recording, with the recorded spread as noise."""
        right = {key: trial for key, trial in self.trials.items() if trial.latency_us is not None}
        waited = [trial.compile_s for trial in self.trials.values() if trial.compile_s > 0]
        return ScriptedRunner(
            lambda config: right[config.key].latency_us or 0.0,
            noise=lambda config: _sigma(right[config.key]),
            faults={
                key: (trial.status, trial.evidence or "recorded")
                for key, trial in self.trials.items()
                if trial.status is not Status.OK
            },
            baselines_us=self.baselines_us,
            compile_s=sum(waited) / len(waited) if waited else COMPILE_S,
            seed=seed,
        )


def sweep_path(folder: Path, gpu: str, variant: str, problem: Problem) -> Path:
    """``<folder>/<gpu>/<variant>/<problem>.json``."""
    return folder / gpu / variant / f"{problem.key}.json"


def sweep_rows(
    variant: str, problem: Problem, trials: Mapping[str, Trial], winner: Winner | None, default: str
) -> list[dict[str, Cell]]:
    """Flat rows: one per config in the order tried, then one per baseline.

    A config whose code was timed under another name gets that time, so that a replayed search may find
    either.
    """
    timed = {trial.code_hash: trial for trial in trials.values() if trial.status is Status.OK}
    shape: dict[str, Cell] = {
        "variant": variant,
        "n": problem.n,
        "k": problem.k,
        "m": problem.m,
        "dtype": problem.x_dtype,
        "group_size": problem.group_size,
        "zero_mode": problem.zero_mode,
        "bias": problem.bias,
    }
    rows: list[dict[str, Cell]] = []
    for key, tried in trials.items():
        trial = timed.get(tried.code_hash, tried) if tried.status is Status.DUPLICATE else tried
        row: dict[str, Cell] = {"config": key, "status": trial.status.value}
        for name in ("latency_us", "p20_us", "p80_us", "rel_error", "compile_s"):
            value = getattr(trial, name)
            if value:
                row[name] = round(value, 6 if name == "rel_error" else 4)
        if trial.status is not Status.OK:
            row["evidence"] = (trial.evidence or "")[:EVIDENCE_CHARACTERS]
        if key == default:
            row["default"] = True
        rows.append(row if rows else {**shape, **row})
    for name, baseline in (winner.baselines if winner else {}).items():
        if baseline.latency_us is not None:
            rows.append({"variant": name, "latency_us": baseline.latency_us, "status": "ok"})
    return rows


def record(
    folder: Path, journal: Path, request: TuneRequest, outcomes: Sequence[Outcome], versions: dict[str, str]
) -> list[Path]:
    """Writes one sweep per problem out of the journal of an exhaustive run, and returns the files.

    Raises:
        RoofgapError: the journal is damaged, or the folder cannot be written.
    """
    trials: dict[str, dict[str, Trial]] = {problem.key: {} for problem in request.problems}
    for entry in read_journal(journal):
        if entry.kind == "trial":
            trial = Trial.model_validate(entry.data["trial"])
            trials[entry.data["problem"]][trial.config_key] = trial
    written = []
    for problem, outcome in zip(request.problems, outcomes, strict=True):
        default = request.variant.default_config(problem, request.limits).key
        rows = sweep_rows(request.variant.name, problem, trials[problem.key], outcome.winner, default)
        path = sweep_path(folder, request.gpu, request.variant.name, problem)
        make_results(request.gpu, versions, rows).save(path)
        written.append(path)
    return written


def load_sweep(path: Path) -> Sweep:
    """Reads a recorded sweep.

    Raises:
        RoofgapError: the file is missing, damaged, of a later schema, or no sweep; or no config in it was
            right.
    """
    results = read_results(path)
    try:
        return _parse(path, results)
    except (KeyError, ValueError, StopIteration) as error:
        raise RoofgapError(
            f"sweep {path}", f"is not a recorded sweep ({error!r})", "record one with --record-sweep"
        ) from error


def _parse(path: Path, results: ResultFile) -> Sweep:
    from roofgap.kernels.registry import get_variant

    first = results.rows[0] if results.rows else {}
    variant = get_variant(str(first["variant"]))
    problem = Problem(
        n=first["n"],  # type: ignore[arg-type]  # Problem checks its fields itself
        k=first["k"],  # type: ignore[arg-type]
        m=first["m"],  # type: ignore[arg-type]
        group_size=first["group_size"],  # type: ignore[arg-type]
        x_dtype=first["dtype"],  # type: ignore[arg-type]
        zero_mode=first["zero_mode"],  # type: ignore[arg-type]
        bias=bool(first["bias"]),
    )
    rows = [row for row in results.rows if "config" in row]
    trials = {str(row["config"]): _trial(variant, row) for row in rows}
    if not any(trial.latency_us for trial in trials.values()):
        raise RoofgapError(f"sweep {path}", "has no config that was right", "record it again")
    baselines = {
        str(row["variant"]): float(row["latency_us"])  # type: ignore[arg-type]
        for row in results.rows
        if "config" not in row
    }
    default = next(str(row["config"]) for row in rows if row.get("default"))
    return Sweep(path, results.gpu, variant, problem, trials, default, baselines)


def _trial(variant: Variant, row: Mapping[str, Cell]) -> Trial:
    known = ("latency_us", "p20_us", "p80_us", "rel_error", "compile_s", "evidence")
    fields = {name: row[name] for name in known if name in row}
    config = variant.config_type.parse(str(row["config"])).to_dict()
    return Trial.model_validate({"config": config, "status": row["status"], **fields})


def _sigma(trial: Trial) -> float:
    """Standard deviation of the logarithm of a reading: p20 and p80 of a normal are 1.683 of them apart."""
    if trial.p20_us is None or trial.p80_us is None:
        return LEAST_SIGMA
    return max(LEAST_SIGMA, log(trial.p80_us / trial.p20_us) / 1.683)
