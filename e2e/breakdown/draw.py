"""The waterfall and the roles' bandwidths as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.e2e.breakdown.account import Breakdown
    from roofgap.e2e.breakdown.waterfall import Waterfall

FORMATS = (".svg", ".png")
BYTES, LOSS, GAIN, TOTAL = "#2f6f9f", "#c8553d", "#6a9f58", "#444444"


def draw(waterfall: Waterfall, breakdown: Breakdown, path: Path, *, title: str) -> Path:
    """Writes one figure, as SVG or PNG by the path's suffix; equal input gives equal bytes of SVG.

    Raises:
        RoofgapError: another suffix, or matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise RoofgapError(f"figure {path.name}", f"must end in {' or '.join(FORMATS)}", "rename it")
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RoofgapError("matplotlib", "is not installed", "run `pip install 'roofgap[e2e]'`") from error

    with mpl.rc_context({"svg.hashsalt": "roofgap", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(11, 8), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title)
        upper, lower = figure.subplots(2, 1, height_ratios=(3, 2))
        _steps(upper, waterfall)
        _bandwidths(lower, breakdown, waterfall.read_gbps)
        part = path.with_name(f".{path.name}.part")
        kind = path.suffix.removeprefix(".")
        figure.savefig(part, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        part.replace(path)
    return path


def _steps(axes: Any, waterfall: Waterfall) -> None:
    """Each term begins where the last one ended; the final bar is the measured time."""
    from roofgap.e2e.breakdown.waterfall import CEILING

    reached = highest = 0.0
    for index, term in enumerate(waterfall.terms):
        colour = BYTES if term.name in CEILING else LOSS if term.us >= 0 else GAIN
        axes.bar(index, term.us, bottom=reached, color=colour, width=0.8)
        reached += term.us
        top = max(reached, reached - term.us)
        highest = max(highest, top, waterfall.measured_us)
        axes.annotate(f"{term.us:,.0f}", (index, top), ha="center", va="bottom", fontsize=8)
    last = len(waterfall.terms)
    axes.bar(last, waterfall.measured_us, color=TOTAL, width=0.8)
    axes.annotate(
        f"{waterfall.measured_us:,.0f}", (last, waterfall.measured_us), ha="center", va="bottom", fontsize=8
    )
    axes.axhline(waterfall.ceiling_us, color=BYTES, linewidth=1, linestyle="--")
    names = [*(term.name for term in waterfall.terms), "measured"]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_ylabel("us per token")
    axes.set_title(
        f"{1e6 / waterfall.measured_us:,.1f} tok/s, {waterfall.attained:.1%} of the bandwidth's "
        f"{1e6 / waterfall.ceiling_us:,.0f} (dashed)",
        fontsize=9,
    )
    axes.set_ylim(top=1.1 * highest)


def _bandwidths(axes: Any, breakdown: Breakdown, read_gbps: float) -> None:
    roles = [role for role in breakdown.roles if role.in_model_gbps]
    for offset, (label, colour, values) in enumerate(
        (
            ("isolated", BYTES, [role.isolated_gbps for role in roles]),
            ("in the model", LOSS, [role.in_model_gbps for role in roles]),
        )
    ):
        known = [(index, value) for index, value in enumerate(values) if value is not None]
        axes.bar(
            [index + 0.4 * offset - 0.2 for index, _ in known],
            [value for _, value in known],
            width=0.38,
            color=colour,
            label=label,
        )
    axes.axhline(read_gbps, color=TOTAL, linewidth=1, linestyle="--", label="read bandwidth")
    axes.set_xticks(range(len(roles)), [role.role for role in roles])
    axes.set_ylabel("GB/s of the role's bytes")
    axes.legend(loc="upper left", fontsize=8, ncols=3)
