"""Whether the winners of a folder can still be trusted here."""

from __future__ import annotations

from pathlib import Path

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.environment import limits_for
from roofgap.tuning.lookup import current_provenance
from roofgap.tuning.results import Cell
from roofgap.tuning.winner import Winner
from roofgap.tuning.winners_store import load_all, stale_fields


def check_folder(folder: Path) -> list[dict[str, Cell]]:
    """One row per file with a ``verdict``.

    ``damaged``: cannot be read. ``invalid``: variant, problem or config no longer exist or fit.
    ``unvalidated``: tuned with other versions, sources or another space than here. ``validated``: everything
    matches.
    """
    rows: list[dict[str, Cell]] = []
    for path, winner in load_all(folder).items():
        if isinstance(winner, RoofgapError):
            rows.append({"file": str(path), "verdict": "damaged", "said": str(winner)})
            continue
        verdict, said = _verdict(winner)
        rows.append({"file": str(path), "verdict": verdict, "said": said})
    return rows


def _verdict(winner: Winner) -> tuple[str, str]:
    from roofgap.kernels.registry import get_variant

    identity = winner.identity
    try:
        variant = get_variant(identity.variant)
        problem = Problem.from_key(identity.problem)
        if variant.config_type.version != identity.config_version:
            return "invalid", f"config version {identity.config_version}, now {variant.config_type.version}"
        config = variant.config_type.from_dict(dict(winner.config))
        refusal = variant.is_valid(problem, config, limits_for(identity.gpu))
    except RoofgapError as error:
        return "invalid", str(error)
    if refusal is not None:
        return "invalid", refusal
    stale = stale_fields(winner.provenance, current_provenance(variant, problem))
    return ("unvalidated", "; ".join(stale)) if stale else ("validated", "")
