"""v4: a W4A16 GEMV near the roof for up to eight tokens, whose words go from memory to the tensor cores untouched.

    y[m, n] = sum_g s[n, g] * (sum_{k in g} x[m, k] * q[n, k] - z[n, g] * sum_{k in g} x[m, k]) + bias[n]

Layout: ``interleaved``: tiles of 16 rows by 128 k, 1 KiB each, in the order in which lanes take them.
Bytes per weight: 0.5 of codes + 2/g of scales (+ 0.5/g of zeros, or 2/g of offsets), each read once for all tokens;
with split_k > 1 also fp32 sums, written and read once per output, token and split.

On a GPU that reads 4.8 TB/s with 132 SMs a kernel can afford 3.6 thread-instructions per weight, integer ones half as
many. Unpacking with shifts and conversions costs 7, packed fp16 arithmetic about 2. Two kernels need less:

- ``decode=limbs`` (``_v4_limb_kernel.py``, ``_limbs.py``): one token, K up to about 3,700, longer in clusters, groups
  of a multiple of 128. A word of eight codes is an operand of 8-bit tensor cores as it is; activations become integers
  once.
- ``decode=mma`` (``_v4_kernel.py``, ``_fragments.py``): up to eight tokens, any K. A mask and an exact
  multiplication make two codes two fp16 numbers, and one ``mma.m16n8k16`` per 256 weights adds their products in
  fp32.

Warps lie along K, each copies blocks of 128 k ahead into shared memory of its own (``_staging.py``), and they add up in
shared memory, once. A non-finite activation makes every output of its token NaN. ``_exact.py`` is the portable kernel:
for AMD, for the interpreter, for group sizes that are no multiple of 32, for activations whose rows are not 16-byte
aligned and for fp32 scales; on NVIDIA for comparison with ``decode=portable``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from roofgap.kernels.config import KernelConfig, Value
from roofgap.kernels.formats.interleaved import BLOCK_K, TILE_ROWS, Interleaved
from roofgap.kernels.ints import cdiv, next_power_of_2
from roofgap.kernels.reference import interpreted
from roofgap.kernels.step import Launch, Step
from roofgap.kernels.variant import Limits, Operands, Variant
from roofgap.kernels.variants._decode import MAGIC
from roofgap.kernels.variants._exact import v4_portable_kernel
from roofgap.kernels.variants._kpacked import device_group
from roofgap.kernels.variants._reduce import reduce_kernel, split_steps, workspace
from roofgap.kernels.variants._v4_config import STATIC_SHARED, V4Config, copyable, pairs_aligned
from roofgap.kernels.variants._v4_copies import parts_of, places
from roofgap.kernels.variants._v4_kernel import v4_kernel
from roofgap.kernels.variants._v4_limb_kernel import v4_limb_kernel
from roofgap.kernels.variants._v4_limb_plan import (
    CLUSTERS,
    default_limbs,
    limb_bytes,
    limb_launch,
    refuse_limbs,
)
from roofgap.shapes.problem import Problem

FIELDS = {
    "limbs": ("num_warps", "num_stages", "tiles", "cluster"),
    "mma": ("num_warps", "num_stages", "tiles", "warps_n", "split_k"),
    "portable": ("num_warps", "unroll", "warps_n", "split_k"),
}
"""What a config of each kernel can differ in; everything else stays at its default."""


class V4(Variant):
    """Fragment-order GEMV."""

    name = "v4"
    summary = "up to 8 tokens: codes go from memory to mma fragments untouched"
    layout = Interleaved
    config_type = V4Config
    factors_zero = True
    epilogues = ("residual", "swiglu")
    max_m = 8

    def default_config(self, problem: Problem, limits: Limits = Limits()) -> V4Config:
        """Limbs where they can serve. Else four warps beside one another along K, eight where few rows are long; all of
        a short K is under way at once.

        One tile per warp, two where the rows are many and long: measured on an H200.
        """
        if limbs := default_limbs(problem, limits):
            return limbs
        tiles = cdiv(problem.n, TILE_ROWS)
        blocks = cdiv(problem.k, BLOCK_K)
        if limits.warp_size != 32 or not _separable(problem):
            return V4Config(decode="portable", warps_n=1, unroll=1, num_warps=4)
        warps = min(8 if blocks >= 32 and tiles < 2 * limits.sm_count else 4, next_power_of_2(blocks))
        wide = problem.k >= 4096 and tiles >= 4 * limits.sm_count
        most = 3 if wide else 4 if warps > 4 else 6 if blocks <= 24 else 5
        stages = max(1, min(most, blocks // warps))
        config = V4Config(num_warps=warps, num_stages=stages, tiles=2 if wide else 1)
        while _shared_bytes(problem, config) > STATIC_SHARED and config.num_stages > 1:
            config = replace(config, num_stages=config.num_stages - 1)
        return config

    def space(self, problem: Problem) -> dict[str, tuple[Value, ...]]:
        """Few wide warps to many narrow ones. Limbs win where K is short, so mma is tried elsewhere."""
        limbs = problem.m == 1 and parts_of.fn(device_group(problem)) == 1
        mma = not limbs or problem.k > 2048
        return {
            "num_warps": (1, 2, 4, 8, 16),
            "num_stages": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14) if limbs else (1, 2, 3, 4, 5, 6),
            "ahead": (0,),
            "tiles": (1, 2, 3, 4) if limbs else (1, 2),
            "unroll": (1, 2, 4),
            "warps_n": (1, 2) if mma else (1,),
            "split_k": (1, 2) if mma else (1,),
            "cluster": CLUSTERS if limbs else (1,),
            "decode": (*(("limbs",) if limbs else ()), *(("mma",) if mma else ()), "portable"),
        }

    def configs(self, problem: Problem, limits: Limits = Limits()) -> Iterator[KernelConfig]:
        """Of the valid configs those worth trying: portable ones only where nothing else can serve, and no pipeline of
        mma that leaves an SM one program.
        """
        portable = limits.warp_size != 32 or not _separable(problem)
        space = self.space(problem)
        for decode in space["decode"]:
            if (decode == "portable") is not portable:
                continue
            names = FIELDS[str(decode)]
            for values in product(*(space[name] for name in names)):
                config = V4Config(decode=str(decode), **dict(zip(names, values, strict=True)))  # type: ignore[arg-type]
                deep = decode == "mma" and config.num_stages > 6
                if not deep and self.is_valid(problem, config, limits) is None:
                    yield config

    def is_valid(self, problem: Problem, config: KernelConfig, limits: Limits = Limits()) -> str | None:
        """Refuses what would leave warps idle, spill, or repeat another config under another name."""
        assert isinstance(config, V4Config)
        c = config
        for name in ("num_warps", "tiles", "warps_n"):
            value = getattr(c, name)
            whole = name == "tiles" and c.decode == "limbs"
            if value < 1 or (value & (value - 1) and not whole):
                return f"{name}={value} must be {'at least 1' if whole else 'a power of two'}"
        if c.unroll < 1:
            return f"unroll={c.unroll} must be at least 1"
        if c.num_warps > limits.max_warps:
            return f"num_warps={c.num_warps} is above the {limits.max_warps} of this GPU"
        if c.num_stages < 1:
            return f"num_stages={c.num_stages} must be at least 1"
        if c.cluster not in CLUSTERS:
            return f"cluster={c.cluster} must be 1, 2, 4 or 8"
        if c.cluster > 1 and c.decode != "limbs":
            return f"cluster={c.cluster} is for decode=limbs alone"
        if c.decode not in ("limbs", "mma", "portable"):
            return f"decode={c.decode!r} must be limbs, mma or portable"
        if c.warps_n > c.num_warps and c.decode == "mma":
            return f"warps_n={c.warps_n} is more than the {c.num_warps} warps"
        tiles = cdiv(problem.n, TILE_ROWS)
        if c.tiles * c.warps_n > next_power_of_2(tiles):
            return f"{c.tiles * c.warps_n} tiles of 16 rows are more than N={problem.n} can fill"
        if c.decode == "limbs":
            return refuse_limbs(problem, c, limits)
        refusal = (
            self._refuse_portable(c, limits)
            if c.decode == "portable"
            else self._refuse_mma(problem, c, limits)
        )
        return refusal or self._refuse_k(problem, c)

    def _refuse_portable(self, config: V4Config, limits: Limits) -> str | None:
        if config.tiles > 1 or config.num_stages > 1:
            return "decode=portable counts its rows by warps_n alone and does not pipeline"
        if config.unroll != next_power_of_2(config.unroll):
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
        if config.unroll > 1:
            return (
                f"unroll={config.unroll} is for decode=portable alone; num_stages says how much is under way"
            )
        if config.tiles > 2 and config.num_warps > 4:
            return f"{config.tiles} tiles per warp would spill with {config.num_warps} warps"
        if config.tiles > 2 and problem.zero_mode != "sym" and parts_of.fn(device_group(problem)) > 1:
            return f"{config.tiles} tiles per warp would spill with zeros of groups of {problem.group}"
        if config.tiles > 2 and problem.zero_mode == "offset" and problem.m > 1:
            return f"{config.tiles} tiles per warp would spill with offsets of {problem.m} tokens"
        shared = _shared_bytes(problem, config)
        if shared > STATIC_SHARED:
            return f"{config.num_stages} stages of {config.num_warps} warps take {shared} of {STATIC_SHARED} bytes"
        return None

    def _refuse_k(self, problem: Problem, config: V4Config) -> str | None:
        """K must fill the steps of every split."""
        blocks, per_step = cdiv(problem.k, BLOCK_K), _step_k(config) // BLOCK_K
        if per_step > next_power_of_2(blocks):
            return f"steps of {per_step} blocks of 128 are more than K={problem.k} can fill"
        steps = cdiv(blocks, per_step)
        if config.split_k < 1 or cdiv(steps, max(1, config.split_k)) * (config.split_k - 1) >= steps:
            return f"split_k={config.split_k} leaves a split of K={problem.k} without a step of {per_step} blocks"
        if config.num_stages > cdiv(steps, config.split_k):
            return f"num_stages={config.num_stages} are more than the steps of K={problem.k}"
        if config.ahead and (config.ahead % 4 or config.decode == "portable"):
            return f"ahead={config.ahead} must be a multiple of 4, and is for decode=mma alone"
        if config.ahead and config.num_stages + config.ahead > cdiv(steps, config.split_k) + 3:
            return f"ahead={config.ahead} beyond {config.num_stages} stages is past the end of K={problem.k}"
        return None

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        """One launch, or with split_k > 1: main, reduce. Whichever comes last does the epilogue.

        The interpreter has no inline assembly and runs the portable kernel whatever ``decode`` says.
        """
        assert isinstance(config, V4Config)
        whole = config.split_k == 1
        sums = (
            operands.y[None] if whole else workspace(problem, "partials", config.split_k, operands.x.device)
        )
        swiglu = operands.swiglu and whole
        portable = config.decode == "portable" or interpreted() or not copyable(operands)
        if config.decode == "limbs":
            if problem.m == 1 and not portable and pairs_aligned(operands):
                return [limb_launch(problem, config, operands)]
            portable, config = True, V4Config(decode="portable", num_warps=4)
        if swiglu and not portable:
            config = _paired_tiles(problem, config)
        rows = TILE_ROWS * config.tiles * config.warps_n
        step_k = _step_k(config)
        k_slice = cdiv(cdiv(problem.k, step_k), config.split_k) * step_k
        outputs = sums.shape[2]
        rows_of_y = rows // 2 if swiglu and not portable else rows
        grid: tuple[int, ...] = (cdiv(outputs, rows_of_y), config.split_k)
        args: dict[str, Any] = {
            "x_ptr": operands.x,
            "codes_ptr": operands.codes,
            "scales_ptr": operands.scales,
            "zeros_ptr": operands.zeros,
            "bias_ptr": operands.bias if whole else None,
            "residual_ptr": operands.residual if whole else None,
            "out_ptr": sums,
            "n": problem.n,
            "k": problem.k,
            "groups": problem.groups,
            "stride_xm": operands.x.stride(0),
            "stride_split": sums.stride(0),
            "stride_rm": operands.residual_stride,
            "stride_om": sums.stride(1),
            "ZERO_MODE": problem.zero_mode,
            "QUANT_GROUP": device_group(problem),
            "SWIGLU": swiglu,
        }
        if portable:
            grid = (*grid, problem.m)
            args |= {
                "k_slice": k_slice,
                "stride_cn": operands.codes.stride(0),
                "magic": MAGIC,
                "BLOCK_N": rows,
                "BLOCKS": config.unroll,
            }
        else:
            args |= {
                "m": problem.m,
                "slice_blocks": k_slice // BLOCK_K,
                "tile_words": TILE_ROWS * operands.codes.stride(0),
                "DTYPE": problem.x_dtype,
                "EVEN_N": problem.n % TILE_ROWS == 0,
                "EVEN_K": problem.k % BLOCK_K == 0,
                "WHOLE": grid[0] * rows_of_y - outputs < TILE_ROWS,
                "TAIL": (problem.k - (config.split_k - 1) * k_slice) // step_k < config.num_stages,
                "EARLY": problem.m == 1 and pairs_aligned(operands),
                "TOKENS": 1 if problem.m == 1 else 8,
                "X_ROWS": next_power_of_2(problem.m),
                "SPLIT": not whole,
                "DEEP": k_slice > config.num_stages * step_k,
                "TILES": config.tiles,
                "WARPS_N": config.warps_n,
                "WARPS_K": config.num_warps // config.warps_n,
                "STAGES": config.num_stages,
                "AHEAD": config.ahead if k_slice > config.num_stages * step_k else 0,
            }
        main = Launch(
            kernel=v4_portable_kernel if portable else v4_kernel,
            grid=grid,
            args=args,
            num_warps=config.num_warps,
            num_stages=1,
        )
        return [main] if whole else split_steps(problem, "partials", sums, main, operands)

    def kernels(self) -> tuple[Any, ...]:
        """The GEMVs and the reduction."""
        return (v4_limb_kernel, v4_kernel, v4_portable_kernel, reduce_kernel)

    def split_count(self, problem: Problem, config: KernelConfig) -> int:
        """Slices of K."""
        assert isinstance(config, V4Config)
        return config.split_k


def _step_k(config: V4Config) -> int:
    """Weights of one output that a program takes per step."""
    return BLOCK_K * (config.num_warps // config.warps_n if config.decode == "mma" else config.unroll)


def _shared_bytes(problem: Problem, config: V4Config) -> int:
    """Shared memory of a program: stages, bias and residual, sums."""
    if config.decode == "limbs":
        return limb_bytes(problem, config)
    tokens = 1 if problem.m == 1 else 8
    stage = places.fn(config.tiles, next_power_of_2(problem.m), device_group(problem), problem.zero_mode)[3]
    extras = 2 * 32 * 4 * config.tiles if tokens == 1 else 0
    return config.num_warps * int(config.num_stages * stage + extras + 16 * tokens * 4 * config.tiles)


def _paired_tiles(problem: Problem, config: V4Config) -> V4Config:
    """The same config for rows gate|up, where a warp needs two tiles at least: one of the gate, the up's beside it.

    A warp of one tile gets a second one and half the warps, so that a program asks for about as much at a time.
    """
    if config.tiles > 1:
        return config
    fewer = 2 if config.warps_n > 1 else 1
    config = replace(config, tiles=2, warps_n=config.warps_n // fewer, num_warps=config.num_warps // fewer)
    while _shared_bytes(problem, config) > STATIC_SHARED:
        if config.num_stages > 1:
            config = replace(config, num_stages=config.num_stages - 1)
        else:
            config = replace(config, num_warps=config.num_warps // 2)
    return config


def _separable(problem: Problem) -> bool:
    """Whether groups end between the steps of 32 k that the lanes of a row share."""
    return problem.groups == 1 or problem.group % 32 == 0
