"""``roofgap tune``: finds the fastest right config of every problem, and says how sure it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofgap.cli.output import print_json, print_table
from roofgap.cli.targets import numbers_of, problems_of
from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.kernels.variant import Variant
    from roofgap.shapes.problem import Problem
    from roofgap.tuning.measure.policy import MeasurePolicy
    from roofgap.tuning.outcome import Outcome
    from roofgap.tuning.runner import Runner
    from roofgap.tuning.tune import Published, TuneRequest

    Results = list[tuple[Outcome, Published]]


def tune(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="SHAPE|MANIFEST", help="NxK, or a manifest by name or file; several joined by commas."
        ),
    ] = None,
    *,
    variant: Annotated[str | None, typer.Option(help="Kernel variant to tune.")] = None,
    m: Annotated[str, typer.Option(help="Rows of activations (tokens), joined by commas.")] = "1",
    group_size: Annotated[int, typer.Option(help="Weights per scale; -1 for the whole row.")] = 128,
    dtype: Annotated[str, typer.Option(help="Activations and scales: fp16 or bf16.")] = "fp16",
    zero_mode: Annotated[str, typer.Option(help="sym, asym or offset.")] = "sym",
    bias: Annotated[bool, typer.Option("--bias", help="Add a bias (a manifest knows by itself).")] = False,
    fused: Annotated[bool, typer.Option("--fused", help="q|k|v and gate|up joined.")] = False,
    include_fused: Annotated[bool, typer.Option("--include-fused", help="Apart and joined.")] = False,
    strategy: Annotated[
        str,
        typer.Option(
            help="racing, local, random or exhaustive. Two joined by a comma run one after the other, and "
            "their picks are re-measured in turns. With --replay: any number, or all."
        ),
    ] = "racing",
    budget: Annotated[str, typer.Option(help="quick, default, exhaustive, or a time like 120s.")] = "default",
    chained: Annotated[
        bool,
        typer.Option(
            "--chained",
            help="For programmatic dependent launches (sm_90 on): winners of their own, which decoding then uses.",
        ),
    ] = False,
    gpus: Annotated[str, typer.Option(help="CUDA indices, joined by commas; a problem stays on one.")] = "0",
    seed: Annotated[int, typer.Option(help="Of every random choice.")] = 0,
    run: Annotated[str | None, typer.Option(help="Name of the run. Default: date, variant, target.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue this run; its request is in its journal.")
    ] = None,
    winners: Annotated[Path | None, typer.Option(help="Folder to publish in.")] = None,
    publish: Annotated[bool, typer.Option(help="Publish winners.")] = True,
    check_buckets: Annotated[
        bool,
        typer.Option(
            "--check-buckets", help="Also tune the least M each bucket serves; say what the bucket costs."
        ),
    ] = False,
    probe: Annotated[bool, typer.Option(help="Sweep the stream probe for the attainable gap.")] = True,
    record_sweep: Annotated[
        Path | None, typer.Option(help="Try everything and record it below this folder for --replay.")
    ] = None,
    replay: Annotated[
        list[Path] | None, typer.Option(help="Recorded sweep to search instead of a GPU; repeat it.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Searches per strategy and sweep, with --replay.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Tune a shape or a model's shapes on this machine's GPU; publish the winners."""
    if replay:
        _replay(replay, strategy, budget, seeds=seeds, as_json=as_json)
        return
    if resume is None and (target is None or variant is None):
        raise RoofgapError(
            "tune", "needs SHAPE|MANIFEST and --variant", "give both, or --resume RUN, or --replay FILE"
        )
    from roofgap.kernels.registry import get_variant
    from roofgap.tuning import winners_store
    from roofgap.tuning.audit import audit
    from roofgap.tuning.budget import parse_budget
    from roofgap.tuning.gpu_session import make_request, open_gpus, require_gpu
    from roofgap.tuning.measure.policy import CHAINED, COLD
    from roofgap.tuning.sweep import record
    from roofgap.tuning.tune import JOURNALS, run_path

    strategies = _strategies(strategy, recorded=record_sweep is not None)
    indices = numbers_of("gpus", gpus, least=0)
    require_gpu(indices)
    if resume is not None:
        variant, problems, strategies, budget, seed, policy = _stored(run_path(JOURNALS, resume))
    else:
        fields = {"group_size": group_size, "x_dtype": dtype, "zero_mode": zero_mode}
        problems = problems_of(str(target), m, fused=fused, also_fused=include_fused, bias=bias, **fields)
        policy = CHAINED if chained else COLD
    kernel = get_variant(str(variant))
    name = resume or run or _run_name(kernel, str(target))
    path = run_path(JOURNALS, name)
    if path.exists() and resume is None:
        raise RoofgapError(
            f"run {name}", "exists", f"continue it with --resume {name}, or choose another --run"
        )
    problems = [problem for problem in problems if _supported(kernel, problem)]
    folder = (winners or winners_store.writable_folder()) if publish else None
    limits = parse_budget(budget)
    with open_gpus(indices, limits, policy=policy, seed=seed, probe=probe) as (hello, runners):
        request = make_request(kernel, problems, hello, strategies[0], limits, seed=seed, policy=policy)
        results = _run(request, runners, path, folder)
        swept = (path, request, results)
        audited: list[dict[str, Any]] = []
        if len(strategies) == 2:
            again = replace(request, strategy=strategies[1], seed=seed + 1, seeded=False)
            second = _run(again, runners, run_path(JOURNALS, f"{name}.second"), None)
            if strategies[1] == "exhaustive":
                swept = (run_path(JOURNALS, f"{name}.second"), again, second)
            audited = audit(request, runners[0], _outcomes(results), _outcomes(second))
        if check_buckets:
            audited += _check_buckets(request, runners, _outcomes(results), name)
    if record_sweep is not None:
        recorded, asked, found = swept
        for file in record(record_sweep, recorded, asked, _outcomes(found), hello.versions):
            print(f"recorded {file}", file=sys.stderr)
    _print(results, audited, name, as_json=as_json)
    if any(outcome.winner is None for outcome, _ in results):
        raise typer.Exit(1)


def _check_buckets(
    request: TuneRequest, runners: Sequence[Runner], outcomes: list[Outcome], name: str
) -> list[dict[str, Any]]:
    """Tunes the least M that each bucket serves, and sets the bucket's winner beside that M's own."""
    from roofgap.tuning.audit import audit, held_out, is_bucket
    from roofgap.tuning.tune import JOURNALS, run_path

    pairs = zip(outcomes, request.problems, strict=True)
    buckets = [(outcome, problem) for outcome, problem in pairs if is_bucket(problem)]
    below = replace(request, problems=tuple(held_out([problem for _, problem in buckets])), seeded=False)
    own = _run(below, runners, run_path(JOURNALS, f"{name}.buckets"), None)
    return audit(below, runners[0], [outcome for outcome, _ in buckets], _outcomes(own))


def _run_name(variant: Variant, target: str) -> str:
    """Date, variant and target, fit for a file name."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{variant.name}-{Path(target).name.removesuffix('.json')}"


def _strategies(text: str, *, recorded: bool) -> list[str]:
    """One or two names; a sweep can only be recorded by exhaustive search.

    Raises:
        RoofgapError: another number, or an unknown one.
    """
    from roofgap.tuning.search.registry import get_strategy

    names = text.split(",")
    for name in names:
        get_strategy(name)
    if len(names) > 2:
        raise RoofgapError(f"--strategy {text}", "must name one or two", "compare more of them with --replay")
    return ["exhaustive"] if recorded and "exhaustive" not in names else names


def _stored(path: Path) -> tuple[str, list[Problem], list[str], str, int, MeasurePolicy]:
    """Variant, problems, strategy, budget, seed and policy of a journal."""
    from roofgap.shapes.problem import Problem
    from roofgap.tuning.measure.policy import policy_of
    from roofgap.tuning.tune import stored_header

    header = stored_header(path)
    problems = [Problem(**fields) for fields in header.shapes]
    return header.variant, problems, [header.strategy], header.budget, header.seed, policy_of(header.policy)


def _supported(variant: Variant, problem: Problem) -> bool:
    """Whether the variant computes the problem; says so if not."""
    reason = variant.supports(problem)
    if reason is not None:
        print(f"{problem.key} left out: {reason}", file=sys.stderr)
    return reason is None


def _run(request: TuneRequest, runners: Sequence[Runner], path: Path, folder: Path | None) -> Results:
    from roofgap.tuning.report import Bars, Lines
    from roofgap.tuning.tune import tune as run_tuner

    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    with Bars() if sys.stderr.isatty() else Lines() as observer:
        return run_tuner(request, runners, journal_path=path, winners=folder, date=date, observer=observer)


def _outcomes(results: Results) -> list[Outcome]:
    return [outcome for outcome, _ in results]


def _print(results: Results, audited: list[dict[str, Any]], run: str, *, as_json: bool) -> None:
    from roofgap.tuning.report import closing_lines, result_rows

    rows = result_rows(results)
    if as_json:
        outcomes = [outcome.model_dump(mode="json", by_alias=True) for outcome, _ in results]
        print_json({"run": run, "rows": rows, "audit": audited, "outcomes": outcomes})
        return
    columns = list(dict.fromkeys(column for row in rows for column in row))
    print_table(rows, columns, title=f"run {run}")
    if audited:
        print_table(audited, list(audited[0]), title="first pick against the second, re-measured in turns")
        regrets = [row["regret_pct"] for row in audited if row.get("regret_pct") is not None]
        if regrets:
            print(f"median regret {median(regrets):.2f} %")
    for line in closing_lines(results):
        print(line)


def _replay(paths: list[Path], strategy: str, budget: str, *, seeds: int, as_json: bool) -> None:
    from roofgap.tuning.budget import parse_budget
    from roofgap.tuning.replay import compare_strategies
    from roofgap.tuning.search.registry import STRATEGIES, get_strategy
    from roofgap.tuning.sweep import load_sweep

    if seeds < 1:
        raise RoofgapError(f"--seeds {seeds}", "must be at least 1", "correct it")
    names = list(STRATEGIES) if strategy == "all" else strategy.split(",")
    for name in names:
        get_strategy(name)
    files = [file for path in paths for file in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise RoofgapError(f"--replay {paths[0]}", "holds no sweep", "give a file or a folder of sweeps")
    rows, summary = compare_strategies(
        [load_sweep(file) for file in files], names, parse_budget(budget), seeds
    )
    if as_json:
        print_json({"rows": rows, "summary": summary})
        return
    print_table(rows, title="on recorded sweeps, medians over seeds")
    print_table(summary, title="all sweeps together")
