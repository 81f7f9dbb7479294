"""Runs the launches of a fused operator on its tensors' device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from triton.runtime.jit import JITFunction

from roofgap.kernels.step import Launch
from roofgap.shapes.errors import RoofgapError


def run(launches: Sequence[Launch], device: torch.device) -> None:
    """Launches on ``device`` and its current stream; CPU tensors run in Triton's interpreter.

    Raises:
        RoofgapError: CPU tensors, and kernels that were defined for a GPU.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            for launch in launches:
                launch.run()
        return
    if any(isinstance(launch.kernel, JITFunction) for launch in launches):
        raise RoofgapError(
            "tensors on the CPU",
            "Triton kernels run on a GPU or in the interpreter",
            "move them to a GPU, or set TRITON_INTERPRET=1 before roofgap.e2e.fused is imported",
        )
    for launch in launches:
        launch.run()


def refuse_dtype(name: str, tensor: torch.Tensor, like: torch.dtype | None = None) -> None:
    """Refuses what a fused operator does not read.

    Raises:
        RoofgapError: not fp16 or bf16, not the dtype of ``like``, or a last axis that is not contiguous.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype not in (torch.float16, torch.bfloat16) or tensor.dtype != (like or tensor.dtype):
        wanted = "fp16 or bf16" if like is None else str(like).removeprefix("torch.")
        raise RoofgapError(f"{name} of {dtype}", f"must be {wanted}", "cast the model to one 16-bit dtype")
    if tensor.stride(-1) != 1:
        raise RoofgapError(
            f"{name} with strides {tensor.stride()}", "needs a contiguous last axis", "call contiguous()"
        )
