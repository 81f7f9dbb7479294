"""Results that others published, recomputed under their accounting and under the honest one."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from roofgap.shapes.accounting import TokenBytes, WeightFormat, WeightKind, honest, published
from roofgap.shapes.device import Bandwidth
from roofgap.shapes.files import read_record, unknown_name
from roofgap.shapes.manifest import load_manifest
from roofgap.shapes.roofline import ceiling_tok_s
from roofgap.tuning.trial import Record

FOLDER = Path(str(files("roofgap.e2e"))) / "published"


class PublishedRow(Record):
    """A line as it was printed. None where nothing was.

    Attributes:
        arm: its author's name for it.
        model: the manifest it is about.
        published_format: its accounting's name for the weights, ``bf16`` or ``int4``.
        weights: what was really stored: ``bf16``, ``nf4`` or ``w4``; the head was bf16 throughout.
        tok_s: measured tokens a second.
        perplexity: on its author's probe, whose text is not known.
        printed_gbps: achieved GB/s.
        printed_pct: of the bandwidth.
        printed_weight_gb: weight bytes, GB (1e9).
        printed_ceiling_tok_s: ceiling.
    """

    arm: str
    model: str
    published_format: Literal["bf16", "int4"]
    weights: WeightKind
    tok_s: float | None
    perplexity: float | None
    printed_gbps: float | None
    printed_pct: float | None
    printed_weight_gb: float
    printed_ceiling_tok_s: float


class PublishedTable(Record):
    """A table of one source on one device."""

    model_config = ConfigDict(populate_by_name=True)

    schema_version: Literal[1] = Field(alias="schema")
    source: str
    device: str
    bandwidth_gbps: float
    bandwidth_note: str
    context: int
    context_note: str
    rows: tuple[PublishedRow, ...]


class Recomputed(Record):
    """A published line under one accounting. ``achieved_gbps`` and ``pct`` need a measured speed."""

    arm: str
    model: str
    accounting: Literal["published", "honest"]
    tok_s: float | None
    perplexity: float | None
    weight_gb: float
    kv_gb: float
    achieved_gbps: float | None
    pct_of_bandwidth: float | None
    ceiling_tok_s: float
    pct_of_ceiling: float | None


def list_published() -> list[str]:
    """Names of the tables that are shipped."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_published(name: str) -> PublishedTable:
    """A shipped table.

    Raises:
        RoofgapError: no such table.
    """
    if name not in list_published():
        raise unknown_name("published table", name, list_published())
    return read_record(FOLDER / f"{name}.json", PublishedTable, "reinstall roofgap")


def recompute(table: PublishedTable) -> list[Recomputed]:
    """Every line under both accountings, from manifests and the measured tokens a second alone.

    ``honest`` counts a bf16 head and cache; a W4 line has packed zeros and a 16-bit scale per 128 weights, an NF4
    line an fp32 absmax per 64.
    """
    found = []
    bandwidth = Bandwidth(table.bandwidth_gbps, "given")
    for row in table.rows:
        manifest = load_manifest(row.model)
        old = published(manifest, table.context)[row.published_format]
        new = honest(manifest, WeightFormat(row.weights), context=table.context)
        found += [_line(row, "published", old, bandwidth), _line(row, "honest", new, bandwidth)]
    return found


def _line(
    row: PublishedRow, accounting: Literal["published", "honest"], read: TokenBytes, bandwidth: Bandwidth
) -> Recomputed:
    achieved = None if row.tok_s is None else read.achieved_gbps(row.tok_s)
    ceiling = ceiling_tok_s(read, bandwidth)
    return Recomputed(
        arm=row.arm,
        model=row.model,
        accounting=accounting,
        tok_s=row.tok_s,
        perplexity=row.perplexity,
        weight_gb=read.weights / 1e9,
        kv_gb=read.kv / 1e9,
        achieved_gbps=achieved,
        pct_of_bandwidth=None if achieved is None else 100 * achieved / bandwidth.gbps,
        ceiling_tok_s=ceiling,
        pct_of_ceiling=None if row.tok_s is None else 100 * row.tok_s / ceiling,
    )
