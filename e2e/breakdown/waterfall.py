"""From what the bytes allow to what was measured, one cause after the other; the terms sum to the measured
time.

measured = bytes / bandwidth + tails + in-model loss + attention + norms + other + gaps + host + unprofiled
"""

from __future__ import annotations

from math import fsum

from roofgap.e2e.breakdown.account import Breakdown, linear_us
from roofgap.e2e.breakdown.roles import LINEARS
from roofgap.shapes.accounting import TokenBytes
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.trial import Record

CEILING = ("codes", "scales", "head", "kv", "norms and embedding")
"""Terms that are bytes at the read bandwidth. Together they are the ceiling."""


class Term(Record):
    """One cause.

    Attributes:
        name: what it is.
        us: microseconds per token; negative where a part is faster than its reference.
        meaning: one line for people.
    """

    name: str
    us: float
    meaning: str


class Waterfall(Record):
    """A token's time, explained.

    Attributes:
        measured_us: per token, without a profiler.
        read_gbps: bandwidth behind the ceiling.
        terms: in order; they sum to measured_us.
    """

    measured_us: float
    read_gbps: float
    terms: tuple[Term, ...]

    @property
    def ceiling_us(self) -> float:
        """What the bytes alone take."""
        return fsum(term.us for term in self.terms if term.name in CEILING)

    @property
    def attained(self) -> float:
        """Ceiling over measured, 0..1: the fraction of the bandwidth that the model's bytes reach."""
        return self.ceiling_us / self.measured_us

    def without(self, *names: str) -> float:
        """Tokens a second if these terms cost nothing."""
        return 1e6 / fsum(term.us for term in self.terms if term.name not in names)

    @property
    def summary(self) -> str:
        """Why it is not the ceiling: losses from large to small, those above 1 % of the time."""
        losses = sorted(
            (term for term in self.terms if term.name not in CEILING), key=lambda term: term.us, reverse=True
        )
        named = [
            f"{term.name} {term.us:,.0f} us ({term.us / self.measured_us:.0%})"
            for term in losses
            if term.us > 0.01 * self.measured_us
        ]
        return (
            f"{1e6 / self.measured_us:,.1f} tok/s is {self.attained:.1%} of the {1e6 / self.ceiling_us:,.0f} that the "
            f"bytes allow; of {self.measured_us:,.0f} us a token: bytes {self.ceiling_us:,.0f} us"
            + "".join(f", {text}" for text in named)
        )


def make_waterfall(measured_us: float, read_gbps: float, read: TokenBytes, breakdown: Breakdown) -> Waterfall:
    """Explains a measured time per token by a profile of the same arm.

    Where linears were measured in isolation too, what they take above their bytes is split into ``tails``
    (also alone they
    are slower than their bytes: too few programs, partial waves, launch) and ``in-model loss`` (what the
    model adds to that, negative where its cache is warm). Otherwise all of it is in ``tails``.

    Args:
        measured_us: per token, wall clock, not profiled.
        read_gbps: read bandwidth, measured in the same process.
        read: a token's bytes by term.
        breakdown: of the same arm at the same depth.

    Raises:
        RoofgapError: a time or a bandwidth that is not positive.
    """
    for name, value in (("measured_us", measured_us), ("read_gbps", read_gbps)):
        if not value > 0:
            raise RoofgapError(f"{name}={value}", "must be positive", "measure it first")

    def at_bandwidth(size: float) -> float:
        return size / (read_gbps * 1e3)

    linears = at_bandwidth(read.codes + read.scales + read.zeros + read.biases + read.head)
    timed = [role for role in breakdown.roles if role.role in LINEARS]
    alone = (
        fsum(role.isolated_us for role in timed if role.isolated_us is not None)
        if timed and all(role.isolated_us is not None for role in timed)
        else linear_us(breakdown)
    )
    small = at_bandwidth(read.norms + read.embedding)
    terms = [
        Term(
            name="codes", us=at_bandwidth(read.codes), meaning="weights of the linears at the read bandwidth"
        ),
        Term(
            name="scales",
            us=at_bandwidth(read.scales + read.zeros + read.biases),
            meaning="scales, zeros and biases of the linears",
        ),
        Term(name="head", us=at_bandwidth(read.head), meaning="the output matrix as stored"),
        Term(name="kv", us=at_bandwidth(read.kv), meaning="keys and values of the context"),
        Term(name="norms and embedding", us=small, meaning="norm weights and one row of the embedding"),
        Term(name="tails", us=alone - linears, meaning="linears above their bytes, measured alone"),
        Term(
            name="in-model loss", us=linear_us(breakdown) - alone, meaning="linears in the model above alone"
        ),
        Term(
            name="attention",
            us=breakdown.us("attention") - at_bandwidth(read.kv),
            meaning="attention, rotary and cache above the KV bytes",
        ),
        Term(
            name="norms",
            us=breakdown.us("norms") - at_bandwidth(read.norms),
            meaning="norms above their bytes",
        ),
        Term(
            name="other",
            us=breakdown.us("other") - at_bandwidth(read.embedding),
            meaning="embedding, SwiGLU, residual adds, sampling, counters",
        ),
        Term(name="gaps", us=breakdown.idle_us, meaning="between kernels that were already queued"),
        Term(name="host", us=breakdown.host_us, meaning="the GPU waits for the next launch"),
    ]
    rest = measured_us - fsum(term.us for term in terms)
    terms.append(
        Term(
            name="unprofiled",
            us=rest,
            meaning="measured less profiled: the profiler's own cost (negative), clocks",
        )
    )
    return Waterfall(measured_us=measured_us, read_gbps=read_gbps, terms=tuple(terms))
