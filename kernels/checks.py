"""The correctness checks that every variant passes, each one function over a ``Case``.

A check returns a line of detail, raises ``WrongResultError`` with what is wrong, or ``SkipCheckError`` with why it
cannot run here. Every launch writes into an output full of NaN, so that a value left unwritten, or read before it is
written, shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.formats.layout import PackedWeight
from roofgap.kernels.formats.weight import DTYPES, QuantizedWeight
from roofgap.kernels.inputs import (
    generator,
    operands,
    poisoned,
    quantised_weight,
    random_bias,
    random_weight,
    random_x,
)
from roofgap.kernels.ops import limits_of, linear, op_of, rows_of, run_plan
from roofgap.kernels.reference import identity_rows, reference, rounded
from roofgap.kernels.tolerance import judge
from roofgap.kernels.variant import Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

OUTLIERS = (14_280.0, 60_000.0)
"""Activations that Qwen2.5's down_proj sees, and nearly the largest fp16."""


class WrongResultError(Exception):
    """A value is wrong; the message says which and by how much."""


class SkipCheckError(Exception):
    """The check does not apply here; the message says why."""


@dataclass(frozen=True)
class Case:
    """One variant on one problem: what a check needs, made once and shared. ``config`` None means the default."""

    variant: Variant
    problem: Problem
    device: torch.device
    config: KernelConfig | None = None

    @cached_property
    def weight(self) -> QuantizedWeight:
        """Uniform codes, scales of both signs."""
        return random_weight(self.problem, 0, self.device)

    @cached_property
    def packed(self) -> PackedWeight:
        """``weight`` in the variant's layout."""
        return self.variant.layout.pack(self.weight)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def config_for(self, m: int) -> KernelConfig:
        """The given config, or the default for M rows."""
        if self.config is not None:
            return self.config
        return self.variant.default_config(self.problem.with_m(m), limits_of(self.device))

    def rows(self, m: int) -> int:
        """``m`` or the variant's limit."""
        return m if self.variant.max_m is None else min(m, self.variant.max_m)

    def run(
        self,
        x: torch.Tensor,
        weight: QuantizedWeight | None = None,
        bias: torch.Tensor | None = None,
        times: int = 1,
    ) -> torch.Tensor:
        """y of x [M, K] with M within the limit, from one plan run ``times`` times over the same buffers."""
        problem = replace(self.problem, m=x.shape[0], bias=bias is not None)
        packed = self.packed if weight is None else self.variant.layout.pack(weight)
        y = poisoned(problem, self.device)
        config = self.config_for(problem.m)
        if times == 1:
            return run_plan(self.variant, problem, config, operands(x, packed, bias, y))
        steps = self.variant.plan(problem, config, operands(x, packed, bias, y))
        for _ in range(times):
            for step in steps:
                step.run()
        return y

    def run_chunks(
        self, x: torch.Tensor, weight: QuantizedWeight | None = None, chunk: int = 512
    ) -> torch.Tensor:
        """y of x with any number of rows, in chunks that the variant takes."""
        return torch.cat([self.run(part, weight) for part in torch.split(x, self.rows(chunk))])

    def judge(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        weight: QuantizedWeight | None = None,
        bias: torch.Tensor | None = None,
    ) -> str:
        """The verdict's line; WrongResultError where the policy is broken."""
        problem = self.problem.with_m(max(1, x.shape[0]))
        verdict = judge(
            y,
            reference(x, self.weight if weight is None else weight, bias),
            k=problem.k,
            split_count=self.variant.split_count(problem, self.config_for(problem.m)),
            rounds_weights=self.variant.rounds_weights,
            factors_zero=self.variant.factors_zero,
        )
        if not verdict.passed:
            raise WrongResultError(f"M={x.shape[0]}: {verdict.detail}")
        return verdict.detail


def identity(case: Case) -> str:
    """One-hot activations read every weight out of the kernel, bit for bit as the canonical weight says."""
    problem = case.problem
    rows = torch.arange(problem.k)
    if not case.on_gpu and problem.k > 16:  # the interpreter is slow: both ends, and every nibble
        rows = torch.unique(torch.cat([rows[:1], rows[-3:], (torch.arange(8) * 97) % problem.k]))
    x = identity_rows(0, problem.k, problem.k, DTYPES[problem.x_dtype], case.device)[rows.to(case.device)]
    got = case.run_chunks(x)
    expected = rounded(case.weight.dequantise(torch.float32)[:, rows.to(case.device)].T, got.dtype)
    wrong = (got != expected) | got.isnan()
    if bool(wrong.any()):
        row, n = (int(index) for index in wrong.nonzero()[0])
        raise WrongResultError(
            f"{int(wrong.sum())} of {wrong.numel()} weights differ; the first is n={n}, k={int(rows[row])}: "
            f"{float(got[row, n])} instead of {float(expected[row, n])}"
        )
    return f"{wrong.numel()} weights bit-exact"


def random(case: Case, seeds: Iterable[int] = (1, 2)) -> str:
    """Normal activations against fp64: uniform weights for odd seeds, quantised normal ones for even."""
    detail = ""
    for seed in seeds:
        make = random_weight if seed % 2 else quantised_weight
        weight = make(case.problem, seed, case.device)
        x = random_x(case.problem.with_m(case.rows(2)), seed, case.device)
        detail = case.judge(case.run(x, weight), x, weight)
    return detail


def row_counts(case: Case) -> str:
    """M of 0, 1, a few, one past a tile of 16, and the variant's limit; each row as if it were alone."""
    counts = [0, 1, 3, 17] + ([64, 130] if case.on_gpu else [])
    limit = case.variant.max_m
    if limit is not None:
        counts = sorted({*(m for m in counts if m <= limit), limit})
    for m in counts:
        x = random_x(case.problem.with_m(m), 3, case.device)
        y = case.run(x)
        if y.shape != (m, case.problem.n):
            raise WrongResultError(f"M={m} gave shape {list(y.shape)}")
        if m:
            case.judge(y, x)
    if limit is not None:
        x = random_x(case.problem.with_m(limit + 1), 3, case.device)
        try:
            linear(x, case.packed, variant=case.variant.name)
        except RoofgapError:
            pass
        else:
            raise WrongResultError(f"M={limit + 1} is above the limit and was not refused")
    return f"M = {', '.join(map(str, counts))}"


def repeated(case: Case) -> str:
    """One plan run three times over the same dirty output and workspaces gives one product, not the sum of three."""
    x = random_x(case.problem.with_m(case.rows(2)), 4, case.device)
    return case.judge(case.run(x, times=3), x)


def with_bias(case: Case) -> str:
    """A bias is added once, whatever the split."""
    problem = replace(case.problem, m=case.rows(2), bias=True)
    x, bias = random_x(problem, 5, case.device), random_bias(problem, 5, case.device)
    return case.judge(case.run(x, bias=bias), x, bias=bias)


def outliers(case: Case) -> str:
    """|x| of 14,280 and 60,000 neither overflows nor drowns the rest."""
    problem = case.problem
    x = random_x(problem.with_m(case.rows(2)), 6, case.device)
    for row, size in zip(range(x.shape[0]), OUTLIERS, strict=False):
        x[row, problem.k // 3] = size
        x[row, problem.k // 2] = -size
    if x.shape[0] == 1:
        x[0, problem.k - 1] = OUTLIERS[1]
    return case.judge(case.run(x), x)


def saturation(case: Case) -> str:
    """Sixteen of the largest activations: outputs are infinite where the true sum passes fp16, and only there."""
    problem = case.problem
    x = random_x(problem.with_m(1), 7, case.device)
    x[0, :16] = OUTLIERS[1]
    return case.judge(case.run(x), x)


def zero_groups(case: Case) -> str:
    """Groups whose scale is 0 (a pruned or padded weight) contribute nothing; offsets of such groups still count."""
    scales = case.weight.scales.clone()
    scales[:, 0] = 0
    scales[: scales.shape[0] // 2, -1] = 0
    weight = replace(case.weight, scales=scales)
    x = random_x(case.problem.with_m(case.rows(2)), 8, case.device)
    return case.judge(case.run(x, weight), x, weight)


def not_finite(case: Case) -> str:
    """Infinities and NaN in x reach the outputs they reach in a matmul, as the policy says, and no other row."""
    k = case.problem.k
    x = random_x(case.problem.with_m(4), 9, case.device)
    x[0, k // 2], x[1, k - 1], x[2, 0] = float("inf"), float("-inf"), float("nan")
    y = case.run_chunks(x)
    if not bool(torch.isfinite(y[3]).all()):
        raise WrongResultError("a row without infinities has some in its result")
    return case.judge(y, x)


def strided_x(case: Case) -> str:
    """Rows further apart than K, and a transposed x, are read by their strides."""
    problem = case.problem.with_m(case.rows(2))
    wide = torch.full(
        (problem.m, problem.k + 24), float("nan"), dtype=DTYPES[problem.x_dtype], device=case.device
    )
    wide[:, 8 : 8 + problem.k] = random_x(problem, 10, case.device)
    x = wide[:, 8 : 8 + problem.k]
    case.judge(case.run(x), x)
    across = x.T.contiguous().T
    return case.judge(case.run(rows_of(across)), across)


def mixed_scales(case: Case) -> str:
    """Scales (and offsets) of another float dtype than x's."""
    x = random_x(case.problem.with_m(1), 11, case.device)
    weight = case.weight
    for dtype in {torch.float16, torch.bfloat16, torch.float32} - {x.dtype}:
        zeros = (
            weight.zeros.to(dtype)
            if weight.zeros is not None and weight.zero_mode == "offset"
            else weight.zeros
        )
        other = replace(weight, scales=weight.scales.to(dtype), zeros=zeros)
        case.judge(case.run(x, other), x, other)
    return "fp16, bf16 and fp32 scales"


def deterministic(case: Case) -> str:
    """A variant that claims to be deterministic gives the same bits every time."""
    problem = case.problem.with_m(case.rows(2))
    if not case.variant.is_deterministic(problem, case.config_for(problem.m)):
        raise SkipCheckError("the config adds with atomics and claims no determinism")
    x = random_x(problem, 12, case.device)
    results = [case.run(x).clone() for _ in range(3)]
    if not all(torch.equal(left, right) for left, right in pairwise(results)):
        raise WrongResultError("three runs on the same inputs differ in their bits")
    return "three runs equal"


def _op_arguments(case: Case, m: int) -> tuple[object, ...]:
    packed = case.packed
    config = "" if case.config is None else case.config.key
    x = random_x(case.problem.with_m(m), 13, case.device)
    return x, packed.codes, packed.scales, packed.zeros, None, packed.group_size, packed.zero_mode, config


def op_contract(case: Case) -> str:
    """``torch.library.opcheck``: schema, fake implementation, tracing; and leading dimensions of x kept."""
    op = op_of(case.variant)
    args = _op_arguments(case, case.rows(2))
    torch.library.opcheck(op, args)
    x = args[0]
    assert isinstance(x, torch.Tensor)
    y = op(x[None, :, None], *args[1:])
    if y.shape != (1, x.shape[0], 1, case.problem.n) or y.dtype != x.dtype:
        raise WrongResultError(f"x {list(x[None, :, None].shape)} gave y {list(y.shape)} {y.dtype}")
    case.judge(y.reshape(-1, case.problem.n), x)
    if op(x[:0], *args[1:]).shape != (0, case.problem.n):
        raise WrongResultError("M=0 did not give an empty result")
    return "opcheck clean"


def compiled(case: Case) -> str:
    """``torch.compile(fullgraph=True)`` around the op."""
    if not case.on_gpu:
        raise SkipCheckError("needs a GPU: the interpreter is not compiled")
    op, (x, *rest) = op_of(case.variant), _op_arguments(case, case.rows(2))
    assert isinstance(x, torch.Tensor)
    torch.compiler.reset()
    y = torch.compile(lambda x: op(x * 1, *rest) + 0, fullgraph=True)(x)
    return case.judge(y, x)


def captured(case: Case) -> str:
    """A captured graph holds the work: replayed on new activations it gives their product, twice in a row."""
    if not case.on_gpu:
        raise SkipCheckError("needs a GPU: there are no graphs in the interpreter")
    op, (x, *rest) = op_of(case.variant), _op_arguments(case, case.rows(2))
    assert isinstance(x, torch.Tensor)
    op(x, *rest)
    torch.cuda.synchronize(case.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = op(x, *rest)
    detail = ""
    for seed in (20, 21):
        x.copy_(random_x(case.problem.with_m(x.shape[0]), seed, case.device))
        y.fill_(float("nan"))
        graph.replay()
        graph.replay()
        detail = case.judge(y, x)
    return detail


def side_stream(case: Case) -> str:
    """On a side stream the kernels wait for what that stream was doing, not for the default stream."""
    if not case.on_gpu:
        raise SkipCheckError("needs a GPU: there are no streams in the interpreter")
    op, (x, *rest) = op_of(case.variant), _op_arguments(case, case.rows(2))
    assert isinstance(x, torch.Tensor)
    op(x, *rest)
    fresh = random_x(case.problem.with_m(x.shape[0]), 22, case.device)
    x.fill_(float("nan"))
    torch.cuda.synchronize(case.device)
    stream = torch.cuda.Stream(case.device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # about 10 ms before x is there
        x.copy_(fresh)
        y = op(x, *rest)
    stream.synchronize()
    return case.judge(y, fresh)


def second_gpu(case: Case) -> str:
    """Tensors on another GPU than the current one."""
    if not case.on_gpu:
        raise SkipCheckError("needs a GPU")
    if torch.cuda.device_count() < 2:
        raise SkipCheckError("needs two GPUs; this machine has one")
    current = torch.cuda.current_device()
    other = torch.device("cuda", (current + 1) % torch.cuda.device_count())
    elsewhere = replace(case, device=other)
    x = torch.randn((case.rows(2), case.problem.k), generator=generator(23, other), device=other)
    x = x.to(DTYPES[case.problem.x_dtype])
    return elsewhere.judge(linear(x, elsewhere.packed, variant=case.variant.name), x)


Check = Callable[[Case], str]

CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        identity,
        random,
        row_counts,
        repeated,
        with_bias,
        outliers,
        saturation,
        zero_groups,
        not_finite,
        strided_x,
        mixed_scales,
        deterministic,
        op_contract,
        compiled,
        captured,
        side_stream,
        second_gpu,
    )
}
