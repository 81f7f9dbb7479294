"""Why a cell's value moved: what else differs between the two commits' readings of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_ROWS = 6


def explain(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Lines about two readings of one cell: config, sources, machine code, registers, instructions, bytes.

    Args:
        before: ``{"metrics": ..., "facts": ...}`` of the first commit.
        after: the same of the second.
    """
    old, new = before.get("facts", {}), after.get("facts", {})
    lines = [_config(old, new)]
    lines += [_same_or_not(old, new, "source_hash", "kernel source")]
    lines += [_same_or_not(old, new, "code_hash", "machine code")]
    old_metrics, new_metrics = before.get("metrics", {}), after.get("metrics", {})
    resources = [
        f"{name.replace('_', ' ')} {old_metrics[name]} -> {new_metrics[name]}"
        for name in ("registers", "spill_bytes", "shared_bytes")
        if name in old_metrics and name in new_metrics and old_metrics[name] != new_metrics[name]
    ]
    lines += [", ".join(resources)]
    lines += [_histogram(old, new, "instructions", "instructions per weight")]
    lines += [_histogram(old, new, "bytes", "bytes")]
    return tuple(line for line in lines if line)


def _config(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    was, now = old.get("config"), new.get("config")
    if was is None or now is None:
        return ""
    if was == now:
        return f"config unchanged: {now} ({new.get('config_source', 'default')})"
    return f"config {was} ({old.get('config_source', 'default')}) -> {now} ({new.get('config_source', 'default')})"


def _same_or_not(old: Mapping[str, Any], new: Mapping[str, Any], name: str, title: str) -> str:
    was, now = old.get(name), new.get(name)
    if was is None or now is None:
        return ""
    return f"{title} unchanged" if was == now else f"{title} {was[:12]} -> {now[:12]}"


def _histogram(old: Mapping[str, Any], new: Mapping[str, Any], name: str, title: str) -> str:
    was, now = old.get(name) or {}, new.get(name) or {}
    moved = {kind: now.get(kind, 0) - was.get(kind, 0) for kind in was | now}
    largest = sorted((kind for kind in moved if moved[kind]), key=lambda kind: -abs(moved[kind]))[:MOST_ROWS]
    rows = (f"{kind} {was.get(kind, 0):g} -> {now.get(kind, 0):g} ({moved[kind]:+g})" for kind in largest)
    text = ", ".join(rows)
    return f"{title}: {text}" if text else ""
