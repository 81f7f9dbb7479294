"""Problems and helpers that the kernel tests share."""

from __future__ import annotations

import torch

from roofgap.shapes.problem import Problem

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Small, awkward and different from one another: N and K odd, K not a multiple of 8 or of the group, one group, many.
RAGGED = (
    Problem(n=33, k=141, group_size=32, x_dtype="fp16", zero_mode="asym"),
    Problem(n=20, k=96, group_size=-1, x_dtype="bf16", zero_mode="sym"),
    Problem(n=7, k=203, group_size=96, x_dtype="fp16", zero_mode="sym"),
    Problem(n=40, k=320, group_size=256, x_dtype="fp16", zero_mode="offset"),
    Problem(n=16, k=128, group_size=64, x_dtype="bf16", zero_mode="asym"),
    Problem(n=1, k=5, group_size=128, x_dtype="fp16", zero_mode="asym"),
    Problem(n=9, k=72, group_size=24, x_dtype="bf16", zero_mode="offset"),
)
