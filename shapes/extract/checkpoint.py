"""Tensor shapes from a torch checkpoint (.pt, .pth, .bin), whose classes are never unpickled.

Files in torch's zip format are memory-mapped, so that the values stay on disk; older ones are read whole.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.extract.found import Found, clip, refuse
from roofgap.shapes.extract.names import unwrapped

if TYPE_CHECKING:
    import torch

_WRAPPERS = ("model", "state_dict", "model_state_dict", "module")
_DEPTH = 8


def read_checkpoint(path: Path) -> Found:
    """Tensors of the state dict in one checkpoint, wherever it is wrapped.

    Raises:
        RoofgapError: not a torch checkpoint, one that needs a pickled class, or one without a state dict.
    """
    tensors = load_state_dict(path)
    plain = {unwrapped(name).removesuffix(".weight"): tensor for name, tensor in tensors.items()}

    def same(first: str, second: str) -> bool | None:
        import torch

        one, other = plain[first], plain[second]
        if one.is_meta or other.is_meta:
            return None
        return one.data_ptr() == other.data_ptr() or (one.dtype == other.dtype and torch.equal(one, other))

    return Found(
        place=path.name,
        shapes={name: tuple(tensor.shape) for name, tensor in tensors.items()},
        same=same,
    )


def load_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a checkpoint by name, wherever its state dict is wrapped. Raises as ``read_checkpoint``."""
    return _state_dict(_load(path), path)


def _load(path: Path) -> object:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # the unpickler meets whatever bytes a user hands in
        refused = re.search(r"(?:GLOBAL|Unsupported (?:global|class)[^A-Za-z]*)\s*([\w.]+)", str(error))
        if refused:
            raise RoofgapError(
                f"{path}: pickled class {refused[1]}",
                "a checkpoint is read without running code, so it may hold only tensors and plain containers",
                "save model.state_dict(), or convert it to safetensors",
            ) from error
        reason = (str(error).splitlines() or [""])[0][:120]
        raise refuse(
            str(path), f"is not a checkpoint that torch can read ({type(error).__name__}: {reason})"
        ) from error


def _state_dict(loaded: object, path: Path) -> dict[str, torch.Tensor]:
    import torch

    for _ in range(_DEPTH):
        if not isinstance(loaded, Mapping):
            break
        tensors = {
            name: value
            for name, value in loaded.items()
            if isinstance(name, str) and isinstance(value, torch.Tensor)
        }
        inner = [name for name in _WRAPPERS if isinstance(loaded.get(name), Mapping)]
        if tensors and not inner:
            return tensors
        if len(inner) != 1:
            listed = ", ".join(clip(name, 40) for name in list(loaded)[:8]) or "nothing"
            raise refuse(
                f"{path}: {listed}",
                f"must be a state dict, or hold exactly one under {', '.join(_WRAPPERS)}",
                "save model.state_dict() alone",
            )
        loaded = loaded[inner[0]]
    raise refuse(
        f"{path}: a {type(loaded).__name__}", "must be a state dict", "save model.state_dict() alone"
    )
