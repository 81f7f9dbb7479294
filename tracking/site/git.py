"""What the pages need from git, read with plain argument lists."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

FORMAT = "%H%x00%ct%x00%s"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as a page names it; ``time_s`` is the committer's, seconds since 1970."""

    hash: str
    time_s: int
    subject: str

    @property
    def date(self) -> str:
        """UTC, to the minute."""
        return datetime.fromtimestamp(self.time_s, timezone.utc).strftime("%Y-%m-%d %H:%M")


@dataclass(frozen=True, slots=True)
class FileChange:
    """What one commit left at a path: its bytes, or None where the commit removed it."""

    commit: Commit
    path: str
    content: bytes | None


def run(repo: Path, *args: str, text: str = "") -> bytes:
    """Output of a git command.

    Raises:
        subprocess.CalledProcessError: git refused; its words are in ``stderr``.
    """
    return subprocess.run(
        ["git", *args], cwd=repo, input=text.encode(), capture_output=True, check=True
    ).stdout


def describe(repo: Path, hashes: Iterable[str]) -> dict[str, Commit]:
    """Date and subject of commits, by hash."""
    wanted = sorted(set(hashes))
    if not wanted:
        return {}
    lines = run(
        repo, "log", "--no-walk=unsorted", "--stdin", f"--format={FORMAT}", text="\n".join(wanted)
    ).decode(errors="replace")
    commits = [_commit(line.split("\x00")) for line in lines.splitlines()]
    return {commit.hash: commit for commit in commits}


def file_history(repo: Path, branch: str, folder: str) -> list[FileChange]:
    """Every version of every file of a folder along a branch's first parents, oldest first.

    A merge counts as one change. An unknown branch or a repository without commits has no history.
    """
    try:
        run(repo, "rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}")
    except subprocess.CalledProcessError:
        return []
    listed = run(
        repo,
        *("log", "--first-parent", "-m", "--reverse", "--no-renames", "--raw", "--no-abbrev", "-z"),
        *(f"--format=%x01{FORMAT}%x00", branch, "--", folder),
    ).decode(errors="replace")
    found: list[tuple[Commit, str, str | None]] = []
    for block in listed.split("\x01")[1:]:
        *head, rest = block.split("\x00", 3)
        commit = _commit(head)
        fields = [field.lstrip("\n") for field in rest.split("\x00") if field.strip("\n")]
        for raw, path in zip(fields[::2], fields[1::2], strict=True):
            blob, status = raw.split(" ")[3:5]
            found.append((commit, path, None if status == "D" else blob))
    contents = _blobs(repo, {blob for _, _, blob in found if blob})
    return [FileChange(commit, path, contents[blob] if blob else None) for commit, path, blob in found]


def _commit(fields: list[str]) -> Commit:
    commit_hash, time_s, subject = fields
    return Commit(commit_hash, int(time_s), subject)


def _blobs(repo: Path, names: set[str]) -> dict[str, bytes]:
    """Contents of blobs; one git process for all of them."""
    output = run(repo, "cat-file", "--batch", text="".join(f"{name}\n" for name in sorted(names)))
    contents: dict[str, bytes] = {}
    while output:
        header, _, output = output.partition(b"\n")
        name, _, size = header.decode().split(" ")
        contents[name], output = output[: int(size)], output[int(size) + 1 :]
    return contents
