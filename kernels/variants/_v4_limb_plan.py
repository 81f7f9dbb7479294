"""Where the limb kernel of v4 can be used, with which configs, and its launch."""

from __future__ import annotations

from dataclasses import replace

from roofgap.kernels.formats.interleaved import BLOCK_K, TILE_ROWS
from roofgap.kernels.ints import cdiv, next_power_of_2
from roofgap.kernels.step import Launch
from roofgap.kernels.variant import Limits, Operands
from roofgap.kernels.variants._kpacked import device_group
from roofgap.kernels.variants._v4_config import STATIC_SHARED, V4Config
from roofgap.kernels.variants._v4_copies import parts_of
from roofgap.kernels.variants._v4_limb_kernel import limb_places, v4_limb_kernel
from roofgap.shapes.problem import Problem

MOST_BLOCKS = 8
"""Blocks of 128 k per warp: their limbs stay in registers."""
CLUSTERS = (1, 2, 4, 8)
"""Programs that may share K: Triton wants powers of two, and 8 is what every GPU with clusters has."""
MANY_TILES = 12
"""Tiles per SM from which a program takes two: measured on an H200, fewer finish sooner one by one."""
FEW_TILES = 4
"""Tiles per SM up to which clusters are faster than ``decode=mma`` where K is too long for one program."""
ALONE_BLOCKS = 4 * MOST_BLOCKS
"""Blocks of K that four warps can hold without a cluster."""
LONG_BLOCKS = 24
"""Blocks of K from which very few tiles want clusters."""


def refuse_limbs(problem: Problem, config: V4Config, limits: Limits) -> str | None:
    """Why the limb kernel cannot serve a problem, or a config of it is no use."""
    c, blocks = config, _blocks(problem, config)
    if limits.warp_size != 32:
        return "decode=limbs needs warps of 32 lanes; use decode=portable"
    if problem.m != 1:
        return f"decode=limbs is for one token, not {problem.m}; use decode=mma"
    if parts_of.fn(device_group(problem)) > 1:
        return f"decode=limbs needs groups of a multiple of {BLOCK_K}, not {problem.group}; use decode=mma"
    if c.num_warps * c.cluster > next_power_of_2(cdiv(problem.k, BLOCK_K)):
        return f"{c.num_warps * c.cluster} warps are more than K={problem.k} can fill"
    if c.cluster > limits.max_cluster:
        return f"cluster={c.cluster} is above the {limits.max_cluster} of this GPU"
    if c.warps_n > 1 or c.split_k > 1 or c.ahead or c.unroll > 1:
        return "decode=limbs has all warps along K, one split, no ahead and no unroll"
    if blocks > MOST_BLOCKS:
        return f"{blocks} blocks of K={problem.k} per warp are more than the {MOST_BLOCKS} of decode=limbs"
    if c.num_stages % blocks:
        return (
            f"num_stages={c.num_stages} must be a multiple of the {blocks} blocks that a warp has of a tile"
        )
    if c.num_stages > blocks * c.tiles:
        return f"num_stages={c.num_stages} are more than the blocks of {c.tiles} tiles"
    shared = limb_bytes(problem, c)
    if shared > STATIC_SHARED:
        return f"{c.num_stages} stages of {c.num_warps} warps take {shared} of {STATIC_SHARED} bytes"
    return None


def default_limbs(problem: Problem, limits: Limits) -> V4Config | None:
    """Four warps where K allows, all blocks of a tile under way; None where the limb kernel cannot serve, or is slower.

    Measured on an H200: a cluster costs a launch 0.2 us, and pays where K is long and the tiles are few.
    """
    tiles, blocks = cdiv(problem.n, TILE_ROWS), cdiv(problem.k, BLOCK_K)
    few = tiles <= limits.sm_count
    too_long = blocks > ALONE_BLOCKS
    for cluster, warps in (4, 4), (1, 4), (1, 8), (1, 2), (1, 1):
        config = V4Config(decode="limbs", num_warps=warps, cluster=cluster)
        held = _blocks(problem, config)
        if cluster == 1:
            config = replace(config, num_stages=held, tiles=2 if tiles > MANY_TILES * limits.sm_count else 1)
        elif few and ((too_long and held <= 5) or (blocks >= LONG_BLOCKS and 4 * tiles <= limits.sm_count)):
            config = replace(
                config, num_stages=held
            )  # with more blocks too few programs fit on an SM at once
        elif too_long and held <= 3 and tiles <= FEW_TILES * limits.sm_count:
            config = replace(config, num_stages=2 * held, tiles=4)  # amortises the cluster
        else:
            continue
        idle = warps * cluster > blocks
        if not idle and warps <= limits.max_warps and refuse_limbs(problem, config, limits) is None:
            return config
    return None


def limb_launch(problem: Problem, config: V4Config, operands: Operands) -> Launch:
    """One launch. Rows gate|up are walked in pairs of tiles."""
    blocks, depth = _blocks(problem, config), config.num_stages // _blocks(problem, config)
    tiles, held = config.tiles, config.tiles
    if operands.swiglu:
        held = max(1, tiles // 2)
        tiles = 2 * held
        if config.tiles == 1 and limb_bytes(problem, replace(config, num_stages=2 * blocks)) <= STATIC_SHARED:
            depth = 2
    whole = cdiv(operands.y.shape[1], TILE_ROWS)
    return Launch(
        kernel=v4_limb_kernel,
        grid=(cdiv(whole, held),),
        args={
            "codes_ptr": operands.codes,
            "scales_ptr": operands.scales,
            "x_ptr": operands.x,
            "out_ptr": operands.y,
            "tile_words": TILE_ROWS * operands.codes.stride(0),
            "groups": problem.groups,
            "n": problem.n,
            "k": problem.k,
            "zeros_ptr": operands.zeros,
            "bias_ptr": operands.bias,
            "residual_ptr": operands.residual,
            "DTYPE": problem.x_dtype,
            "ZERO_MODE": problem.zero_mode,
            "QUANT_GROUP": device_group(problem),
            "EVEN_N": problem.n % TILE_ROWS == 0,
            "EVEN_K": problem.k % BLOCK_K == 0,
            "SWIGLU": operands.swiglu,
            "WHOLE": whole % held == 0,
            "TAIL": cdiv(problem.k, BLOCK_K) % (config.num_warps * config.cluster) != 0,
            "TILES": tiles,
            "DEPTH": min(depth, tiles),
            "BLOCKS": blocks,
            "WARPS": config.num_warps,
            "CLUSTER": config.cluster,
        },
        num_warps=config.num_warps,
        num_stages=1,
        options={"num_ctas": config.cluster} if config.cluster > 1 else {},
    )


def _blocks(problem: Problem, config: V4Config) -> int:
    """Blocks of a tile per warp."""
    return cdiv(cdiv(problem.k, BLOCK_K), config.num_warps * config.cluster)


def limb_bytes(problem: Problem, config: V4Config) -> int:
    """Shared memory of a program at most: rows gate|up take two tiles at least."""
    blocks, tiles = _blocks(problem, config), max(2, config.tiles)
    depth = config.num_stages // blocks
    places = limb_places.fn(
        config.num_warps, config.cluster, blocks, depth, tiles, device_group(problem), problem.zero_mode
    )
    return int(places[-1])
