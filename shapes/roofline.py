"""What the hardware allows: tokens a second, microseconds a matrix, and what is left as the batch grows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from roofgap.shapes.accounting import TokenBytes, WeightFormat, bias_bytes
from roofgap.shapes.device import Bandwidth
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import Manifest, Matrix

FP16_BYTES = 2
CODE_BYTES = 0.5  # one 4-bit code


def ceiling_tok_s(read: TokenBytes, bandwidth: Bandwidth) -> float:
    """Tokens a second if nothing cost time but the bytes: bandwidth / bytes."""
    return bandwidth.gbps * 1e9 / read.total


def floor_us(read_bytes: float, bandwidth: Bandwidth, launch_floor_us: float = 0.0) -> float:
    """Least time of one kernel in microseconds: max(bytes / read bandwidth, launch floor)."""
    return max(read_bytes / (bandwidth.gbps * 1e3), launch_floor_us)


@dataclass(frozen=True, slots=True)
class MatrixFloor:
    """The floor of one kind of matrix at M = 1: weight and bias read once, activations in cache.

    Attributes:
        matrix: the matrix; a token launches ``matrix.count`` kernels for it.
        read_bytes: codes, scales, zeros and bias of one.
        bandwidth_us: read_bytes / read bandwidth.
        floor_us: max(bandwidth_us, launch floor).
    """

    matrix: Matrix
    read_bytes: int
    bandwidth_us: float
    floor_us: float

    @property
    def launch_bound(self) -> bool:
        """Whether the launch floor, not the bytes, sets the time."""
        return self.floor_us > self.bandwidth_us

    @property
    def token_us(self) -> float:
        """Microseconds of a token: all ``count`` of them, one after the other."""
        return self.matrix.count * self.floor_us


@dataclass(frozen=True, slots=True)
class TokenFloor:
    """Floors of all matrices of a token, run one after the other.

    Attributes:
        matrices: one entry per kind of matrix, in the order of use.
        other_us: norms, embedding row and KV at bandwidth; they are charged no launches.
    """

    matrices: tuple[MatrixFloor, ...]
    other_us: float

    @property
    def launches(self) -> int:
        """Matrix kernels of one token."""
        return sum(floor.matrix.count for floor in self.matrices)

    @property
    def matrices_us(self) -> float:
        """Sum of the matrices' floors."""
        return math.fsum(floor.token_us for floor in self.matrices)

    @property
    def launch_bound_share(self) -> float:
        """Share of ``matrices_us`` spent in matrices that are launch-bound, 0..1."""
        bound = math.fsum(floor.token_us for floor in self.matrices if floor.launch_bound)
        return bound / self.matrices_us

    @property
    def tok_s(self) -> float:
        """Tokens a second at the floors."""
        return 1e6 / (self.matrices_us + self.other_us)


def token_floor(
    manifest: Manifest,
    weights: WeightFormat,
    head: WeightFormat,
    *,
    read: TokenBytes,
    bandwidth: Bandwidth,
    launch_floor_us: float = 0.0,
) -> TokenFloor:
    """Floors per matrix; ``read`` (honest accounting of the same formats) gives what is not a matrix.

    With a launch floor of 0 the sum is the byte roofline of ``read``. Pass ``manifest.fused()`` for q|k|v and
    gate|up in one kernel each.

    Raises:
        RoofgapError: the launch floor is negative or not finite.
    """
    if not 0 <= launch_floor_us < math.inf:
        raise RoofgapError(
            f"launch_floor_us={launch_floor_us}",
            "must be a finite number of at least 0",
            "give microseconds, e.g. 0.9",
        )
    floors = []
    for matrix in manifest.matrices:
        stored = (head if matrix.role == "head" else weights).matrix_bytes(matrix.n, matrix.k)
        size = stored.total + bias_bytes(matrix)
        floors.append(
            MatrixFloor(matrix, size, floor_us(size, bandwidth), floor_us(size, bandwidth, launch_floor_us))
        )
    other = read.norms + read.embedding + read.kv
    return TokenFloor(tuple(floors), floor_us(other, bandwidth))


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """Ideal speedup over fp16 at one batch; None where the int8 throughput is unknown.

    Attributes:
        m: tokens.
        w4a16: 4-bit weights, fp16 arithmetic.
        w8a8: 8-bit weights and activations, int8 arithmetic.
        expand_first: 4-bit weights expanded to fp16 in memory by one kernel, multiplied by the next.
        w4a16_bound: ``bandwidth`` or ``compute``.
        fp16_bound: the same for the fp16 baseline.
    """

    m: int
    w4a16: float
    w8a8: float | None
    expand_first: float
    w4a16_bound: str
    fp16_bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchModel:
    """The roofline of one layer as M grows, per weight: ``t = max(bytes / bandwidth, 2 M / throughput)``.

    Bytes are the weight's, scales and zeros included. Without ``shape`` the layer is taken as so large that
    activations cost nothing per weight: the form in which 16 / (4 + 16 / 128) = 3.88 is derived in the Marlin
    paper (Frantar et al. 2024). At M = 128 on an A10 the fp16 product is still bound by 2 bytes a weight
    (3.33 ps) and the 4-bit one by 256 operations (2.05 ps), whence 1.6. With ``shape`` inputs and outputs are
    counted too: M (2 K + 2 N) bytes for fp16 and W4A16, M (K + 2 N) for W8A8 (outputs are fp16).

    Attributes:
        bandwidth: memory bandwidth.
        fp16_tflops: dense fp16 tensor throughput.
        int8_tops: dense int8 tensor throughput, None if unknown.
        weight: the 4-bit format.
        shape: (N, K) of the layer, None for the limit of a large one.

    Raises:
        RoofgapError: a throughput not positive and finite, a weight that is not ``w4``, an empty shape.
    """

    bandwidth: Bandwidth
    fp16_tflops: float
    int8_tops: float | None = None
    weight: WeightFormat
    shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("fp16_tflops", "int8_tops"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise RoofgapError(
                    f"{name}={value}", "must be a finite number above 0", "give 1e12 operations/s"
                )
        if self.weight.kind != "w4":
            raise RoofgapError(f"weights={self.weight.kind!r}", "the batch curve is for w4", "use w4")

    @property
    def w4_bytes(self) -> float:
        """Bytes of one weight with its share of scale and zero."""
        if self.shape is None and self.weight.group == -1:
            return CODE_BYTES
        n, k = self.shape or (8, self.weight.group)  # the smallest piece without padding stands for all
        return self.weight.matrix_bytes(n, k).total / (n * k)

    @property
    def expand_first_bytes(self) -> float:
        """Bytes of a weight that is expanded first, scales aside: code read, fp16 written, fp16 read: 4.5."""
        return CODE_BYTES + 2 * FP16_BYTES

    @property
    def ops_per_byte(self) -> float:
        """The machine balance: fp16 operations that take as long as reading one byte."""
        return self.fp16_tflops * 1e3 / self.bandwidth.gbps

    def compute_bound_from(self, weight_bytes: float) -> float | None:
        """M from which an fp16 product of ``weight_bytes`` a weight is bound by compute; None if never."""
        per_token = 2 / self.ops_per_byte - self._activation_bytes(1, FP16_BYTES)
        return weight_bytes / per_token if per_token > 0 else None

    @property
    def full_speedup_until(self) -> float | None:
        """M at which W4A16 turns compute-bound and its speedup begins to fall."""
        return self.compute_bound_from(self.w4_bytes)

    @property
    def break_even(self) -> float | None:
        """M at which fp16 turns compute-bound too, so that 4-bit weights gain nothing any more."""
        return self.compute_bound_from(FP16_BYTES)

    def point(self, m: int) -> BatchPoint:
        """The speedups at ``m`` tokens.

        Raises:
            RoofgapError: m below 1.
        """
        if m < 1:
            raise RoofgapError(f"m={m}", "must be at least 1", "give the tokens of a batch")
        compute = self._compute_ps(m, self.fp16_tflops)
        fp16_memory = self._memory_ps(FP16_BYTES + self._activation_bytes(m, FP16_BYTES))
        w4_memory = self._memory_ps(self.w4_bytes + self._activation_bytes(m, FP16_BYTES))
        fp16 = max(fp16_memory, compute)
        expand = self._memory_ps(self.w4_bytes + FP16_BYTES)
        w8a8 = None
        if self.int8_tops is not None:
            w8_memory = self._memory_ps(1 + self._activation_bytes(m, 1))
            w8a8 = fp16 / max(w8_memory, self._compute_ps(m, self.int8_tops))
        return BatchPoint(
            m=m,
            w4a16=fp16 / max(w4_memory, compute),
            w8a8=w8a8,
            expand_first=fp16 / (expand + fp16),
            w4a16_bound="compute" if compute > w4_memory else "bandwidth",
            fp16_bound="compute" if compute > fp16_memory else "bandwidth",
        )

    def curve(self, ms: Iterable[int]) -> list[BatchPoint]:
        """A point for each batch."""
        return [self.point(m) for m in ms]

    def _activation_bytes(self, m: int, x_bytes: int) -> float:
        """Input and fp16 output of m tokens, per weight."""
        if self.shape is None:
            return 0.0
        n, k = self.shape
        return m * (x_bytes / n + FP16_BYTES / k)

    def _memory_ps(self, weight_bytes: float) -> float:
        return weight_bytes * 1e3 / self.bandwidth.gbps

    @staticmethod
    def _compute_ps(m: int, tera: float) -> float:
        return 2 * m / tera
