"""From a dense model to the build of an arm: linears replaced by path, dense weights freed, bytes checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from roofgap.e2e.arms import Build
from roofgap.e2e.models import ModelSource
from roofgap.e2e.peers import linear_factory
from roofgap.e2e.projections import MakeLinear, join_projections
from roofgap.kernels.registry import VARIANTS
from roofgap.shapes.accounting import DENSE_BYTES, honest
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import Manifest
from roofgap.shapes.problem import ZeroMode

LAYER_LINEARS = ("model.layers.*",)
HEAD = ("lm_head",)
BYTES_TOLERANCE = 0.01
_LEAVES = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "qkv_proj": "qkv",
    "o_proj": "o",
    "gate_proj": "gate",
    "up_proj": "up",
    "gate_up_proj": "gate_up",
    "down_proj": "down",
    "lm_head": "head",
}


@dataclass(slots=True)
class Built:
    """A model as one build decodes with it.

    Attributes:
        build: its switches.
        model: the causal LM.
        linears: every linear that a token runs through, by path, in the order of use.
        expected_bytes: what the manifest says its tensors take.
        stored_bytes: what they take.
    """

    build: Build
    model: Any
    linears: dict[str, nn.Module]
    expected_bytes: int
    stored_bytes: int

    def roles(self) -> dict[str, str]:
        """Role of each linear by path: q, k, v or qkv, o, gate, up or gate_up, down, head."""
        return {path: role_of(path) for path in self.linears}


def role_of(path: str) -> str:
    """Role of a linear from its path.

    Raises:
        KeyError: not a linear of a decoder.
    """
    return _LEAVES[path.rpartition(".")[2]]


def build_model(
    source: ModelSource,
    build: Build,
    device: torch.device,
    *,
    group_size: int = 128,
    zero_mode: ZeroMode = "asym",
) -> Built:
    """Builds, joins, swaps and checks.

    Raises:
        RoofgapError: the peer is not installed or refuses a shape, nothing was swapped, or the tensors that are left
            do not take the bytes that the manifest gives, within 1 %.
    """
    model = source.build(device)
    if build.fused_linears:
        join_projections(model)
    if build.weights != "bf16":
        make = linear_factory(build, group_size, zero_mode)
        swap_linears(model, make, LAYER_LINEARS)
        if build.head_w4:
            untie_head(model)
            swap_linears(model, make, HEAD)
    linears = find_linears(model)
    expected = expected_bytes(source.manifest, build, group_size, zero_mode)
    built = Built(build, model, linears, expected, stored_bytes(model))
    check_bytes(built)
    if build.fused_operators:
        from roofgap.e2e.fused.apply import apply_fused_operators

        apply_fused_operators(model, epilogues=build.epilogues)
    return built


def swap_linears(model: nn.Module, make: MakeLinear, patterns: Sequence[str]) -> list[str]:
    """Replaces every plain ``nn.Linear`` whose path matches, one at a time, so that dense weights are freed as it goes.

    Returns:
        The paths.

    Raises:
        RoofgapError: nothing matched, or ``make`` refused a linear (the path is named).
    """
    paths = [
        path
        for path, module in model.named_modules()
        if type(module) is nn.Linear and any(fnmatchcase(path, pattern) for pattern in patterns)
    ]
    if not paths:
        raise RoofgapError(
            f"pattern {', '.join(patterns)}",
            "matches no linear of the model",
            "check the paths of its modules",
        )
    for path in paths:
        parent, _, leaf = path.rpartition(".")
        owner = model.get_submodule(parent) if parent else model
        dense = getattr(owner, leaf)
        try:
            setattr(owner, leaf, make(dense))
        except RoofgapError as error:
            raise RoofgapError(f"{path}: {error.value}", error.rule, error.remedy) from error
        del dense
    return paths


def untie_head(model: Any) -> None:
    """Declares head and embedding two things, so that nothing ties them again; the embedding keeps its storage."""
    model.config.tie_word_embeddings = False
    head = nn.Linear(model.lm_head.in_features, model.lm_head.out_features, bias=False, device="meta")
    head.weight = nn.Parameter(model.lm_head.weight.data, requires_grad=False)
    model.lm_head = head


def find_linears(model: Any) -> dict[str, nn.Module]:
    """Linears by path, whatever they were replaced with."""
    return {path: module for path, module in model.named_modules() if path.rpartition(".")[2] in _LEAVES}


def expected_bytes(manifest: Manifest, build: Build, group_size: int, zero_mode: ZeroMode) -> int:
    """Bytes of all tensors: what a token reads of weights, plus the embedding where it is a storage of its own, plus
    what an own variant's layout pads.
    """
    weights, head = build.formats(group_size, zero_mode)
    read = honest(manifest.fused() if build.fused_linears else manifest, weights, head)
    table = DENSE_BYTES * manifest.architecture.vocab * manifest.architecture.hidden
    shares = manifest.architecture.tied and head.kind == "bf16"
    padding = padding_bytes(manifest, build, group_size, zero_mode)
    return int(read.weights - read.embedding) + (0 if shares else table) + padding


def padding_bytes(manifest: Manifest, build: Build, group_size: int, zero_mode: ZeroMode) -> int:
    """Bytes that an own variant's layout stores above the format's: a K padded to whole groups, for one. They are read,
    but no step needs them, so accounting leaves them out.
    """
    if build.variant is None or build.variant not in VARIANTS:
        return 0
    layout, padding = VARIANTS[build.variant].layout, 0
    for matrix, problem in manifest.problems(
        group_size=group_size, x_dtype="bf16", zero_mode=zero_mode, fused=build.fused_linears
    ):
        if matrix.role != "head" or build.head_w4:
            packed = layout.meta(problem)
            tensors = [tensor for tensor in (packed.codes, packed.scales, packed.zeros) if tensor is not None]
            padding += matrix.count * (sum(tensor.nbytes for tensor in tensors) - problem.weight_bytes)
    return padding


def stored_bytes(model: nn.Module) -> int:
    """Bytes of the distinct storages behind parameters, buffers and bitsandbytes' states."""
    storages = {}
    for tensor in _tensors(model):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    for path, module in model.named_modules():
        if "rotary_emb" in path:
            continue
        own: Iterable[torch.Tensor | None] = (*module._parameters.values(), *module._buffers.values())
        for tensor in own:
            if tensor is not None:
                yield tensor
                state = getattr(tensor, "quant_state", None)
                if state is not None:
                    yield state.absmax


def check_bytes(built: Built) -> None:
    """Refuses a model that holds more or less than its format accounts for.

    Raises:
        RoofgapError: a difference above 1 %: dense weights that were not freed, or padding that is not counted.
    """
    stored, expected = built.stored_bytes, built.expected_bytes
    if abs(stored - expected) > BYTES_TOLERANCE * expected:
        raise RoofgapError(
            f"{stored:,} bytes of tensors",
            f"must be the manifest's {expected:,} within {BYTES_TOLERANCE:.0%}",
            "free the dense weights, or correct the format that the arm declares",
        )
