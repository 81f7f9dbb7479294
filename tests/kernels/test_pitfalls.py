"""Each known pitfall, planted: the checks must go red. Unplanted, they stay green over many seeds."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from kernel_cases import DEVICE

from roofgap.kernels.checks import Case, random
from roofgap.kernels.formats.bits import unpack_nibbles
from roofgap.kernels.formats.layout import Layout, PackedWeight
from roofgap.kernels.formats.registry import LAYOUTS
from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.kernels.step import Step, TorchStep
from roofgap.kernels.variant import Variant
from roofgap.kernels.variants import _kpacked, gemm, tldot, v2, v3
from roofgap.kernels.verify import verify
from roofgap.shapes.problem import Problem

PROBLEM = Problem(n=33, k=141, group_size=32, zero_mode="asym")
SYM = replace(PROBLEM, zero_mode="sym")


def failed(
    variant: Variant, problem: Problem, checks: tuple[str, ...], config: str | None = None
) -> set[str]:
    """Names of the checks that fail; an exception inside a kernel does not count as having seen the fault."""
    settings = variant.config_type.parse(config) if config else None
    results = verify(variant, [problem], DEVICE, config=settings, checks=checks)
    assert not [result for result in results if "Error" in result.detail]
    return {result.check for result in results if result.status == "failed"}


def _replace(variant: Variant, change: Callable[[QuantizedWeight], QuantizedWeight]) -> Variant:
    """The variant, fed a weight that ``change`` corrupted before packing; the reference keeps the true one."""
    true: type[Layout] = variant.layout

    class Corrupted(true):  # type: ignore[misc, valid-type]
        @classmethod
        def pack(cls, weight: QuantizedWeight) -> PackedWeight:
            return true.pack(change(weight))

    mutant: Variant = type("Mutant", (type(variant),), {"layout": Corrupted})()
    return mutant


def missing_plus_eight(weight: QuantizedWeight) -> QuantizedWeight:
    """Signed codes packed as they are: -8..7 instead of 0..15."""
    return replace(weight, codes=(weight.codes - 8) & 15)


def zero_off_by_one(weight: QuantizedWeight) -> QuantizedWeight:
    """GPTQ's stored zero - 1, read as the zero."""
    assert weight.zeros is not None
    return replace(weight, zeros=(weight.zeros - 1) & 15)


def swapped_nibbles(weight: QuantizedWeight) -> QuantizedWeight:
    """The high nibble first in every byte, as bitsandbytes packs."""
    k = torch.arange(weight.k, device=weight.codes.device) ^ 1
    return replace(weight, codes=weight.codes[:, k.clamp_max(weight.k - 1)])


def wrong_group(weight: QuantizedWeight) -> QuantizedWeight:
    """Each group reads its neighbour's scale."""
    return replace(weight, scales=weight.scales.roll(1, dims=1))


def one_scale_wrong(weight: QuantizedWeight) -> QuantizedWeight:
    """One group of one row reads its neighbour's scale."""
    scales = weight.scales.clone()
    scales[5, 1] = scales[5, 2]
    return replace(weight, scales=scales)


def one_nibble_wrong(weight: QuantizedWeight) -> QuantizedWeight:
    """One code of the whole weight is one too high."""
    codes = weight.codes.clone()
    codes[20, weight.k - 1] ^= 1
    return replace(weight, codes=codes)


CORRUPTIONS = {
    "missing +8": (missing_plus_eight, SYM),
    "zero off by one": (zero_off_by_one, PROBLEM),
    "swapped nibbles": (swapped_nibbles, PROBLEM),
    "wrong group": (wrong_group, PROBLEM),
    "one scale wrong": (one_scale_wrong, PROBLEM),
}


@pytest.mark.parametrize("name", list(VARIANTS))
@pytest.mark.parametrize("fault", list(CORRUPTIONS))
def test_a_corrupted_weight_fails_both_ways(name: str, fault: str) -> None:
    change, problem = CORRUPTIONS[fault]
    assert failed(_replace(VARIANTS[name], change), problem, ("identity", "random")) == {"identity", "random"}


@pytest.mark.parametrize("name", list(VARIANTS))
def test_one_wrong_nibble_is_seen(name: str) -> None:
    assert "identity" in failed(_replace(VARIANTS[name], one_nibble_wrong), PROBLEM, ("identity",))


@pytest.mark.parametrize(
    ("name", "config"),
    [("v3", "block_n=64,block_k=64,split_k=2,reduce=atomic"), ("gemm", "block_k=64,block_n=32,split_k=2")],
)
def test_a_buffer_that_is_not_zeroed_is_seen(name: str, config: str) -> None:
    variant = get_variant(name)

    class Dirty(type(variant)):  # type: ignore[misc]
        def plan(self, *args: object) -> list[Step]:
            steps: list[Step] = super().plan(*args)
            assert any(isinstance(step, TorchStep) and step.name == "zero" for step in steps)
            return [step for step in steps if not isinstance(step, TorchStep)]

    problem = replace(PROBLEM, k=301)
    assert not failed(variant, problem, ("repeated",), config)
    assert "repeated" in failed(Dirty(), problem, ("repeated",), config)


class Rewritten:
    """Copies of a variant's module with one piece of its source replaced, imported under a name of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, list[str]()

    def module(self, original: ModuleType, old: str, new: str, **names: object) -> ModuleType:
        source = Path(str(original.__file__)).read_text()
        assert old in source, f"{original.__name__} no longer contains {old!r}: update the mutation"
        name = f"mutated_{len(self.names)}_{original.__name__.rsplit('.', 1)[1]}"
        path = self.folder / f"{name}.py"
        path.write_text(source.replace(old, new))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        self.names.append(name)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        vars(module).update(names)
        return module


@pytest.fixture
def rewritten(tmp_path: Path) -> Iterator[Rewritten]:
    made = Rewritten(tmp_path)
    yield made
    for name in made.names:
        del sys.modules[name]


# module, class, old source, new source, problem, config, checks that must fail
MUTATIONS = {
    "v2 no zero": (v2, "V2", "(code - zero)", "(code)", SYM, None, {"identity", "random"}),
    "v2 tail mask": (v2, "V2", "mask=offs_k + j < k, ", "mask=offs_k < k, ", PROBLEM, None, {"strided_x"}),
    "v2 nibble order": (v2, "V2", "(4 * j)) & 15", "(4 * (7 - j))) & 15", PROBLEM, None, {"identity", "random"}),
    "v2 sign extension": (v2, "V2", ">> (4 * j)) & 15", ">> (4 * j)) & 31", PROBLEM, None, {"identity", "random"}),
    "v2 bias dropped": (v2, "V2", "if bias_ptr is not None", "if bias_ptr is None and False", PROBLEM, None,
                        {"with_bias"}),
    "v2 row stride": (v2, "V2", "row * stride_xm", "row * k", PROBLEM, None, {"strided_x"}),
    "v3 decoding": (v3, "V3", "(1.0 / 16**NIBBLE))[:, None]", "(1.0 / 8**NIBBLE))[:, None]", PROBLEM, None,
                    {"identity", "random"}),
    "v3 slices overlap": (v3, "V3", "k_end = tl.minimum(k_begin + k_slice, k)", "k_end = k", PROBLEM,
                          "block_n=64,block_k=64,split_k=2,reduce=atomic", {"identity", "random"}),
    "v3 bias per slice": (v3, "V3", "operands.bias if reduce == \"none\" else None", "None", PROBLEM,
                          "block_n=64,split_k=1,reduce=atomic", {"with_bias"}),
    "tldot nibble": (tldot, "TlDot", "(offs_k % 8) * 4", "(offs_k % 4) * 4", PROBLEM, None, {"identity", "random"}),
    "tldot group": (tldot, "TlDot", "group = (offs_k // QUANT_GROUP)", "group = (k_start // QUANT_GROUP + offs_k * 0)",
                    PROBLEM, None, {"identity", "random"}),
    "tldot tail mask": (tldot, "TlDot", "m_mask[:, None] & k_mask[None, :]", "m_mask[:, None]", PROBLEM, None,
                        {"strided_x"}),
    "gemm join order": (gemm, "Gemm", "tl.join(w0, w4)", "tl.join(w4, w0)", PROBLEM, None, {"identity", "random"}),
    "gemm tail mask": (gemm, "Gemm", " & (offs_x < k)[None, :]", "", PROBLEM, None, {"strided_x"}),
    "gemm slices": (gemm, "Gemm", "k_begin = split * k_slice", "k_begin = 0", replace(PROBLEM, k=301),
                    "block_k=64,block_n=32,split_k=2", {"identity", "random"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(MUTATIONS))
def test_a_mutated_kernel_is_seen(rewritten: Rewritten, fault: str) -> None:
    module, cls, old, new, problem, config, expected = MUTATIONS[fault]
    mutant = getattr(rewritten.module(module, old, new), cls)()
    assert failed(mutant, problem, tuple(sorted(expected)), config) == expected


def test_a_block_that_uses_one_groups_scale_for_several_is_seen(rewritten: Rewritten) -> None:
    helpers = rewritten.module(
        _kpacked, "group = offs_k // QUANT_GROUP", "group = k_start // QUANT_GROUP + offs_k * 0"
    )
    mutant = rewritten.module(v2, "V2", "V2", load_scale=helpers.load_scale).V2()
    config = "block_n=32,block_k=128,num_warps=2"
    assert not failed(get_variant("v2"), SYM, ("random",), config)
    assert failed(mutant, SYM, ("identity", "random"), config) == {"identity", "random"}


SEEDS = {"v1": 10, "v2": 4, "v3": 4, "tldot": 25, "gemm": 25}


@pytest.mark.parametrize("name", list(VARIANTS))
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_sound_kernels_pass_for_many_seeds(name: str, dtype: str) -> None:
    seeds = 200 if DEVICE.type == "cuda" else SEEDS.get(name, 4)
    random(Case(VARIANTS[name], replace(PROBLEM, x_dtype=dtype), DEVICE), range(1, seeds + 1))  # type: ignore[arg-type]


def test_every_layout_keeps_zeros_where_codes_are_padded() -> None:
    weight = QuantizedWeight(
        codes=torch.full((3, 13), 15, dtype=torch.uint8), scales=torch.ones(3, 1), group_size=-1
    )
    for layout in LAYOUTS.values():
        nibbles = unpack_nibbles(layout.pack(weight).codes.reshape(-1, 1), 8)
        assert int(nibbles.sum()) == 3 * 13 * 15
