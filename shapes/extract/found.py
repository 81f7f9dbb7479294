"""What an extractor hands to the inference: tensor shapes by name, and the numbers that a source states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.matrices import Evidence

Shape: TypeAlias = tuple[int, ...]
Number: TypeAlias = int | float | bool


@dataclass(frozen=True, slots=True)
class Stated:
    """A number of the architecture, and who says so."""

    value: Number
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Found:
    """Everything an extractor read.

    Attributes:
        place: the source, as errors and evidence name it.
        shapes: tensor name to shape, in the order of the file; a linear's weight is [out, in].
        stated: numbers of the architecture that the source gives outright, by field.
        same: whether two tensors are one storage or hold equal values; None where the source cannot tell.
    """

    place: str
    shapes: Mapping[str, Shape]
    stated: Mapping[str, Stated] = field(default_factory=dict)
    same: Callable[[str, str], bool | None] = lambda first, second: None


def measured(value: Number, source: str) -> Stated:
    """A number read from ``source``."""
    return Stated(value, Evidence(kind="measured", source=source))


def clip(name: object, limit: int = 80) -> str:
    """A name from an untrusted file, quoted and short enough for an error message."""
    text = repr(name)
    return text if len(text) <= limit else f"{text[:limit]}..."


def refuse(
    place: str, rule: str, remedy: str = "check the file, or extract from another form of the model"
) -> RoofgapError:
    """The error for a source that cannot be used."""
    return RoofgapError(place, rule, remedy)
