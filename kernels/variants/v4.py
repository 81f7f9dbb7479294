"""v4: a W4A16 GEMV near the roof for up to eight tokens, whose words go from memory to the tensor cores untouched.

    y[m, n] = sum_g s[n, g] * (sum_{k in g} x[m, k] * q[n, k] - z[n, g] * sum_{k in g} x[m, k]) + bias[n]

Layout: ``interleaved``: tiles of 16 rows by 128 k, 1 KiB each, in the order in which lanes take them.
Bytes per weight: 0.5 of codes + 2/g of scales (+ 0.5/g of zeros, or 2/g of offsets), each read once for all tokens;
with split_k > 1 also fp32 sums, written and read once per output, token and split.

On a GPU that reads 4.8 TB/s with 132 SMs a kernel can afford 3.6 thread-instructions per weight. Unpacking with shifts
and conversions costs 7, packed fp16 arithmetic about 2. Here a weight costs 1.4 to 1.8: a mask makes two codes two
(subnormal) fp16 numbers, and one ``mma.m16n8k16`` per 256 weights multiplies and adds them in fp32 (``_fragments.py``).

A warp owns TILES x 16 rows and, of every step, UNROLL blocks of 128 k; warps side by side along K add up in shared
memory. With an infinite or NaN activation the formula above yields NaN; programs that see one compute their outputs
anew, weight by weight (``_exact.py``). That code is also the portable kernel: for AMD, for the interpreter, for group
sizes that are no multiple of 32, and on NVIDIA for comparison with ``decode=portable``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from roofgap.kernels.config import KernelConfig, Value
from roofgap.kernels.formats.interleaved import BLOCK_K, TILE_ROWS, Interleaved
from roofgap.kernels.reference import interpreted
from roofgap.kernels.step import Launch, Step
from roofgap.kernels.variant import Limits, Operands, Variant
from roofgap.kernels.variants._decode import MAGIC
from roofgap.kernels.variants._exact import v4_portable_kernel
from roofgap.kernels.variants._kpacked import device_group
from roofgap.kernels.variants._reduce import reduce_kernel, split_steps, workspace
from roofgap.kernels.variants._v4_kernel import v4_kernel
from roofgap.shapes.problem import Problem


@dataclass(frozen=True, kw_only=True)
class V4Config(KernelConfig):
    """A warp takes ``tiles`` x 16 rows and ``unroll`` blocks of 128 k a step; ``warps_n`` of the warps lie along N.

    ``num_stages`` above 1 pipelines the loads of a step through shared memory. ``split_k`` programs share the rows and
    leave partial sums that a second launch adds in order. ``decode`` is ``mma`` or ``portable``.
    """

    num_stages: int = 1
    tiles: int = 1
    unroll: int = 1
    warps_n: int = 1
    split_k: int = 1
    decode: str = "mma"


class V4(Variant):
    """Fragment-order GEMV."""

    name = "v4"
    summary = "up to 8 tokens: codes go from memory to mma fragments untouched"
    layout = Interleaved
    config_type = V4Config
    factors_zero = True
    max_m = 8

    def default_config(self, problem: Problem, limits: Limits = Limits()) -> V4Config:
        """Warps of two tiles where N allows it, side by side along K until every SM has about 24 of them."""
        tiles = triton.cdiv(problem.n, TILE_ROWS)
        blocks = triton.cdiv(problem.k, BLOCK_K)
        if limits.warp_size != 32 or not _separable(problem):
            return V4Config(decode="portable", warps_n=1, unroll=1, num_warps=4)
        tiles_per_warp = 2 if tiles >= 16 * limits.sm_count else 1
        warps_k = 1
        for more in (2, 4, 8):
            waste = triton.cdiv(blocks, more) * more / blocks
            if waste <= 1.1 and tiles // tiles_per_warp * warps_k < 24 * limits.sm_count:
                warps_k = more
        warps_n = max(1, min(4 // warps_k, _power(triton.cdiv(tiles, tiles_per_warp))))
        return V4Config(num_warps=warps_n * warps_k, tiles=tiles_per_warp, warps_n=warps_n)

    def space(self, problem: Problem) -> dict[str, tuple[Value, ...]]:
        """Few wide warps to many narrow ones; ``is_valid`` leaves some hundreds."""
        return {
            "num_warps": (1, 2, 4, 8, 16),
            "num_stages": (1, 2, 4),
            "tiles": (1, 2, 4),
            "unroll": (1, 2, 3, 4),
            "warps_n": (1, 2, 4, 8),
            "split_k": (1, 2, 3, 4, 6),
            "decode": ("mma", "portable"),
        }

    def is_valid(self, problem: Problem, config: KernelConfig, limits: Limits = Limits()) -> str | None:
        """Refuses what would leave warps idle, spill, or repeat another config under another name."""
        assert isinstance(config, V4Config)
        c = config
        for name in ("num_warps", "tiles", "warps_n"):
            value = getattr(c, name)
            if value < 1 or value & (value - 1):
                return f"{name}={value} must be a power of two"
        if c.unroll < 1:
            return f"unroll={c.unroll} must be at least 1"
        if c.num_warps > limits.max_warps:
            return f"num_warps={c.num_warps} is above the {limits.max_warps} of this GPU"
        if c.num_stages < 1:
            return f"num_stages={c.num_stages} must be at least 1"
        if c.decode not in ("mma", "portable"):
            return f"decode={c.decode!r} must be mma or portable"
        if c.warps_n > c.num_warps and c.decode == "mma":
            return f"warps_n={c.warps_n} is more than the {c.num_warps} warps"
        tiles = triton.cdiv(problem.n, TILE_ROWS)
        if c.tiles * c.warps_n > _power(tiles):
            return f"{c.tiles * c.warps_n} tiles of 16 rows are more than N={problem.n} can fill"
        refusal = (
            self._refuse_portable(c, limits)
            if c.decode == "portable"
            else self._refuse_mma(problem, c, limits)
        )
        return refusal or self._refuse_k(problem, c)

    def _refuse_portable(self, config: V4Config, limits: Limits) -> str | None:
        if config.tiles > 1 or config.num_stages > 1:
            return "decode=portable counts its rows by warps_n alone and does not pipeline"
        if config.unroll != _power(config.unroll):
            return f"unroll={config.unroll} must be a power of two for decode=portable"
        words = TILE_ROWS * config.warps_n * TILE_ROWS * config.unroll
        threads = config.num_warps * limits.warp_size
        if words < threads:
            return f"{words} words per step leave some of {threads} threads without work"
        if words > 16 * threads:
            return f"{words // threads} words per thread would spill"
        return None

    def _refuse_mma(self, problem: Problem, config: V4Config, limits: Limits) -> str | None:
        if limits.warp_size != 32:
            return "decode=mma needs warps of 32 lanes; use decode=portable"
        if not _separable(problem):
            return f"decode=mma needs groups of a multiple of 32, not {problem.group}; use decode=portable"
        units = config.tiles * config.unroll
        # A unit is 2,048 weights: 8 registers of codes, 4 sums and its scales; activations are 16 per block.
        most = 6 if config.num_warps <= 4 else 4 if config.num_warps <= 8 else 1
        if units > most:
            return f"{units} tiles per warp and step would spill with {config.num_warps} warps"
        stage_bytes = config.num_warps * config.unroll * (1024 * config.tiles + 2048)
        if config.num_stages > 1 and config.num_stages * stage_bytes > limits.shared_bytes:
            return f"{config.num_stages} stages of {stage_bytes} bytes exceed {limits.shared_bytes} of shared memory"
        return None

    def _refuse_k(self, problem: Problem, config: V4Config) -> str | None:
        """K must fill the steps of every split."""
        blocks, per_step = triton.cdiv(problem.k, BLOCK_K), _step_k(config) // BLOCK_K
        if per_step > _power(blocks):
            return f"steps of {per_step} blocks of 128 are more than K={problem.k} can fill"
        steps = triton.cdiv(blocks, per_step)
        if config.split_k < 1 or triton.cdiv(steps, max(1, config.split_k)) * (config.split_k - 1) >= steps:
            return f"split_k={config.split_k} leaves a split of K={problem.k} without a step of {per_step} blocks"
        if config.num_stages > 1 and triton.cdiv(steps, config.split_k) < config.num_stages:
            return f"num_stages={config.num_stages} are more than the steps of K={problem.k}"
        return None

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        """One launch, or with split_k > 1: main, reduce.

        The interpreter has no inline assembly and runs the portable kernel whatever ``decode`` says.
        """
        assert isinstance(config, V4Config)
        sums = operands.y[None]
        if config.split_k > 1:
            sums = workspace(problem, "partials", config.split_k, operands.x.device)
        rows = TILE_ROWS * config.tiles * config.warps_n
        portable = config.decode == "portable" or interpreted()
        step_k = _step_k(config)
        k_slice = triton.cdiv(triton.cdiv(problem.k, step_k), config.split_k) * step_k
        args: dict[str, Any] = {
            "x_ptr": operands.x,
            "codes_ptr": operands.codes,
            "scales_ptr": operands.scales,
            "zeros_ptr": operands.zeros,
            "bias_ptr": operands.bias if config.split_k == 1 else None,
            "out_ptr": sums,
            "n": problem.n,
            "k": problem.k,
            "k_slice": k_slice,
            "groups": problem.groups,
            "stride_xm": operands.x.stride(0),
            "stride_cn": operands.codes.stride(0),
            "stride_split": sums.stride(0),
            "stride_om": sums.stride(1),
            "magic": MAGIC,
            "ZERO_MODE": problem.zero_mode,
            "QUANT_GROUP": device_group(problem),
        }
        grid: tuple[int, ...] = (triton.cdiv(problem.n, rows), config.split_k)
        if portable:
            grid = (*grid, problem.m)
            args |= {"BLOCK_N": rows, "BLOCKS": config.unroll}
        else:
            args |= {
                "m": problem.m,
                "DTYPE": problem.x_dtype,
                "EVEN_N": problem.n % TILE_ROWS == 0,
                "MASKED": problem.k % step_k != 0,
                "PAIRED": _paired(operands.x),
                "TILES": config.tiles,
                "UNROLL": config.unroll,
                "WARPS_N": config.warps_n,
                "WARPS_K": config.num_warps // config.warps_n,
                "NUM_STAGES": config.num_stages,
            }
        main = Launch(
            kernel=v4_portable_kernel if portable else v4_kernel,
            grid=grid,
            args=args,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
        return [main] if config.split_k == 1 else split_steps(problem, "partials", sums, main, operands)

    def kernels(self) -> tuple[Any, ...]:
        """Both GEMVs and the reduction."""
        return (v4_kernel, v4_portable_kernel, reduce_kernel)

    def split_count(self, problem: Problem, config: KernelConfig) -> int:
        """Slices of K."""
        assert isinstance(config, V4Config)
        return config.split_k


def _step_k(config: V4Config) -> int:
    """Weights of one output that a program takes per step."""
    warps_k = config.num_warps // config.warps_n if config.decode == "mma" else 1
    return BLOCK_K * config.unroll * warps_k


def _power(value: int) -> int:
    """The least power of two that is not below ``value``."""
    return int(triton.next_power_of_2(value))


def _separable(problem: Problem) -> bool:
    """Whether groups end between the steps of 32 k that the lanes of a row share."""
    return problem.groups == 1 or problem.group % 32 == 0


def _paired(x: torch.Tensor) -> bool:
    """Whether two neighbours of x are always one aligned 32-bit word."""
    m, k = x.shape
    return k % 2 == 0 and (m == 1 or x.stride(0) % 2 == 0) and x.storage_offset() % 2 == 0
