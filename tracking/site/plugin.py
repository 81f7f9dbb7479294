"""asv plug-in: ``asv publish`` writes our pages beside its own and a site that needs no network.

Written against asv 0.6.6. Leans on names that asv does not promise: ``Publish.run`` as a class method of
``(conf, range_spec, pull)``, ``OutputPublisher.publish`` and its arguments, ``GraphSet`` iteration, ``Graph``'s
``get_data``, ``get_steps``, ``scalar_series`` and ``params``, ``Git._path``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from asv.commands.publish import Publish
from asv.console import log
from asv.publishing import OutputPublisher

from roofgap.tracking.site import git
from roofgap.tracking.site.history import history_data
from roofgap.tracking.site.offline import make_self_contained
from roofgap.tracking.site.pages import write_page
from roofgap.tracking.site.roofline import roofline_data
from roofgap.tracking.site.series import read_series
from roofgap.tracking.site.tuning import FOLDER, tuning_data

COMMIT_PAGE = "history.html#c-"


class RoofgapPages(OutputPublisher):  # type: ignore[misc] # asv carries no types
    """Regression history, roofline and tuning pages."""

    name = "roofgap"
    button_label = "History, roofline, tuning"
    description = "Every step of every series, distance from the roof, winners over commits"
    order = 10

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
        """Writes the three pages. asv has changed into the folder of asv.conf.json."""
        html_dir, repository = Path(conf.html_dir), Path(repo._path)
        hashes = {revision: commit_hash for commit_hash, revision in revisions.items()}
        series = list(read_series(conf, benchmarks, graphs))
        pages = {
            "history": history_data(
                series,
                hashes,
                suspects=lambda a, b: repo.get_hashes_from_range(repo.get_range_spec(a, b)),
                describe=functools.partial(git.describe, repository),
            ),
            "roofline": roofline_data(Path("results"), series, hashes),
            "tuning": tuning_data(git.file_history(repository, conf.branches[0] or "HEAD", FOLDER)),
        }
        for name, data in pages.items():
            for problem in data.get("problems", ()):
                log.warning(problem)
            write_page(html_dir, name, data)


def setup() -> None:
    """Called by asv when it loads the plug-in: ``Publish.run`` finishes the site from now on."""
    if getattr(Publish.run, "finishes_site", False):
        return
    publish = Publish.run.__func__

    def run(cls: type[Publish], conf: Any, *args: Any, **kwargs: Any) -> Any:
        if conf.show_commit_url == "#":  # asv's default: a link to nowhere
            conf.show_commit_url = COMMIT_PAGE
        status = publish(cls, conf, *args, **kwargs)
        make_self_contained(Path(conf.html_dir))
        return status

    run.finishes_site = True  # type: ignore[attr-defined]
    Publish.run = classmethod(run)
