"""The one exception that roofgap raises for input it cannot use."""

from __future__ import annotations


class RoofgapError(Exception):
    """Bad input or a missing capability, said in three parts.

    Args:
        value: what was given, e.g. ``"K=4100"``.
        rule: what it breaks, e.g. ``"must be a multiple of 32"``.
        remedy: what to do about it, e.g. ``"pad the weight to K=4128"``.

    The command line prints the message on stderr and exits with ``exit_code`` (2).
    """

    exit_code = 2

    def __init__(self, value: str, rule: str, remedy: str) -> None:
        self.value, self.rule, self.remedy = value, rule, remedy
        super().__init__(f"{value}: {rule}. {remedy[:1].upper()}{remedy[1:]}.")

    def __reduce__(self) -> tuple[type[RoofgapError], tuple[str, str, str]]:
        return type(self), (self.value, self.rule, self.remedy)  # survives the trip out of a worker process
