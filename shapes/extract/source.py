"""From what a user names (a folder, files) to a manifest: picks the extractor, infers, builds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.extract.checkpoint import read_checkpoint
from roofgap.shapes.extract.found import Found, Number, Stated, clip, refuse
from roofgap.shapes.extract.gguf import read_gguf
from roofgap.shapes.extract.huggingface import read_huggingface
from roofgap.shapes.extract.infer import infer
from roofgap.shapes.extract.safetensors_header import read_safetensors
from roofgap.shapes.manifest import Evidence, Manifest, build_manifest

_INDEX = ".safetensors.index.json"
_CHECKPOINTS = (".pt", ".pth", ".bin", ".ckpt")


def extract(
    sources: Sequence[Path],
    options: Mapping[str, Number],
    *,
    name: str | None = None,
    revision: str | None = None,
) -> Manifest:
    """Makes a manifest from a model's files.

    Args:
        sources: a Hugging Face folder, a config.json, one or more safetensors files or their index, a torch
            checkpoint, or a GGUF file.
        options: architecture numbers that the user states, by field; they must agree with the source.
        name: name of the manifest; by default that of the folder or file.
        revision: which revision of the model it is; by default a digest of all shapes and numbers.

    Raises:
        RoofgapError: the source cannot be read, is not a gated, grouped-query decoder, contradicts itself or
            the options, or leaves a number open.
    """
    found = _read(sources)
    given = {
        field: Stated(value, Evidence(kind="published", source=f"given as --{field.replace('_', '-')}"))
        for field, value in options.items()
    }
    architecture, provenance = infer(found, given)
    title = name or _default_name(sources[0])
    return build_manifest(
        title,
        architecture,
        provenance,
        title=title,
        source=found.place,
        revision=revision or f"shapes-sha256:{_digest(found)}",
    )


def _read(sources: Sequence[Path]) -> Found:
    for source in sources:
        if not str(source).isprintable():  # a name that is not text cannot be kept as evidence
            raise refuse(clip(str(source)), "must be a printable name", "rename it")
        if not (source.is_file() or source.is_dir()):
            raise RoofgapError(
                str(source), "is not a file or folder", "check the path; nothing is downloaded"
            )
    if len(sources) > 1:
        if any(source.suffix != ".safetensors" for source in sources):
            raise refuse(
                ", ".join(map(str, sources)), "only safetensors shards can be given several at a time"
            )
        return read_safetensors(sources)
    source = sources[0]
    if source.is_dir():
        return _read_folder(source)
    if source.name.endswith(_INDEX) or source.suffix == ".safetensors":
        return read_safetensors(sources)
    if source.suffix == ".json":
        return read_huggingface(source)
    if source.suffix in _CHECKPOINTS:
        return read_checkpoint(source)
    if source.suffix == ".gguf":
        return read_gguf(source)
    raise refuse(
        str(source),
        f"must be a folder, config.json, *.safetensors, *{_INDEX}, {', '.join(_CHECKPOINTS)} or *.gguf",
        "rename the file to what it is",
    )


def _read_folder(folder: Path) -> Found:
    if (folder / "config.json").is_file():
        return read_huggingface(folder / "config.json")
    indexes = sorted(folder.glob(f"*{_INDEX}"))
    if len(indexes) > 1:
        raise refuse(str(folder), f"holds {len(indexes)} indexes", "give the one that is meant")
    shards = indexes or sorted(folder.glob("*.safetensors"))
    if not shards:
        raise refuse(str(folder), "holds neither config.json nor safetensors", "give the file itself")
    return read_safetensors(shards)


def _default_name(source: Path) -> str:
    path = source.absolute()  # a cache keeps config.json as a link to a blob
    stem = (
        path.parent.name
        if path.name == "config.json"
        else path.name
        if path.is_dir()
        else path.name.split(".")[0]
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._").lower() or "model"


def _digest(found: Found) -> str:
    facts = [
        sorted(found.shapes.items()),
        sorted((field, number.value) for field, number in found.stated.items()),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
