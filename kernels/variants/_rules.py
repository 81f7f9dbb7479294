"""Rules that the configs of several variants share."""

from __future__ import annotations

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.ints import next_power_of_2
from roofgap.kernels.variant import Limits
from roofgap.shapes.problem import Problem

REGISTERS_PER_THREAD = 255


def fit_n(block_n: int, n: int) -> int:
    """``block_n`` cut to what N can fill, as the rules below ask."""
    return min(block_n, max(32, next_power_of_2(n)))


def fit_k(block_k: int, k: int) -> int:
    """``block_k`` cut to what K can fill."""
    return min(block_k, max(64, next_power_of_2(k)))


def refuse_blocks(
    problem: Problem, config: KernelConfig, limits: Limits, *, block_n: int, block_k: int
) -> str | None:
    """Why a GEMV block of ``block_n`` outputs x ``block_k`` weights cannot or need not be tried, or None."""
    for name, value, least in (
        ("block_n", block_n, 1),
        ("block_k", block_k, 8),
        ("num_warps", config.num_warps, 1),
    ):
        if value < least or value & (value - 1):
            return f"{name}={value} must be a power of two of at least {least}"
    if config.num_warps > limits.max_warps:
        return f"num_warps={config.num_warps} is above the {limits.max_warps} of this GPU"
    if config.num_stages < 1:
        return f"num_stages={config.num_stages} must be at least 1"
    if block_n != fit_n(block_n, problem.n):
        return f"block_n={block_n} is more than N={problem.n} can fill"
    if block_k != fit_k(block_k, problem.k):
        return f"block_k={block_k} is more than K={problem.k} can fill"
    threads = config.num_warps * limits.warp_size
    words = block_n * block_k // 8
    if words < threads:
        return f"{words} words per step leave some of {threads} threads without work"
    # A thread holds its words, their partial and total sums and about as much for addresses.
    if words // threads > 32:
        return f"{words // threads} words per thread would spill ({REGISTERS_PER_THREAD} registers a thread)"
    if config.num_stages * words * 4 > limits.shared_bytes:
        return (
            f"{config.num_stages} stages of {words * 4} bytes exceed {limits.shared_bytes} of shared memory"
        )
    return None


def refuse_split(problem: Problem, split_k: int, reduce: str, block_k: int) -> str | None:
    """Why K cannot or need not be cut into ``split_k`` slices that meet by ``reduce``, or None."""
    if split_k < 1:
        return f"split_k={split_k} must be at least 1"
    if reduce not in ("atomic", "partials"):
        return f"reduce={reduce!r} must be atomic or partials"
    if split_k == 1 and reduce == "partials":
        return "split_k=1 has nothing to reduce; reduce=atomic names the same kernel"
    if split_k > max(1, problem.k // block_k):
        return f"split_k={split_k} leaves slices of K={problem.k} without a block of {block_k}"
    return None


def refuse_dot(
    problem: Problem, config: KernelConfig, limits: Limits, *, block_m: int, block_n: int, block_k: int
) -> str | None:
    """Why a ``tl.dot`` tile cannot or need not be tried, or None."""
    for name, value, least in (
        ("block_m", block_m, 16),
        ("block_n", block_n, 16),
        ("block_k", block_k, 16),
        ("num_warps", config.num_warps, 1),
    ):
        if value < least or value & (value - 1):
            return f"{name}={value} must be a power of two of at least {least}"
    if config.num_warps > limits.max_warps:
        return f"num_warps={config.num_warps} is above the {limits.max_warps} of this GPU"
    if config.num_stages < 1:
        return f"num_stages={config.num_stages} must be at least 1"
    if block_m > max(16, next_power_of_2(problem.m)):
        return f"block_m={block_m} is more than M={problem.m} can fill"
    if block_n != fit_n(block_n, problem.n):
        return f"block_n={block_n} is more than N={problem.n} can fill"
    if block_k != fit_k(block_k, problem.k):
        return f"block_k={block_k} is more than K={problem.k} can fill"
    threads = config.num_warps * limits.warp_size
    if block_m * block_n // threads > 128:
        return f"{block_m * block_n // threads} accumulators per thread would spill"
    if block_n * block_k // 2 // threads > 128:
        return f"{block_n * block_k // threads} weights per thread would spill"
    shared = config.num_stages * 2 * block_m * block_k + max(1, config.num_stages - 1) * 2 * block_n * block_k
    if shared > limits.shared_bytes:
        return f"tiles of {shared} bytes exceed {limits.shared_bytes} of shared memory"
    return None
