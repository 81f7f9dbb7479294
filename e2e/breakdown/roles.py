"""Which part of a decoder a kernel works for.

An eager step knows: its kernels are launched inside ranges around modules. A graph's replay does not, but it
runs the same kernels in the same order, so that the n-th kernel of a name has the role of the eager step's
n-th of that name. Where a name does not occur equally often (a library chose another kernel, a compiler
joined some) its kernels go by their names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from roofgap.e2e.breakdown.timeline import Kernel

LINEARS = ("q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down", "head")
ROLES = (*LINEARS, "attention", "norms", "other")
"""Every role, in the order in which reports list them. ``other``: embedding, SwiGLU, residual adds, sampling,
counters.
"""

# Parts of the names of kernels that tell what they are; searched in this order.
_BY_NAME = (
    ("attention", "attention"),
    ("flash", "attention"),
    ("fmha", "attention"),
    ("softmax", "attention"),
    ("rms_norm", "norms"),
    ("layernorm", "norms"),
)


def module_roles(paths: Sequence[str], linears: Mapping[str, str]) -> dict[str, str]:
    """Role of each module that gets a range: linears as given, attention and norms by transformers' names.

    Args:
        paths: of all modules of a model.
        linears: role of each linear by path.
    """
    found = {path: "attention" for path in paths if path.endswith((".self_attn", "rotary_emb"))}
    found |= {path: "norms" for path in paths if path.endswith("norm")}
    return found | dict(linears)


def role_by_name(name: str) -> str:
    """The role that a kernel's name gives away, else ``other``."""
    lowered = name.lower()
    return next((role for part, role in _BY_NAME if part in lowered), "other")


def own_role(kernel: Kernel) -> str:
    """The role of the range a kernel was launched in, else by its name."""
    return role_by_name(kernel.name) if kernel.role is None else kernel.role


def assign(step: Sequence[Kernel], template: Sequence[Kernel] | None) -> tuple[list[Kernel], int]:
    """The kernels of a step, each with a role, and how many of them only their names told.

    Args:
        step: of a graph's replay, or of an eager loop.
        template: an eager step of the same model with ranges around its modules; None for nothing but names.
    """
    known: dict[str, list[str]] = defaultdict(list)
    for kernel in template or ():
        known[kernel.name].append(own_role(kernel))
    counts = Counter(kernel.name for kernel in step)
    turns = {name: iter(roles) for name, roles in known.items() if len(roles) == counts[name]}
    found = [
        replace(kernel, role=next(turns[kernel.name]) if kernel.name in turns else own_role(kernel))
        for kernel in step
    ]
    return found, sum(kernel.role is None and kernel.name not in turns for kernel in step)
