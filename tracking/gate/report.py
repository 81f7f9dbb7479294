"""The report for people: a table worst first, and markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from roofgap.tracking.gate.records import COULD_NOT_MEASURE, REGRESSION, Finding, Report

SHOWN = ("worse", "unmeasured", "allowed", "better", "new")
MOST_ROWS = 200


def summary(report: Report) -> str:
    """One line: the outcome and the counts."""
    outcome = {REGRESSION: "worse", COULD_NOT_MEASURE: "could not measure everything"}.get(
        report.exit_code, "nothing worse"
    )
    counts = ", ".join(
        f"{len(listed)} {verdict}"
        for verdict in (*SHOWN, "same")
        if (listed := report.having(verdict))  # type: ignore[arg-type]
    )
    text = f"{report.before[:10]} -> {report.after[:10]}: {outcome}"
    return f"{text} ({counts or 'no values'}; {report.not_applicable} cells n/a)"


def rows(report: Report) -> list[dict[str, object]]:
    """Findings that are not the same, as a table's rows."""
    return [
        {
            "cell": finding.cell,
            "before": finding.before,
            "after": finding.after,
            "change": percent(finding.effect),
            "verdict": finding.verdict,
        }
        for finding in report.having(*SHOWN)[:MOST_ROWS]  # type: ignore[arg-type]
    ]


def device_rows(report: Report) -> list[dict[str, object]]:
    """Every timed cell with the smallest effect that would have been seen."""
    timed = sorted((f for f in report.findings if f.evidence), key=lambda finding: finding.cell)
    return [
        {
            "cell": finding.cell,
            "before us": finding.before,
            "after us": finding.after,
            "change": percent(finding.effect),
            "noise floor": percent(finding.evidence.noise_floor),
            "seen from": percent(finding.evidence.smallest_effect),
            "p": finding.evidence.p_value,
            "verdict": finding.verdict,
        }
        for finding in timed
        if finding.evidence is not None
    ]


def percent(ratio: float | None) -> str | None:
    """``0.05`` as ``+5.0 %``."""
    return None if ratio is None else f"{ratio:+.1%}".replace("%", " %")


def reasons(report: Report) -> list[str]:
    """Explanations, each under the cells that share it."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for finding in report.having(*SHOWN):  # type: ignore[arg-type]
        lines = (*((finding.reason,) if finding.reason else ()), *finding.explanation)
        if lines:
            shared.setdefault(lines, []).append(finding.cell)
    return [
        "\n".join([", ".join(cells), *(f"    {line}" for line in lines)]) for lines, cells in shared.items()
    ]


def markdown(report: Report) -> str:
    """For a pull request's comment."""
    listed = rows(report)
    parts = [f"**roofgap gate** {summary(report)}", *(f"> {warning}" for warning in report.warnings)]
    if listed:
        parts.append(_table(listed))
    if report.gpu:
        parts.append(f"Timed on {report.gpu}.\n\n{_table(device_rows(report))}")
    explained = [f for f in report.having(*SHOWN) if f.reason or f.explanation]  # type: ignore[arg-type]
    if explained:
        parts.append("<details><summary>Why</summary>\n\n" + "\n".join(_why(explained)) + "\n\n</details>")
    return "\n\n".join(parts) + "\n"


def _why(findings: Iterable[Finding]) -> list[str]:
    return [
        f"- `{finding.cell}`: "
        + "; ".join((*((finding.reason,) if finding.reason else ()), *finding.explanation))
        for finding in findings
    ]


def _table(listed: Sequence[dict[str, object]]) -> str:
    names = list(listed[0])
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in listed]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|")
