"""``roofgap doctor``: what this machine can do, what is missing, and the remedy for each."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from roofgap.cli.output import print_json, print_table


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """What this machine can do, what is missing, and the remedy. Exit code 0 whenever it could look."""
    from roofgap.cli.checks import judge, look

    findings = look()
    uses = [asdict(use) for use in judge(findings)]
    rows = [asdict(finding) for finding in findings]
    if as_json:
        print_json({"findings": rows, "uses": uses})
        return
    print_table(rows, title="This machine")
    print_table(uses, title="What it can do")
