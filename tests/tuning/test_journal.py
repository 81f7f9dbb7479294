from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.journal import SCHEMA, Entry, open_journal, read_journal

HEADER = {"schema": SCHEMA, "run": "r"}
PAYLOADS = st.dictionaries(
    st.text(max_size=5), st.integers() | st.text(max_size=9) | st.booleans(), max_size=3
)


def write(path: Path, payloads: list[dict[str, object]]) -> None:
    with open_journal(path) as journal:
        journal.append("header", HEADER)
        for payload in payloads:
            journal.append("trial", payload)


@settings(max_examples=30, deadline=None)
@given(payloads=st.lists(PAYLOADS, max_size=5))
def test_what_was_appended_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[dict[str, object]]
):
    path = tmp_path_factory.mktemp("j") / "run.jsonl"
    write(path, payloads)
    assert read_journal(path)[1:] == [Entry("trial", payload) for payload in payloads]


def test_cut_at_every_byte_keeps_every_whole_line(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    write(path, [{"i": 1}, {"i": 2}])
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        with open_journal(path) as journal:
            assert len(journal.entries) == complete
            journal.append("header" if complete == 0 else "trial", HEADER)
        assert len(read_journal(path)) == complete + 1


def test_torn_bytes_are_kept_beside(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    write(path, [{"i": 1}])
    path.write_bytes(path.read_bytes() + b'{"seq":2,"ki')
    with open_journal(path) as journal:
        assert journal.recovered == 12
    assert (tmp_path / "run.jsonl.torn").read_bytes() == b'{"seq":2,"ki'


def _flip(text: bytes) -> bytes:
    return text.replace(b'"i":1', b'"i":7')


def _drop_line(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join(lines[:1] + lines[2:])


def _swap(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join([lines[0], lines[2], lines[1], lines[3]])


@pytest.mark.parametrize("damage", [_flip, _drop_line, _swap])
def test_damage_before_the_last_line_names_file_and_line(tmp_path: Path, damage):
    path = tmp_path / "run.jsonl"
    write(path, [{"i": 1}, {"i": 2}, {"i": 3}])
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(RoofgapError, match=r"run\.jsonl, line 2"), open_journal(path):
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b"\x00\x01\x02\n", b"[1]\n", b'{"a": 1}\n', b"\n"])
def test_a_foreign_file_is_refused_and_untouched(tmp_path: Path, content: bytes):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(RoofgapError, match="line 1"), open_journal(path):
        pass
    assert path.read_bytes() == content


def test_a_later_schema_is_refused(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with open_journal(path) as journal:
        journal.append("header", {"schema": SCHEMA + 1})
    with pytest.raises(RoofgapError, match=f"schema {SCHEMA + 1}"):
        read_journal(path)


def test_two_at_once_are_refused(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with open_journal(path), pytest.raises(RoofgapError, match="in use"), open_journal(path):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom roofgap.tuning.journal import open_journal\n"
        f"with open_journal(Path({str(path)!r})) as journal:\n"
        f"    journal.append('header', {HEADER!r})\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path).returncode == -9
    with open_journal(path) as journal:
        assert len(journal.entries) == 1


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_full_disk_is_one_error_and_loses_nothing(tmp_path: Path, monkeypatch, failing: str):
    path = tmp_path / "run.jsonl"
    write(path, [{"i": 1}])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_journal(path) as journal:
        monkeypatch.setattr(os, failing, full)
        with pytest.raises(RoofgapError, match="No space left"):
            journal.append("trial", {"i": 2})
        monkeypatch.undo()
        with pytest.raises(RoofgapError, match="failed an earlier write"):
            journal.append("trial", {"i": 2})
    assert [entry.data for entry in read_journal(path)][:2] == [HEADER, {"i": 1}]


def test_a_partial_write_is_continued(tmp_path: Path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:7])))
    path = tmp_path / "run.jsonl"
    write(path, [{"text": "long enough to need several writes"}])
    monkeypatch.undo()
    assert len(read_journal(path)) == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RoofgapError, match="cannot be written"),
        open_journal(tmp_path / "file" / "run.jsonl"),
    ):
        pass


def test_a_missing_journal(tmp_path: Path):
    with pytest.raises(RoofgapError, match="does not exist"):
        read_journal(tmp_path / "none.jsonl")


def test_nan_never_reaches_the_disk(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with open_journal(path) as journal, pytest.raises(ValueError, match="Out of range"):
        journal.append("header", {"schema": SCHEMA, "x": float("nan")})
    assert json.dumps([]) == "[]" and read_journal(path) == []
