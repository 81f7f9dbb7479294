"""The config that a commit itself would use: its own winner for the GPU, else its default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ._need import need


def use_own_winners() -> None:
    """Winners come from the commit that is measured, never from the checkout around it or from the user."""
    package = need("roofgap.tuning", "__path__")
    folder = Path(next(iter(package))) / "winners"
    os.environ["ROOFGAP_WINNERS"] = str(folder)
    os.environ["XDG_DATA_HOME"] = str(folder / "none")
    os.environ.pop("ROOFGAP_STRICT", None)


def own_config(variant: Any, problem: Any, gpu: str | None, limits: Any) -> tuple[Any, str]:
    """Config and where it came from: ``tuned``, ``unvalidated`` or ``default``.

    Raises:
        NotImplementedError: the commit's variant does not support the problem.
    """
    if reason := variant.supports(problem):
        raise NotImplementedError(reason)
    if gpu is not None:
        try:
            choose = need("roofgap.tuning.lookup", "choose")
            use_own_winners()
        except NotImplementedError:  # a commit before there were winners
            return variant.default_config(problem, limits), "default"
        choice = choose(variant, problem, gpu)
        if choice.source != "default":
            return choice.config, choice.source
    return variant.default_config(problem, limits), "default"


def variant_named(name: str) -> Any:
    """The commit's variant.

    Raises:
        NotImplementedError: it has none of that name.
    """
    variants = need("roofgap.kernels.registry", "VARIANTS")
    if name not in variants:
        raise NotImplementedError(f"this commit has no variant {name}")
    return variants[name]


def source_hash(variant: Any) -> str | None:
    """Hash of the variant's kernels, or None where the commit cannot tell."""
    try:
        return str(need("roofgap.kernels.source", "source_hash")(variant))
    except NotImplementedError:
        return None
