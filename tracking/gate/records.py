"""What the gate found, as it goes into JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Lane = Literal["static", "traffic", "quality", "device"]
EXACT_LANES: tuple[Lane, ...] = ("static", "traffic", "quality")
LANES: tuple[Lane, ...] = (*EXACT_LANES, "device")
Verdict = Literal["worse", "allowed", "unmeasured", "better", "same", "new"]

NOTHING_WORSE, REGRESSION, COULD_NOT_MEASURE = 0, 1, 2


class Record(BaseModel):
    """Frozen, no unknown fields, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class Evidence(Record):
    """What the device lane knows about a difference. Effects are ratios minus 1: 0.05 is 5 % slower.

    Attributes:
        rounds: rounds in which both commits were timed.
        p_value: of a difference this large if there is none, after correction for the number of cells.
        noise_floor: effect that two measurements of one commit explain.
        smallest_effect: effect that would have been seen with a probability of 95 %.
    """

    rounds: int
    p_value: float
    noise_floor: float
    smallest_effect: float


class Finding(Record):
    """One metric of one cell.

    Attributes:
        cell: ``lane/variant/shape/place/metric``, the name that an allow-list uses.
        before: value at the first commit, None where it has none; device times are medians in microseconds.
        after: value at the second commit.
        effect: after / before - 1; None without a positive ``before``.
        verdict: ``worse``, ``allowed`` (worse, and on the allow-list), ``unmeasured``, ``better``, ``same``, or ``new``
            (nothing to compare with).
        reason: why it is unmeasured, allowed or new.
        evidence: statistics, on the device lane.
        explanation: what differs between the commits beside the value, a line each.
    """

    cell: str
    before: float | None = None
    after: float | None = None
    effect: float | None = None
    verdict: Verdict
    reason: str | None = None
    evidence: Evidence | None = None
    explanation: tuple[str, ...] = ()

    @property
    def lane(self) -> str:
        """Part of the cell's name."""
        return self.cell.partition("/")[0]


class Report(Record):
    """Both commits, every finding, and what a reader must know.

    Attributes:
        before: full hash of the first commit.
        after: full hash of the second.
        lanes: lanes that were measured.
        versions: of torch and Triton.
        gpu: device the device lane ran on, or None.
        not_applicable: cells that neither commit has here.
        warnings: about the allow-list and about lanes that measured nothing.
        incomplete: a lane that was asked for gave nothing.
        findings: worst first.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    before: str
    after: str
    lanes: tuple[Lane, ...]
    versions: dict[str, str]
    gpu: str | None
    not_applicable: int
    warnings: tuple[str, ...]
    incomplete: bool
    findings: tuple[Finding, ...]

    def having(self, *verdicts: Verdict) -> list[Finding]:
        """Findings of these verdicts, in order."""
        return [finding for finding in self.findings if finding.verdict in verdicts]

    @property
    def exit_code(self) -> int:
        """1 if anything is worse, whatever else failed; else 2 if anything could not be measured; else 0."""
        if self.having("worse"):
            return REGRESSION
        if self.incomplete or self.having("unmeasured"):
            return COULD_NOT_MEASURE
        return NOTHING_WORSE
