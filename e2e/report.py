"""How a comparison is shown: a table to paste, llama-bench-like JSON lines, a result file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from roofgap.e2e.plan import PlanRow
from roofgap.e2e.rows import Row


def table_cells(row: Row) -> dict[str, Any]:
    """The columns that people read."""
    if row.status != "ok":
        return {"arm": row.arm, "depth": row.depth, "verdict": f"{row.status}: {row.evidence}"}
    return {
        "arm": row.arm,
        "depth": row.depth,
        "tok/s": row.tok_s,
        "95 % CI": _span(row.tok_s_low, row.tok_s_high, "{:,.1f}"),
        "ms": row.ms_per_token,
        "GPU busy ms": row.busy_ms,
        "host gap ms": row.host_gap_ms,
        "MB/token": _scaled(row.bytes_per_token, 1e6),
        "weights|scales|head|KV": "|".join(
            "-" if value is None else f"{value / 1e6:.0f}"
            for value in (row.code_bytes, row.scale_bytes, row.head_bytes, row.kv_bytes)
        ),
        "GB/s": row.read_gbps,
        "% read": row.pct_of_read_bandwidth,
        "ceiling": row.ceiling_tok_s,
        "published ceiling": row.published_ceiling_tok_s,
        "over best bf16": _speedup(row),
        "memory GB": _scaled(row.memory_bytes, 1e9),
        "launches": row.launches_per_token,
        "top-1": row.top1,
        "ppl": row.perplexity if row.perplexity is not None else "n/a",
        "delta NLL": _plus_minus(row.delta_nll, row.delta_nll_se),
        "KL": row.kl,
        "tuned": row.tuned,
        "verdict": "; ".join(filter(None, (row.verdict, row.note))),
    }


def shown_columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Columns in which at least one row says something."""
    columns = table_cells(Row(arm="", model="", depth=0))
    return [name for name in columns if any(row.get(name) not in (None, "n/a") for row in rows)]


def markdown(rows: Iterable[Row]) -> str:
    """The comparison as a table to paste."""
    cells = [table_cells(row) for row in rows]
    return markdown_table(cells, shown_columns(cells))


def plan_cells(row: PlanRow) -> dict[str, Any]:
    """The columns of a plan."""
    return {
        "arm": row.arm,
        "linears": row.weights,
        "head": row.head,
        "memory GB": row.memory_gb,
        "peak GB": row.peak_gb,
        "fits": row.fits,
        "MB/token": row.token_mb,
        "weights|scales|head|KV": f"{row.code_mb:.0f}|{row.scale_mb:.0f}|{row.head_mb:.0f}|{row.kv_mb:.0f}",
        "ceiling": row.ceiling_tok_s,
        "published ceiling": row.published_tok_s,
        "matrix kernels": row.matrix_launches,
        "with launch floors": row.floor_tok_s,
        "bound": row.bound,
    }


def markdown_table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows as a Markdown table; columns of numbers are right-aligned."""
    numeric = [any(isinstance(row.get(name), int | float) for row in rows) for name in columns]
    rule = ["---:" if right else "---" for right in numeric]
    lines = [list(columns), rule, *([cell(row.get(name)) for name in columns] for row in rows)]
    return "".join(f"| {' | '.join(text.replace('|', '/') for text in line)} |\n" for line in lines)


def llama_bench_line(row: Row) -> dict[str, Any]:
    """A row under llama-bench's names, so that its readers and scripts know what is what. Our own follow."""
    names: dict[str, Any] = {
        "test": f"tg{row.n_gen}",
        "model_type": f"{row.model} {row.weights}, head {row.head}",
        "n_prompt": 0,
        "n_gen": row.n_gen,
        "n_depth": row.depth,
        "avg_ts": row.tok_s,
        "stddev_ts": None if row.cv is None or row.tok_s is None else row.cv * row.tok_s,
        "avg_ns": None if row.ms_per_token is None else round(row.ms_per_token * row.n_gen * 1e6),
        "model_size": None
        if row.bytes_per_token is None
        else round(row.bytes_per_token - (row.kv_bytes or 0)),
    }
    return names | row.cells()


def jsonl(rows: Iterable[Row]) -> str:
    """One llama-bench-like object a line."""
    return "".join(json.dumps(llama_bench_line(row), allow_nan=False) + "\n" for row in rows)


def _speedup(row: Row) -> str | None:
    if row.speedup is None:
        return None
    span = _span(row.speedup_low, row.speedup_high, "{:.2f}")
    return f"{row.speedup:.2f} ({span}) of {row.possible_speedup or 0:.2f}"


def _span(low: float | None, high: float | None, form: str) -> str | None:
    return None if low is None or high is None else f"{form.format(low)}-{form.format(high)}"


def _plus_minus(value: float | None, error: float | None) -> str | None:
    return None if value is None else f"{value:+.3f} ± {error or 0:.3f}"


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def cell(value: Any) -> str:
    """A figure as people read it: four significant digits, a dash for nothing."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
