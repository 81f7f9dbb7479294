"""What is compared, as data: every arm is a point in the same few switches. Adding an arm is one line here.

weights    who multiplies: torch (``bf16``), bitsandbytes (``nf4``), an own variant (``w4``) or a peer
loop       ``eager``, ``graph`` (one captured step, replayed), ``inductor`` (compiled, then captured the same way),
           ``generate`` (transformers' own loop, as users run it) or ``stream`` (reads the bytes, computes nothing)
switches   q|k|v and gate|up as one matrix each; the head at 4 bits; fused small operators; SwiGLU and residual add as
           epilogues of the products; programmatic dependent launch (PDL) of the captured step's own kernels
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from roofgap.shapes.accounting import WeightFormat
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.files import unknown_name
from roofgap.shapes.problem import ZeroMode

Weights = Literal["bf16", "nf4", "w4", "tinygemm", "gemlite", "marlin"]
Loop = Literal["eager", "graph", "inductor", "generate", "stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What decides the values and kernels of a model; arms with equal builds share one model in memory.

    Attributes:
        weights: who multiplies.
        variant: the own kernel variant, ``w4`` only.
        fused_linears: q|k|v and gate|up joined along N.
        head_w4: the head at 4 bits too; a tied embedding stays as it is.
        fused_operators: norms, rotary, SwiGLU and decode attention in own kernels.
        epilogues: SwiGLU and residual add in the products' own launches, where the variant can; a switch of
            ``fused_operators``.

    Raises:
        RoofgapError: epilogues without fused operators.
    """

    weights: Weights = "bf16"
    variant: str | None = None
    fused_linears: bool = False
    head_w4: bool = False
    fused_operators: bool = False
    epilogues: bool = False

    def __post_init__(self) -> None:
        if self.epilogues and not self.fused_operators:
            raise RoofgapError("epilogues", "need fused operators around them", "set fused_operators too")

    def formats(self, group_size: int, zero_mode: ZeroMode) -> tuple[WeightFormat, WeightFormat]:
        """How linears and head are stored."""
        dense = WeightFormat()
        if self.weights == "bf16":
            return dense, dense
        if self.weights == "nf4":
            return WeightFormat("nf4"), dense
        # tinygemm and GemLite keep a 16-bit zero beside each scale; Marlin's uint4b8 is symmetric.
        modes: dict[str, ZeroMode] = {"tinygemm": "offset", "gemlite": "offset", "marlin": "sym"}
        packed = WeightFormat("w4", group_size, modes.get(self.weights, zero_mode))
        return packed, packed if self.head_w4 else dense


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One row of the comparison.

    Attributes:
        name: as typed and printed.
        build: what is decoded with.
        loop: how it is decoded.
        opt_in: run only when named: it needs minutes of its own (GemLite tunes 40 s a shape).
        pdl: own kernels are captured as programmatic dependent launches, where the GPU has them. That changes when
            they start and no value, so arms with and without share a build.
    """

    name: str
    build: Build
    loop: Loop
    opt_in: bool = False
    pdl: bool = False

    @property
    def is_slow(self) -> bool:
        """Whether the host sets the pace: such arms get fewer steps and repetitions."""
        return self.loop in ("eager", "generate")


OWN_VARIANTS = ("v2", "v3", "v4")
_LADDER = ("v3", "v4")  # variants for which every step is taken one by one
_EPILOGUES = ("v4",)  # those among them that have epilogues


def _arm(name: str, loop: Loop, build: Build = Build(), *, opt_in: bool = False, pdl: bool = False) -> Arm:
    return Arm(name=name, build=build, loop=loop, opt_in=opt_in, pdl=pdl)


def _own(variant: str) -> list[Arm]:
    """Eager and graph; then what each further step brings, one at a time from the same base."""
    plain = Build(weights="w4", variant=variant)
    joined = replace(plain, fused_linears=True)
    head, operators = replace(joined, head_w4=True), replace(joined, fused_operators=True)
    name = f"w4-{variant}"
    arms = [_arm(f"{name}-eager", "eager", plain), _arm(f"{name}-graph", "graph", plain)]
    if variant not in _LADDER:
        return arms
    both = replace(operators, head_w4=True)
    arms += [
        _arm(f"{name}-fused-graph", "graph", joined),
        _arm(f"{name}-fused-head-graph", "graph", head),
        _arm(f"{name}-fused-ops-graph", "graph", operators),
        _arm(f"{name}-fused-ops-head-graph", "graph", both),
        _arm(f"{name}-fused-ops-head-pdl-graph", "graph", both, pdl=True),
        _arm(f"{name}-fused-head-inductor-graph", "inductor", head, opt_in=True),
    ]
    if variant not in _EPILOGUES:
        return arms
    joint = replace(both, epilogues=True)
    return [
        *arms,
        _arm(f"{name}-fused-epilogues-head-graph", "graph", joint),
        _arm(f"{name}-fused-epilogues-head-pdl-graph", "graph", joint, pdl=True),
    ]


def _joined(weights: Weights) -> Build:
    return Build(weights=weights, fused_linears=True)


_LISTED = (
    _arm("bf16-eager", "eager"),
    _arm("bf16-graph", "graph"),
    _arm("bf16-inductor-graph", "inductor"),
    _arm("bf16-fused-ops-graph", "graph", replace(_joined("bf16"), fused_operators=True)),
    _arm("nf4-eager", "eager", Build(weights="nf4")),
    _arm("nf4-graph", "graph", Build(weights="nf4")),
    *(arm for variant in OWN_VARIANTS for arm in _own(variant)),
    _arm("tinygemm-graph", "graph", _joined("tinygemm")),
    _arm("gemlite-graph", "graph", _joined("gemlite"), opt_in=True),
    _arm("marlin-graph", "graph", _joined("marlin")),
    _arm("hf-generate-bf16", "generate"),
    _arm("hf-generate-nf4", "generate", Build(weights="nf4")),
    _arm("stream-bf16", "stream"),
    _arm("stream-w4", "stream", _joined("w4")),
    _arm("stream-w4-head", "stream", replace(_joined("w4"), head_w4=True)),
)

ARMS: dict[str, Arm] = {arm.name: arm for arm in _LISTED}


def registered_arms() -> dict[str, Arm]:
    """``w4-NAME-eager`` and ``w4-NAME-graph`` of every other registered variant: a new kernel needs no line here."""
    from roofgap.kernels.registry import VARIANTS

    others = (name for name in VARIANTS if name not in OWN_VARIANTS)
    return {arm.name: replace(arm, opt_in=True) for name in others for arm in _own(name)}


def choose_arms(names: str) -> list[Arm]:
    """Arms by name, joined by commas, in the given order; ``all`` is every one that is not opt-in, and a name ending in
    ``*`` takes all that begin so. Arms of variants that are not listed here go by name (``registered_arms``).

    Raises:
        RoofgapError: no such arm, or none at all.
    """
    chosen: dict[str, Arm] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name == "all":
            chosen |= {arm.name: arm for arm in _LISTED if not arm.opt_in}
        elif name.endswith("*"):
            found = {arm.name: arm for arm in _LISTED if arm.name.startswith(name[:-1])}
            if not found:
                raise unknown_name("arm", name, ARMS)
            chosen |= found
        elif name in ARMS:
            chosen[name] = ARMS[name]
        elif name in (registered := registered_arms()):
            chosen[name] = registered[name]
        else:
            raise unknown_name("arm", name, {**ARMS, **registered})
    if not chosen:
        raise RoofgapError(f"arms {names!r}", "names no arm", f"give {', '.join(ARMS)} or all")
    return list(chosen.values())


def builds_of(arms: Sequence[Arm]) -> list[Build]:
    """The distinct builds that must be in memory, stream arms aside."""
    return list(dict.fromkeys(arm.build for arm in arms if arm.loop != "stream"))


def cast_zero_mode(text: str) -> ZeroMode:
    """A zero mode as the command line gives it; `Problem` refuses an unknown one."""
    WeightFormat("w4", 128, cast("ZeroMode", text))
    return cast("ZeroMode", text)
