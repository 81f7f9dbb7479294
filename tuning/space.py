"""The candidates of one problem, in a fixed order, with who is next to whom."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from roofgap.kernels.config import KernelConfig, Value
from roofgap.kernels.variant import Limits, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.storage import digest


@dataclass(frozen=True)
class Space:
    """Every valid config of a variant for a problem. The default comes first and is always a member.

    ``invalid`` counts the combinations that ``is_valid`` refused, by its reason.
    """

    variant: Variant
    problem: Problem
    limits: Limits
    configs: tuple[KernelConfig, ...]
    fields: dict[str, tuple[Value, ...]]
    invalid: dict[str, int] = field(default_factory=dict)

    @property
    def default(self) -> KernelConfig:
        """The variant's default config."""
        return self.configs[0]

    @cached_property
    def by_key(self) -> dict[str, KernelConfig]:
        """Configs by their canonical text."""
        return {config.key: config for config in self.configs}

    def neighbours(self, config: KernelConfig) -> list[KernelConfig]:
        """Valid configs that differ in one field: one step up or down an ordered field, any other value of a
        name.
        """
        values = config.to_dict()
        known = self.by_key
        found = []
        for name, choices in self.fields.items():
            for other in _adjacent(values[name], choices):
                near = type(config).from_dict({**values, name: other})
                if near.key in known:
                    found.append(near)
        return found


def build_space(
    variant: Variant, problem: Problem, limits: Limits, extra: tuple[KernelConfig, ...] = ()
) -> Space:
    """Enumerates a variant's space. ``extra`` configs (earlier winners) join if they are valid.

    Raises:
        RoofgapError: the variant cannot compute the problem at all.
    """
    if reason := variant.supports(problem):
        raise RoofgapError(f"{variant.name} on {problem.key}", reason, "choose another variant or problem")
    fields = variant.space(problem)
    default = variant.default_config(problem, limits)
    valid = [config for config in extra if variant.is_valid(problem, config, limits) is None]
    configs = list(dict.fromkeys((default, *valid, *variant.configs(problem, limits))))
    total = 1
    for values in fields.values():
        total *= len(values)
    invalid = total - sum(1 for config in configs if _inside(config, fields))
    return Space(variant, problem, limits, tuple(configs), fields, {"is_valid": invalid} if invalid else {})


def tie_order(variant: Variant, problem: Problem, config: KernelConfig) -> tuple[Any, ...]:
    """Sort key among configs that cannot be told apart; the least one wins.

    Bit-reproducible before not, fewer partial sums, fewer warps, fewer stages, then the canonical text: what
    is easier on the rest of the GPU first, and never a matter of chance.
    """
    return (
        not variant.is_deterministic(problem, config),
        variant.split_count(problem, config),
        config.num_warps,
        config.num_stages,
        config.key,
    )


def source_hash(variant: Variant) -> str:
    """Hash of every kernel source the variant can launch."""
    from roofgap.kernels.source import source_hash as hash_of

    return hash_of(variant)


@cache
def space_hash(variant: Variant, problem: Problem) -> str:
    """Hash of the field values on offer; a winner from a smaller space may have been beaten since."""
    space = {name: list(values) for name, values in variant.space(problem).items()}
    return digest(json.dumps([variant.config_type.version, space], sort_keys=True))


def _adjacent(value: Value, choices: tuple[Value, ...]) -> list[Value]:
    if isinstance(value, bool | str):
        return [choice for choice in choices if choice != value]
    ordered = sorted(int(choice) for choice in choices)
    below = [choice for choice in ordered if choice < int(value)][-1:]
    above = [choice for choice in ordered if choice > int(value)][:1]
    return [*below, *above]


def _inside(config: KernelConfig, fields: dict[str, tuple[Value, ...]]) -> bool:
    values = config.to_dict()
    return all(values[name] in choices for name, choices in fields.items())
