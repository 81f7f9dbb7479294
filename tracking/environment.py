"""asv environment ``overlay``: this interpreter's own packages, with each commit's roofgap in front of them.

asv's own environments install the project, and torch with it, once per commit, and need a network. This one
makes a bare venv once, lets it see the packages of the python that runs asv, and switches commits by
checking them out and linking their rooms: a second a commit, offline. Versions named in ``overlay_track``
(asv.conf.json) are part of the environment's name, so that a new torch or Triton starts a new series
instead of a false regression.

Written against asv 0.6.6; leans on ``Environment``'s ``_path``, ``_build_root``, ``_python``,
``_requirements``, ``_set_commit_hash``, ``_get_installed_commit_hash`` and ``_set_installed_commit_hash``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asv.environment import Environment, EnvironmentUnavailable

from roofgap.tracking import venv
from roofgap.tracking.venv import HOST_PYTHON, tracked_versions


class Overlay(Environment):  # type: ignore[misc] # asv carries no types
    """One venv per set of tracked versions; nothing is ever downloaded or built."""

    tool_name = "overlay"
    matches_python_fallback = False

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: Any) -> None:
        if not self.matches(python):
            raise EnvironmentUnavailable(
                f"overlay runs the python that runs asv ({HOST_PYTHON}), not {python}"
            )
        self._python = python
        self._requirements = {**requirements, **tracked_versions(conf.overlay_track)}
        super().__init__(conf, python, self._requirements, tagged_env_vars)
        self._base_requirements: dict[str, str] = {}  # what asv would download

    @classmethod
    def matches(cls, python: str) -> bool:
        """Only the interpreter that runs asv can lend its packages."""
        return python == HOST_PYTHON

    def check_presence(self) -> bool:
        """Whether the venv exists, for this very interpreter and its folders."""
        return venv.is_ready(Path(self._path))

    def install_project(self, conf: Any, repo: Any, commit_hash: str | None = None) -> None:
        """Checks the commit out and links its rooms."""
        if self._get_installed_commit_hash() != commit_hash:
            self._set_installed_commit_hash(None)
            self.checkout_project(repo, commit_hash)
            venv.install(Path(self._build_root), Path(self._path))
            self._set_installed_commit_hash(commit_hash)
        self._set_commit_hash(commit_hash)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        """Runs the venv's python."""
        return self.run_executable("python", args, **kwargs)

    def _setup(self) -> None:
        venv.make(Path(self._path))
