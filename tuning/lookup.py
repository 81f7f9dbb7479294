"""Which config a kernel uses at run time: the tuned one if there is one, else the default, and it says so.

Looking up never tunes. ``install()`` gives this to the kernels, which know nothing of the tuner.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.variant import Limits, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning import environment, winners_store
from roofgap.tuning.measure.policy import CHAINED
from roofgap.tuning.space import source_hash, space_hash
from roofgap.tuning.winner import DEFAULT_POLICY, Identity, Provenance, Winner

if TYPE_CHECKING:
    import torch

STRICT = "ROOFGAP_STRICT"
MAX_BUCKET = 4096
_log = logging.getLogger("roofgap.tuning")


@dataclass(frozen=True, slots=True)
class Choice:
    """A config and where it came from.

    ``source`` is ``tuned``, ``unvalidated`` (tuned under another toolchain, source or space; ``notes`` lists
    them) or ``default`` (``notes`` says why every folder missed). ``m`` is the M that was tuned, above the
    problem's own inside a bucket.
    """

    config: KernelConfig
    source: str
    m: int
    notes: tuple[str, ...] = ()
    winner: Winner | None = None


def bucket(m: int) -> int:
    """The M whose winner serves ``m`` where ``m`` was not tuned: the next power of two, at most 4096."""
    return min(MAX_BUCKET, 1 << max(0, m - 1).bit_length())


def identity_of(variant: Variant, problem: Problem, gpu: str, policy: str = DEFAULT_POLICY) -> Identity:
    """The identity under which a problem's winner is filed."""
    return Identity(
        gpu=gpu,
        variant=variant.name,
        problem=problem.key,
        config_version=variant.config_type.version,
        policy=policy,
    )


def choose(
    variant: Variant,
    problem: Problem,
    gpu: str,
    *,
    limits: Limits | None = None,
    policy: str = DEFAULT_POLICY,
    strict: bool | None = None,
) -> Choice:
    """The config for a problem on a GPU.

    Args:
        variant: the kernel implementation.
        problem: what is computed.
        gpu: slug of the GPU.
        limits: what a config may use on it; None is what every GPU since sm_80 has.
        policy: key of the measurement policy whose winners are wanted.
        strict: whether an untuned problem or an unvalidated winner is an error; None asks
            ``$ROOFGAP_STRICT``.

    Raises:
        RoofgapError: a winner file on the way is damaged, or strict mode found no validated winner.
    """
    limits = limits or Limits()
    strict = os.environ.get(STRICT, "") not in ("", "0") if strict is None else strict
    notes: list[str] = []
    for m in dict.fromkeys((problem.m, bucket(problem.m))):
        found = winners_store.find(identity_of(variant, problem.with_m(m), gpu, policy))
        if found.winner is None:
            notes += [f"{path}: {reason}" for path, reason in found.steps]
            continue
        config = variant.config_type.from_dict(dict(found.winner.config))
        if reason := variant.is_valid(problem, config, limits):
            notes.append(f"{found.path}: {reason}")
            continue
        stale = winners_store.stale_fields(
            found.winner.provenance, current_provenance(variant, problem.with_m(m))
        )
        if stale and strict:
            raise RoofgapError(
                f"winner {found.path}",
                f"is unvalidated ({'; '.join(stale)})",
                f"run `{tune_command(variant, problem.with_m(m), policy)}` or unset {STRICT}",
            )
        return Choice(config, "unvalidated" if stale else "tuned", m, tuple(stale), found.winner)
    if strict:
        raise RoofgapError(
            f"{variant.name} {problem.key} on {gpu}",
            "is not tuned",
            f"run `{tune_command(variant, problem, policy)}` or unset {STRICT}",
        )
    return Choice(variant.default_config(problem, limits), "default", problem.m, tuple(notes))


def tune_command(variant: Variant, problem: Problem, policy: str = DEFAULT_POLICY) -> str:
    """What to type for a winner."""
    chained = " --chained" if policy == CHAINED.key else ""
    return f"roofgap tune {problem.shape} --variant {variant.name} --m {problem.m}{chained}"


def current_provenance(variant: Variant, problem: Problem) -> Provenance:
    """What a winner tuned here and now would carry, apart from its run."""
    return Provenance(
        toolchain=environment.toolchain(),
        source_hash=source_hash(variant),
        space_hash=space_hash(variant, problem),
        date="",
        run="",
        strategy="",
        seed=0,
        trials=0,
    )


def choose_chained(
    variant: Variant,
    problem: Problem,
    gpu: str,
    *,
    limits: Limits | None = None,
    strict: bool | None = None,
) -> Choice:
    """The config for dependent launches: the winner among them, else whatever serves ordinary ones.

    Args and errors as of ``choose``; strict mode is content with a winner among ordinary launches.
    """
    found = choose(variant, problem, gpu, limits=limits, policy=CHAINED.key, strict=False)
    policy = DEFAULT_POLICY if found.source == "default" else CHAINED.key
    return choose(variant, problem, gpu, limits=limits, policy=policy, strict=strict)


def config_for(
    variant: Variant, problem: Problem, device: torch.device, chained: bool = False
) -> KernelConfig | None:
    """What the kernels ask, once per variant, problem, device and way of launching: the tuned config, or None for the
    default.

    Logs an untuned problem, which therefore happens once as well.

    Raises:
        RoofgapError: as ``choose``.
    """
    from roofgap.kernels.ops import limits_of

    gpu = environment.current_gpu(device.index or 0) if device.type == "cuda" else None
    if gpu is None:
        return None
    choice = (choose_chained if chained else choose)(variant, problem, gpu, limits=limits_of(device))
    if choice.source != "default":
        return choice.config
    _log.warning("%s %s is not tuned on %s: using the default config", variant.name, problem.key, gpu)
    return None


def install() -> None:
    """Lets every kernel use tuned configs from now on."""
    from roofgap.kernels.ops import set_config_lookup

    set_config_lookup(config_for)
