"""The record of one tried config, as it reaches the journal."""

from __future__ import annotations

from statistics import median

from pydantic import BaseModel, ConfigDict, Field, model_validator

from roofgap.kernels.config import Value
from roofgap.tuning.status import Status


class Record(BaseModel):
    """Base of every record that reaches disk: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Trial(Record):
    """One config, compiled, checked and timed once.

    ``samples_us`` holds the per-launch time of every repetition; ``latency_us`` is their median. Seconds say
    where the time went; ``wall_s`` is the wall-clock charged to this trial, and the sum over a run is what it
    took.
    """

    config: dict[str, Value]
    status: Status
    evidence: str | None = None
    latency_us: float | None = Field(default=None, gt=0)
    p20_us: float | None = Field(default=None, gt=0)
    p80_us: float | None = Field(default=None, gt=0)
    rel_error: float | None = Field(default=None, ge=0)
    reproducible: bool | None = None
    code_hash: str | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    compile_s: float = 0.0
    check_s: float = 0.0
    measure_s: float = 0.0
    wall_s: float = 0.0

    @model_validator(mode="after")
    def _latency_iff_ok(self) -> Trial:
        if (self.status is Status.OK) != (self.latency_us is not None):
            raise ValueError(f"status {self.status.value} with latency_us={self.latency_us}")
        if self.status is not Status.OK and not self.evidence:
            raise ValueError(f"status {self.status.value} without evidence")
        return self

    @property
    def config_key(self) -> str:
        """Canonical text of the config, as ``KernelConfig.key`` writes it."""
        return config_key(self.config)


class Round(Record):
    """One interleaved reading of several contenders: they took turns inside one loop, so drift hits all
    alike.

    ``latency_us`` has a median per contender, None where it failed; ``evidence`` says why, by contender.
    """

    contenders: tuple[str, ...]
    latency_us: tuple[float | None, ...]
    evidence: dict[str, str] = Field(default_factory=dict)
    wall_s: float = 0.0

    @model_validator(mode="after")
    def _one_reading_each(self) -> Round:
        if len(self.contenders) != len(self.latency_us) or len(set(self.contenders)) != len(self.contenders):
            raise ValueError("a round needs one reading for each of its contenders, each named once")
        return self


def config_key(config: dict[str, Value]) -> str:
    """Canonical text of a config held as plain values."""
    return ",".join(f"{name}={value}" for name, value in config.items())


def spread(samples_us: list[float]) -> tuple[float, float, float]:
    """Median, 20th and 80th percentile of samples, in their unit."""
    ordered = sorted(samples_us)
    last = len(ordered) - 1
    return median(ordered), ordered[round(0.2 * last)], ordered[round(0.8 * last)]
