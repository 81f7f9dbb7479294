"""A measurement that did not happen, as a value with a status and its evidence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Record

FAULTS = (  # texts of sticky CUDA errors; every later call of the process fails too
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "illegal instruction",
    "device-side assert",
    "illegal address",
)


class Failure(Record):
    """Why there is no latency."""

    status: Status
    evidence: str


class MeasureError(Exception):
    """Carries a ``Failure`` out of the measuring."""

    def __init__(self, status: Status, evidence: str) -> None:
        self.failure = Failure(status=status, evidence=evidence)
        super().__init__(f"{status.value}: {evidence}")

    def __reduce__(self) -> tuple[type[MeasureError], tuple[Status, str]]:
        return type(self), (self.failure.status, self.failure.evidence)


@contextmanager
def reported() -> Iterator[None]:
    """For commands: a measurement without which they cannot go on becomes the one error that they print."""
    try:
        yield
    except MeasureError as error:
        remedy = "repeat it on an idle GPU; if it stays, the driver or the kernel is at fault"
        raise RoofgapError(error.failure.status.value, error.failure.evidence, remedy) from error


def classify(error: BaseException) -> Failure:
    """Names what an exception of torch, Triton or the driver means for a trial."""
    if isinstance(error, MeasureError):
        return error.failure
    text = f"{type(error).__name__}: {error}".strip()
    return Failure(status=_status(error, text.lower()), evidence=text[:2000])


def _status(error: BaseException, text: str) -> Status:
    kind = type(error).__name__
    if isinstance(error, RoofgapError):
        return Status.UNSUPPORTED
    if any(fault in text for fault in FAULTS):
        return Status.ILLEGAL_ACCESS
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError" or "out of memory" in text:
        return Status.OUT_OF_MEMORY
    if kind == "OutOfResources" or "too many resources" in text or "out of resource" in text:
        return Status.OUT_OF_RESOURCES
    if kind in (
        "CompilationError",
        "CompileTimeAssertionFailure",
        "PTXASError",
        "UnsupportedLanguageConstruct",
    ):
        return Status.COMPILE_ERROR
    return Status.ERROR
