"""Export to Kernel Tuner's T4 results format (its schema/T4/1.0.0/results-schema.json)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from roofgap.tuning.status import Status
from roofgap.tuning.trial import Trial
from roofgap.tuning.winner import Winner

VERSION = "1.0.0"

_INVALIDITY = {
    Status.OK: "correct",
    Status.WRONG: "correctness",
    Status.TIMEOUT: "timeout",
    Status.COMPILE_TIMEOUT: "timeout",
    Status.COMPILE_ERROR: "compile",
    Status.COMPILE_CRASH: "compile",
    Status.PRUNED: "constraints",
    Status.UNSUPPORTED: "constraints",
    Status.DUPLICATE: "constraints",
    Status.QUARANTINED: "constraints",
}


def from_trials(trials: Iterable[tuple[str, Trial]], date: str) -> dict[str, Any]:
    """A T4 document of a run's trials, each given with its problem's key."""
    return _document(_trial(problem, trial, date) for problem, trial in trials)


def from_winners(winners: Iterable[Winner]) -> dict[str, Any]:
    """A T4 document with one correct result per winner."""
    return _document(_winner(winner) for winner in winners)


def _document(results: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"schema_version": VERSION, "results": list(results)}


def _trial(problem: str, trial: Trial, date: str) -> dict[str, Any]:
    measurements: list[dict[str, Any]] = [{"name": "problem", "value": problem, "unit": ""}]
    if trial.latency_us is not None:
        measurements.insert(0, {"name": "time", "value": trial.latency_us / 1e3, "unit": "ms"})
    return {
        "timestamp": date,
        "configuration": dict(trial.config),
        "objectives": ["time"],
        "times": {
            "compilation_time": trial.compile_s * 1e3,
            "validation": trial.check_s * 1e3,
            "runtimes": [] if trial.latency_us is None else [trial.latency_us / 1e3],
        },
        "invalidity": _INVALIDITY.get(trial.status, "runtime"),
        "correctness": int(trial.status is Status.OK),
        "measurements": measurements,
    }


def _winner(winner: Winner) -> dict[str, Any]:
    identity = winner.identity
    return {
        "timestamp": winner.provenance.date,
        "configuration": dict(winner.config),
        "objectives": ["time"],
        "times": {"runtimes": [winner.latency_us / 1e3]},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [
            {"name": "time", "value": winner.latency_us / 1e3, "unit": "ms"},
            *(
                {"name": name, "value": getattr(identity, name), "unit": ""}
                for name in ("gpu", "variant", "problem")
            ),
        ],
    }
