"""Folders of winners: where they are looked for, how one is read, and when one may be replaced."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from pydantic import ValidationError

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.files import write_text
from roofgap.tuning.storage import digest, exclusive, sync_folder
from roofgap.tuning.winner import SCHEMA, Identity, Provenance, Winner

ENVIRONMENT = "ROOFGAP_WINNERS"
PROVENANCE_FIELDS = ("driver", "cuda", "torch", "triton", "source_hash", "space_hash")


@dataclass(frozen=True, slots=True)
class Lookup:
    """Answer to "which config for this identity": a winner or None, with every place looked at and what it
    said.
    """

    winner: Winner | None
    path: Path | None
    steps: tuple[tuple[Path, str], ...]


def folders() -> list[Path]:
    """Folders in order of precedence: the project's, the user's, the ones shipped with the package.

    The project's is ``$ROOFGAP_WINNERS``, else ``tuning/winners`` of the repository that holds the current
    folder.
    """
    found = [project_folder(), user_folder(), shipped_folder()]
    return list(dict.fromkeys(folder for folder in found if folder is not None))


def project_folder() -> Path | None:
    """The project's own winners, or None outside a project."""
    if named := os.environ.get(ENVIRONMENT):
        return Path(named).expanduser().resolve()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "tuning" / "winners").is_dir():
            return (folder / "tuning" / "winners").resolve()
        if (folder / ".git").exists():
            return None
    return None


def user_folder() -> Path:
    """The user's winners, for work outside any project."""
    import platformdirs

    return platformdirs.user_data_path("roofgap") / "winners"


def shipped_folder() -> Path | None:
    """Winners in the installed package: read, never written."""
    folder = resources.files("roofgap.tuning") / "winners"
    return Path(str(folder)).resolve() if folder.is_dir() else None


def writable_folder() -> Path:
    """Where a tuning run publishes: the project's folder, else the user's; never the installed package."""
    return project_folder() or user_folder()


def path_in(folder: Path, identity: Identity) -> Path:
    """``<folder>/<gpu>/<variant>/<problem>.json``."""
    return folder / identity.gpu / identity.variant / identity.file_name


def find(identity: Identity, searched: list[Path] | None = None) -> Lookup:
    """The first winner of exactly this identity.

    Raises:
        RoofgapError: a file on the way is damaged, foreign or of a later schema; the message names it.
    """
    steps: list[tuple[Path, str]] = []
    for folder in folders() if searched is None else searched:
        path = path_in(folder, identity)
        if not path.is_file():
            steps.append((path, "no such file"))
            continue
        winner = load(path)
        differing = differences(winner.identity.model_dump(), identity.model_dump())
        if not differing:
            steps.append((path, "hit"))
            return Lookup(winner, path, tuple(steps))
        steps.append((path, "; ".join(differing)))
    return Lookup(None, None, tuple(steps))


def load(path: Path) -> Winner:
    """Reads one winner.

    Raises:
        RoofgapError: not JSON, not a winner, of a later schema, or lying under another identity's path.
    """
    broken = RoofgapError(f"winner {path}", "is damaged", "restore it from git, or delete it and tune again")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RoofgapError(
            f"winner {path}", f"cannot be read ({error.strerror})", "check its permissions"
        ) from error
    except ValueError as error:
        raise broken from error
    schema = fields.get("schema") if isinstance(fields, dict) else None
    if not isinstance(schema, int):
        raise RoofgapError(f"{path}", "is not a winner file", "move it out of the winners folder")
    if schema > SCHEMA:
        raise RoofgapError(
            f"winner {path}", f"has schema {schema}, this version reads up to {SCHEMA}", "update roofgap"
        )
    try:
        winner = Winner.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RoofgapError(
            f"winner {path}", f"field {where}: {first['msg']}", "restore it from git, or tune again"
        ) from error
    expected = (winner.identity.gpu, winner.identity.variant, winner.identity.file_name)
    if path.parts[-3:] != expected:
        raise RoofgapError(
            f"winner {path}", f"says it belongs at {'/'.join(expected)}", "move it there, or delete it"
        )
    return winner


def load_all(folder: Path) -> dict[Path, Winner | RoofgapError]:
    """Every winner of a folder by path, a damaged one as the error it raised."""
    found: dict[Path, Winner | RoofgapError] = {}
    for path in sorted(folder.glob("*/*/*.json")):
        try:
            found[path] = load(path)
        except RoofgapError as error:
            found[path] = error
    return found


def save(folder: Path, winner: Winner) -> Path:
    """Writes a winner whole or not at all, and returns its path.

    Raises:
        RoofgapError: the folder lies in the installed package, or cannot be written.
    """
    path = path_in(folder, winner.identity)
    if "site-packages" in folder.resolve().parts:
        raise RoofgapError(
            f"{folder}", "belongs to the installed package", f"set {ENVIRONMENT} to a folder of your own"
        )
    write_text(path, winner.to_json())
    sync_folder(path.parent)
    return path


def publish(folder: Path, winner: Winner) -> tuple[Path | None, str]:
    """Replaces the folder's winner unless the new one gains nothing. Returns the path written (or None) and
    the reason.

    The comparison with the default and with the previous winner was measured in the same interleaved rounds
    as the winner itself (``winner.default``, ``winner.previous``); nothing is compared across sessions. Two
    tuners publishing the same identity take turns.

    Raises:
        RoofgapError: the winner already there is damaged, or the folder cannot be written.
    """
    path = path_in(folder, winner.identity)
    lock = Path(gettempdir()) / f"roofgap-{os.getuid()}" / f"{digest(str(path))}.lock"
    with exclusive(lock, f"winner {path}", "wait for the other tuner", timeout_s=30.0):
        if winner.default is not None and winner.default.ratio < 1.0 / (1.0 + winner.tie_band):
            return None, f"the default is faster by {1.0 / winner.default.ratio - 1.0:.1%}"
        if path.is_file():
            old = load(path)
            if reason := _keeps(old, winner):
                return None, reason
        return save(folder, winner), "published"


def _keeps(old: Winner, new: Winner) -> str | None:
    """Why the old winner stays, or None."""
    if old.identity != new.identity:
        return None
    if old.provenance.run not in (new.provenance.replaces, new.provenance.run):
        return "another run published meanwhile; tune again to compare with it"
    if old.config == new.config:
        return None if stale_fields(old.provenance, new.provenance) else "unchanged"
    if new.previous is not None and new.previous.ratio < 1.0 / (1.0 + new.tie_band):
        return f"the previous winner is faster by {1.0 / new.previous.ratio - 1.0:.1%}"
    return None


def stale_fields(stored: Provenance, current: Provenance) -> list[str]:
    """Provenance fields that differ, as ``field: stored -> current``. ``unknown`` differs from everything."""
    left = {**stored.model_dump(), **stored.toolchain.model_dump()}
    right = {**current.model_dump(), **current.toolchain.model_dump()}
    return [
        f"{name}: {left[name]} -> {right[name]}"
        for name in PROVENANCE_FIELDS
        if left[name] != right[name] or left[name] == "unknown"
    ]


def differences(stored: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Fields of two flat records that differ, as ``field: stored, wanted``."""
    return [
        f"{name} is {stored[name]}, wanted {wanted[name]}" for name in wanted if stored[name] != wanted[name]
    ]


def merge(source: Path, into: Path) -> list[Path]:
    """Copies winners; where both folders have one, the later stays. Order and repetition do not matter.

    Raises:
        RoofgapError: a winner in either folder is damaged, or ``into`` cannot be written.
    """
    copied = []
    for winner in load_all(source).values():
        if isinstance(winner, RoofgapError):
            raise winner
        there = path_in(into, winner.identity)
        if there.is_file() and _age(load(there)) >= _age(winner):
            continue
        copied.append(save(into, winner))
    return copied


def _age(winner: Winner) -> tuple[str, str, str]:
    """Sort key: date, then run and text so that two of one second have an order too."""
    return winner.provenance.date, winner.provenance.run, winner.to_json()
