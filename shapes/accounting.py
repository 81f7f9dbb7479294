"""Bytes that one decoded token reads, term by term, under a stated convention.

``honest`` counts every byte that a step must read from memory, once, in the format in which it is stored.
``published`` counts as the first write-up (raihan-js/roofline-decoding) did, so that its figures
can be checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, cast, get_args

from roofgap.shapes.architecture import Architecture
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import Manifest, Matrix
from roofgap.shapes.problem import Problem, ZeroMode

WeightKind = Literal["bf16", "int8", "w4", "nf4", "nf4-dq"]
KVDtype = Literal["bf16", "fp16", "fp8", "int8"]

DENSE_BYTES = 2  # bf16 and fp16: dense weights, biases, norms, embedding
KV_BYTES: Mapping[str, int] = MappingProxyType({"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1})
TERMS = ("codes", "scales", "zeros", "biases", "norms", "head", "embedding", "kv")

DEFAULT_GROUP = {"w4": 128, "nf4": 64, "nf4-dq": 64}
# Its author summed the checkpoint's state dict, which lists a tied matrix under both of its names.
_SUMMED_STATE_DICT = frozenset({"orch-fusion"})


@dataclass(frozen=True, slots=True)
class MatrixBytes:
    """Bytes of one stored matrix."""

    codes: int
    scales: int = 0
    zeros: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.codes + self.scales + self.zeros


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a weight [N, K] is stored.

    ``bf16``    2 bytes a weight (fp16 has the same size).
    ``int8``    1 byte a weight, one fp32 scale for each of N outputs.
    ``w4``      4-bit codes, 16-bit scale per group along K; zeros as in `Problem`.
    ``nf4``     4-bit codes, fp32 absmax per block of the flattened weight (bitsandbytes Linear4bit).
    ``nf4-dq``  the same with absmax as uint8 and an fp32 absmax per 256 of those (double quantisation, QLoRA,
                Dettmers et al. 2023). The look-up tables, at most 1 KiB and shared in cache, are not counted.

    Attributes:
        kind: one of the above.
        group_size: ``w4``: weights along K that share a scale, -1 for all; ``nf4``: block. None elsewhere.
        zero_mode: ``w4`` only: ``sym``, ``asym`` (packed at 4 bits) or ``offset`` (16 bits).

    Raises:
        RoofgapError: an unknown name, a group size outside the format's rule, or an option it does not have.
    """

    kind: WeightKind = "bf16"
    group_size: int | None = None
    zero_mode: ZeroMode | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(WeightKind):
            known = ", ".join(get_args(WeightKind))
            raise RoofgapError(f"weights={self.kind!r}", "unknown format", f"use one of {known}")
        if self.group_size is not None and self.kind not in DEFAULT_GROUP:
            raise RoofgapError(
                f"group_size={self.group_size}",
                f"{self.kind} weights have no groups",
                "leave the group size out",
            )
        if self.zero_mode is not None and self.kind != "w4":
            raise RoofgapError(
                f"zero_mode={self.zero_mode!r}",
                f"{self.kind} weights have no zeros",
                "leave the zero mode out",
            )
        if self.kind == "w4":
            Problem(n=1, k=1, group_size=self.group, zero_mode=self._zero_mode)  # checks both
        elif self.kind in DEFAULT_GROUP and not _is_block(self.group):
            raise RoofgapError(
                f"group_size={self.group}", "an nf4 block is a power of two from 32 to 4096", "choose 64"
            )

    @property
    def group(self) -> int:
        """The group size, its default (w4: 128, nf4: 64) filled in. -1 is a whole row, 0 no groups at all."""
        return DEFAULT_GROUP.get(self.kind, 0) if self.group_size is None else self.group_size

    @property
    def _zero_mode(self) -> ZeroMode:
        return self.zero_mode or "asym"

    @property
    def label(self) -> str:
        """For people, e.g. ``w4 g128 asym``."""
        if self.kind == "w4":
            return f"w4 {'row' if self.group == -1 else f'g{self.group}'} {self._zero_mode}"
        return f"{self.kind} b{self.group}" if self.kind in DEFAULT_GROUP else self.kind

    def matrix_bytes(self, n: int, k: int) -> MatrixBytes:
        """Bytes of a weight [n, k], ragged last group and padding of packed words included."""
        values = n * k
        if self.kind == "bf16":
            return MatrixBytes(DENSE_BYTES * values)
        if self.kind == "int8":
            return MatrixBytes(values, 4 * n)
        if self.kind == "w4":
            problem = Problem(n=n, k=k, group_size=self.group, zero_mode=self._zero_mode)
            return MatrixBytes(problem.code_bytes, problem.scale_bytes, problem.zero_bytes)
        blocks = -(-values // self.group)
        scales = 4 * blocks if self.kind == "nf4" else blocks + 4 * -(-blocks // 256)
        return MatrixBytes(-(-values // 2), scales)


def choose_formats(
    weights: str, head: str = "bf16", group_size: int | None = None, zero_mode: str | None = None
) -> tuple[WeightFormat, WeightFormat]:
    """Formats of linears and head; group size and zero mode go to each of the two that has such a thing.

    Raises:
        RoofgapError: an unknown name, or an option that neither format has.
    """
    kinds = {weights, head}
    if group_size is not None and not kinds & set(DEFAULT_GROUP):
        raise RoofgapError(
            f"group_size={group_size}",
            f"neither {weights} weights nor a {head} head have groups",
            "leave it out",
        )
    if zero_mode is not None and "w4" not in kinds:
        raise RoofgapError(
            f"zero_mode={zero_mode!r}",
            f"neither {weights} weights nor a {head} head have zeros",
            "leave it out",
        )

    def chosen(kind: str) -> WeightFormat:
        return WeightFormat(
            cast("WeightKind", kind),
            group_size if kind in DEFAULT_GROUP else None,
            cast("ZeroMode | None", zero_mode) if kind == "w4" else None,
        )

    return chosen(weights), chosen(head)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes that one decoded token reads. Floats, because ``published`` divides totals by four.

    Attributes:
        label: what is counted, for people.
        codes: values of the linears as stored, the head excepted.
        scales: scales of the linears.
        zeros: zeros or offsets of the linears.
        biases: biases of all matrices.
        norms: norm weights.
        head: the output matrix with its own scales and zeros; this is where a tied embedding is read.
        embedding: the row of the token that goes in.
        kv: keys and values of the context.
        counts_kv_as_achieved: whether an achieved GB/s counts the KV read (``honest``) or weights alone.
    """

    label: str
    codes: float
    scales: float = 0
    zeros: float = 0
    biases: float = 0
    norms: float = 0
    head: float = 0
    embedding: float = 0
    kv: float = 0
    counts_kv_as_achieved: bool = True

    @property
    def terms(self) -> dict[str, float]:
        """Every term by name."""
        return {name: getattr(self, name) for name in TERMS}

    @property
    def total(self) -> float:
        """All terms."""
        return sum(self.terms.values())

    @property
    def weights(self) -> float:
        """All terms but the KV read."""
        return self.total - self.kv

    def achieved_gbps(self, tok_s: float) -> float:
        """Read bandwidth that ``tok_s`` tokens a second amount to, GB/s."""
        return tok_s * (self.total if self.counts_kv_as_achieved else self.weights) / 1e9


def honest(
    manifest: Manifest,
    weights: WeightFormat = WeightFormat(),
    head: WeightFormat = WeightFormat(),
    kv_dtype: str = "bf16",
    context: int = 0,
) -> TokenBytes:
    """Every byte a decode step reads, once.

    Linears and head in their formats; biases, norms and one embedding row at 2 bytes; keys and values of
    ``context`` tokens in ``kv_dtype``. A tied embedding is one storage, read whole as the head; the token's
    row is read besides. Activations stay in cache and are not counted, nor is what is appended to the cache.

    Raises:
        RoofgapError: context outside the model's range, unknown KV dtype.
    """
    if kv_dtype not in KV_BYTES:
        raise RoofgapError(f"kv_dtype={kv_dtype!r}", "unknown dtype", f"use one of {', '.join(KV_BYTES)}")
    architecture = manifest.architecture
    check_context(manifest.model, architecture, context)
    linears = [(m.count, weights.matrix_bytes(m.n, m.k)) for m in manifest.matrices if m.role != "head"]
    return TokenBytes(
        label=weights.label if head.kind == "bf16" else f"{weights.label}, head {head.label}",
        codes=sum(count * stored.codes for count, stored in linears),
        scales=sum(count * stored.scales for count, stored in linears),
        zeros=sum(count * stored.zeros for count, stored in linears),
        biases=sum(m.count * bias_bytes(m) for m in manifest.matrices),
        norms=DENSE_BYTES * architecture.norm_parameters,
        head=sum(m.count * head.matrix_bytes(m.n, m.k).total for m in manifest.matrices if m.role == "head"),
        embedding=DENSE_BYTES * architecture.hidden,
        kv=architecture.kv_bytes_per_token(KV_BYTES[kv_dtype]) * context,
    )


def published(manifest: Manifest, context: int = 2048) -> dict[str, TokenBytes]:
    """The first write-up's conventions. Only its two models have published figures; others are extrapolated.

    ``bf16``     all parameters at 2 bytes, plus a bf16 KV read. For ORCH-Fusion the total is that of the
                 state dict, where the tied matrix stands under two names, so it is counted twice.
    ``int4``     ``bf16`` divided by four as a whole: no scales, the head at 4 bits too, and the KV read
                 divided by four although the cache stays bf16.
    ``swapped``  linears W4, head bf16: all parameters at 4 bits, an fp16 scale for every 128 of all
                 parameters, and the bf16 head on top. The tied matrix is so counted twice, once as a 4-bit
                 embedding that no step reads. The KV read is whole.

    Achieved GB/s was tokens a second times weight bytes, KV left out; for the swapped model too it took the
    weights of ``int4``.

    Raises:
        RoofgapError: context outside the model's range.
    """
    architecture = manifest.architecture
    check_context(manifest.model, architecture, context)
    table = architecture.vocab * architecture.hidden
    listed = architecture.parameters + (table if manifest.model in _SUMMED_STATE_DICT else 0)
    bf16 = TokenBytes(
        label="bf16 (published)",
        codes=DENSE_BYTES * listed,
        kv=architecture.kv_bytes_per_token(KV_BYTES["bf16"]) * context,
        counts_kv_as_achieved=False,
    )
    swapped = TokenBytes(
        label="w4 linears, bf16 head (published)",
        codes=architecture.parameters / 2,
        scales=architecture.parameters / 128 * 2,
        head=DENSE_BYTES * table,
        kv=bf16.kv,
        counts_kv_as_achieved=False,
    )
    return {
        "bf16": bf16,
        "int4": replace(bf16, label="int4 (published)", codes=bf16.codes / 4, kv=bf16.kv / 4),
        "swapped": swapped,
    }


def bias_bytes(matrix: Matrix) -> int:
    """Bytes of one matrix's bias, 0 without one."""
    return DENSE_BYTES * matrix.n if matrix.bias else 0


def check_context(model: str, architecture: Architecture, context: int) -> None:
    """Refuses a context that the model cannot have.

    Raises:
        RoofgapError: negative, or past the model's maximum.
    """
    most = architecture.max_context
    if context < 0:
        raise RoofgapError(
            f"context={context}", "must not be negative", "give the tokens already in the cache"
        )
    if most is not None and context > most:
        raise RoofgapError(
            f"context={context}",
            f"{model} was made for at most {most} tokens",
            f"give a context up to {most}",
        )


def _is_block(size: int) -> bool:
    return 32 <= size <= 4096 and size & (size - 1) == 0
