"""asv promises none of the names below. If one is gone, this says so before history quietly goes wrong."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("asv", reason="asv is not installed")

from asv import benchmarks, config, environment, graph, machine, publishing, results, runner
from asv.commands import compare, publish
from asv.plugins import git
from asv_runner import benchmarks as runner_benchmarks
from asv_runner import discovery
from asv_runner.benchmarks import _base

OWNED = {
    config.Config: ("load", "from_json"),
    environment.Environment: (
        "_set_commit_hash",
        "_get_installed_commit_hash",
        "_set_installed_commit_hash",
        "checkout_project",
        "run_executable",
        "check_presence",
        "install_project",
        "_setup",
    ),
    machine.Machine: ("load", "get_unique_machine_name", "get_defaults"),
    machine.MachineCollection: ("save", "load"),
    results.Results: ("load", "save", "get_result_samples", "get_result_stats"),
    publishing.OutputPublisher: ("publish",),
    publish.Publish: ("run",),
    graph.Graph: ("get_data", "get_steps"),
    git.Git: ("get_range_spec", "get_hashes_from_range"),
    benchmarks.Benchmarks: ("discover", "save", "load"),
    _base.Benchmark: ("do_setup", "do_run", "do_setup_cache", "insert_param"),
}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in OWNED.items() for name in names], ids=str
)
def test_a_name_that_we_lean_on_exists(owner: type, name: str) -> None:
    assert hasattr(owner, name), f"{owner.__qualname__}.{name} is gone: asv's internals have changed"


def test_the_environment_still_reads_what_ours_sets() -> None:
    source = inspect.getsource(environment.Environment)
    for name in ("_path", "_build_root", "_python", "_requirements", "_base_requirements"):
        assert f"self.{name}" in source, f"Environment.{name} is gone"


def test_suites_can_still_register_a_type() -> None:
    assert discovery.benchmark_types is runner_benchmarks.benchmark_types, "discovery has a list of its own"
    source = inspect.getsource(runner)
    for text in ("'samples' in data and 'number' in data", "benchmark.get('rounds', 1)"):
        assert text in source, f"{text}: how a benchmark hands over samples has changed"


def test_samples_are_still_compared_by_rank() -> None:
    assert "is_different" in inspect.getsource(compare)


def test_machine_files_still_keep_extra_keys() -> None:
    assert "self.__dict__" in inspect.getsource(machine.Machine.save)
