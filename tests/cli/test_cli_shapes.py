"""``roofgap shapes``: what it prints, what it writes, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from roofgap.cli.main import main
from roofgap.shapes.manifest import list_manifests, load_manifest, manifest_json, read_manifest

CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
Run = Callable[..., int]
Change = dict[str, object]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command as the console does; returns its exit code."""

    def call(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["roofgap", "shapes", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0)

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "My Model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    return model


def test_list_names_every_manifest(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in list_manifests())
    assert "1,543,714,304" in printed


def test_show_prints_matrices_and_provenance(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "orch-fusion") == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("2,816", "derived", "2815.6", "not its weights", "down_proj"))
    assert run("show", "orch-fusion", "--fused", "--json") == 0
    assert capsys.readouterr().out == manifest_json(load_manifest("orch-fusion").fused())


def test_check_takes_names_and_files(run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("check", *list_manifests()) == 0
    document = json.loads(manifest_json(load_manifest("orch-fusion")))
    document["matrices"][0]["n"] = 7
    document["parameters"] = 7
    (tmp_path / "bad.json").write_text(json.dumps(document))
    (tmp_path / "worse.json").write_text("{}")
    capsys.readouterr()
    assert run("check", "orch-fusion", tmp_path / "bad.json", tmp_path / "worse.json", "nowhere") == 2
    printed = capsys.readouterr()
    assert printed.out == "orch-fusion: ok\n"
    assert all(word in printed.err for word in ("parameters 7 differ", "worse.json", "nowhere"))


def test_extract_writes_what_it_would_print(
    run: Run, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    out = folder.parent / "made" / "model.json"
    assert run("extract", folder) == 0
    printed = capsys.readouterr().out
    assert run("extract", folder, "--out", out) == 0
    assert out.read_text() == printed
    assert read_manifest(out).model == "my-model"
    assert run("show", out) == 0
    assert run("check", out) == 0
    assert [path.name for path in out.parent.iterdir()] == ["model.json"]


def test_extract_replaces_only_when_forced(
    run: Run, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    out = folder / "out.json"
    out.write_text("precious")
    assert run("extract", folder, "--out", out) == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert run("extract", folder, "--out", out, "--force", "--name", "other") == 0
    assert read_manifest(out).model == "other"


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({"intermediate_size": 0}, [], "intermediate_size=0"),
        ({"num_attention_heads": 5}, [], "divide"),
        ({"model_type": "no-such-model"}, [], "no-such-model"),
        ({}, ["--head-dim", "8"], "head_dim=16"),
        ({}, ["--tied"], "tied"),
        ({}, ["--max-context", "-1"], "max_context"),
        ({}, ["--name", "../escape"], "model name"),
    ],
)
def test_a_failed_extract_writes_nothing(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    *,
    change: Change,
    options: list[str],
    says: str,
) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | change))
    assert run("extract", folder, "--out", folder / "out.json", *options) == 2
    assert says in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_options_reach_the_manifest(run: Run, folder: Path) -> None:
    out = folder / "out.json"
    options = ["--heads", 4, "--kv-heads", 2, "--head-dim", 16, "--untied", "--revision", "abc"]
    assert run("extract", folder, "--out", out, *options) == 0
    assert read_manifest(out).revision == "abc"


@pytest.mark.parametrize("command", [["list"], ["show", "orch-fusion"], ["check", "qwen2.5-72b"], ["--help"]])
def test_reading_commands_need_no_torch(command: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['roofgap', 'shapes', *{command!r}]\n"
        "from roofgap.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
