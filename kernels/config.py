"""Launch values of a variant as a frozen, typed, printable record."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast, get_type_hints

from roofgap.shapes.errors import RoofgapError

ConfigT = TypeVar("ConfigT", bound="KernelConfig")
Value = int | bool | str


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """Base of every variant's config. Subclasses add fields of type int, bool or str, nothing else.

    ``version`` belongs to the winner's identity: raise it when a field changes its meaning.
    """

    version: ClassVar[int] = 1

    num_warps: int = 4
    num_stages: int = 2

    @property
    def key(self) -> str:
        """Canonical text, fields in declaration order: ``num_warps=4,num_stages=2,block_n=64``."""
        return ",".join(f"{name}={value}" for name, value in self.to_dict().items())

    def to_dict(self) -> dict[str, Value]:
        """Field values by name, in declaration order."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls: type[ConfigT], values: dict[str, Any]) -> ConfigT:
        """Builds a config from field values; fields left out keep their default.

        Raises:
            RoofgapError: an unknown field, or a value of another type than the field's.
        """
        types = field_types(cls)
        for name, value in values.items():
            if name not in types:
                raise RoofgapError(
                    f"config field {name!r}", f"unknown for {cls.__name__}", f"use {', '.join(types)}"
                )
            if type(value) is not types[name]:
                raise RoofgapError(
                    f"{name}={value!r}", f"must be of type {types[name].__name__}", "correct the value"
                )
        return cls(**values)

    @classmethod
    def parse(cls: type[ConfigT], text: str) -> ConfigT:
        """Reads ``"block_n=64,num_warps=4"`` (the inverse of ``key``).

        Raises:
            RoofgapError: a malformed pair, an unknown field, or a value of the wrong type.
        """
        if (cls, text) not in _parsed:
            _parsed[cls, text] = _parse(cls, text)
        return cast(ConfigT, _parsed[cls, text])


def field_types(cls: type[KernelConfig]) -> dict[str, type]:
    """Type of each field by name."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


_parsed: dict[tuple[type[KernelConfig], str], KernelConfig] = {}  # ops parse the same few texts at every call


def _parse(cls: type[KernelConfig], text: str) -> KernelConfig:
    types = field_types(cls)
    values: dict[str, Value] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise RoofgapError(f"config text {pair!r}", "must read field=value", "write it like block_n=64")
        kind = types.get(name)
        if kind is int:
            try:
                values[name] = int(value)
            except ValueError:
                raise RoofgapError(f"{name}={value}", "must be a whole number", "correct the value") from None
        elif kind is bool:
            if value not in ("True", "False"):
                raise RoofgapError(f"{name}={value}", "must be True or False", "correct the value")
            values[name] = value == "True"
        else:
            values[name] = value
    return cls.from_dict(values)
