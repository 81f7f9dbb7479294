"""A tuned config with everything needed to trust it or to doubt it."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from roofgap.kernels.config import Value
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.trial import Record, config_key

SCHEMA = 1
DEFAULT_POLICY = MeasurePolicy().key


class Identity(Record):
    """What decides whether a winner answers a lookup. Any difference is a miss.

    ``gpu`` is a model slug (``h200``), ``problem`` a ``Problem.key``, ``config_version`` the version of the
    variant's config fields, ``policy`` the key of the measurement policy.
    """

    gpu: str
    variant: str
    problem: str
    config_version: int
    policy: str = DEFAULT_POLICY

    @property
    def file_name(self) -> str:
        """``<problem>.json``; a policy other than the default one is told apart by ``@<policy>``."""
        suffix = "" if self.policy == DEFAULT_POLICY else "@" + slug(self.policy)
        return f"{self.problem}{suffix}.json"


class Toolchain(Record):
    """Versions that a compiled kernel depends on. ``unknown`` never matches anything, itself included."""

    driver: str
    cuda: str
    torch: str
    triton: str


class Provenance(Record):
    """Where a winner came from. A difference to the present leaves it usable, marked ``unvalidated``.

    ``run`` names the journal, ``replaces`` the run whose winner was in place when this one started.
    """

    toolchain: Toolchain
    source_hash: str
    space_hash: str
    date: str
    run: str
    strategy: str
    seed: int
    trials: int
    replaces: str | None = None


class Reading(Record):
    """A config beside the winner, by its canonical text.

    ``latency_us`` of default and previous winner are from the closing rounds, with ``ratio`` over the winner;
    those of the tie set and the runner-up are first readings, with ``ratio`` over the fastest from the
    interleaved rounds.
    """

    config: str
    latency_us: float = Field(gt=0)
    ratio: float = Field(gt=0)


class Baseline(Record):
    """Another implementation re-measured beside the winner, or why it was not."""

    latency_us: float | None = None
    reason: str | None = None


class Rejected(Record):
    """How many candidates ended in a status, and the first of them with its evidence."""

    count: int
    example: str
    evidence: str


class Winner(Record):
    """The config to use for one identity. Latencies in microseconds per launch."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    identity: Identity
    provenance: Provenance
    config: dict[str, Value]
    latency_us: float = Field(gt=0)
    p20_us: float = Field(gt=0)
    p80_us: float = Field(gt=0)
    rel_error: float | None = None
    reproducible: bool | None = None
    tie_band: float
    tie_set: tuple[Reading, ...]
    runner_up: Reading | None = None
    default: Reading | None = None
    previous: Reading | None = None
    baselines: dict[str, Baseline] = Field(default_factory=dict)
    rejected: dict[str, Rejected] = Field(default_factory=dict)

    @property
    def config_key(self) -> str:
        """Canonical text of the config."""
        return config_key(self.config)

    def to_json(self) -> str:
        """The file's text: stable field order, two-space indent, so that a retune is a readable diff."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


def slug(name: str) -> str:
    """A safe file-name part: lower case letters, digits, dots and single dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def gpu_slug(name: str) -> str:
    """Model slug of a device name: ``NVIDIA H200`` -> ``h200``, ``NVIDIA A100-SXM4-80GB`` ->
    ``a100-sxm4-80gb``.
    """
    return (
        slug(re.sub(r"^(nvidia|amd)\b|\bgeforce\b|\binstinct\b", " ", name, flags=re.IGNORECASE)) or "unknown"
    )
