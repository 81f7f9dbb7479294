"""Steps, sparklines and the commands that measure a step again, from series written by hand."""

from __future__ import annotations

import dataclasses
import itertools
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofgap.tracking.site.history import gate_options, graph_link, pattern_of
from roofgap.tracking.site.pages import embedded, rounded
from roofgap.tracking.site.series import (
    Piece,
    Series,
    exact_pieces,
    plain,
    steps_of,
    threshold_of,
)
from roofgap.tracking.site.sparkline import HEIGHT, WIDTH, sparkline


def series(values: list[float], threshold: float = 0.0, first: int = 10) -> Series:
    """An exact series, a value for every second revision."""
    points = tuple((first + 2 * index, value) for index, value in enumerate(values))
    return Series(
        benchmark="static.Registers.track_registers",
        unit="registers",
        params={"variant": "v3", "m": "1"},
        raw_params={"variant": "'v3'", "m": "1"},
        machine={"machine": "laptop", "triton": "3.6.0"},
        points=points,
        pieces=exact_pieces(points),
        threshold=threshold,
    )


@pytest.mark.parametrize(
    ("values", "threshold", "expected"),
    [
        ([40, 40, 40], 0.0, []),
        ([40, 56, 56], 0.0, [(10, 12, 40, 56, "open", None, False)]),
        ([56, 40], 0.0, [(10, 12, 56, 40, "held", None, False)]),
        # A value that lasted one commit: a regression that was fixed, and a fall that held.
        ([32, 33, 32], 0.0, [(10, 12, 32, 33, "fixed", (12, 14), False), (12, 14, 33, 32, "held", None, False)]),
        # Half way back is not back.
        ([40, 60, 50], 0.0, [(10, 12, 40, 60, "open", None, False), (12, 14, 60, 50, "held", None, False)]),
        ([60, 40, 60], 0.0, [(10, 12, 60, 40, "lost", (12, 14), False), (12, 14, 40, 60, "open", None, False)]),
        # Within the threshold of the old level counts as back, and what is smaller than it is minor.
        ([50, 70, 51], 0.05, [(10, 12, 50, 70, "fixed", (12, 14), False), (12, 14, 70, 51, "held", None, False)]),
        ([100, 103], 0.05, [(10, 12, 100, 103, "open", None, True)]),
        ([0, 8, 0], 0.0, [(10, 12, 0, 8, "fixed", (12, 14), False), (12, 14, 8, 0, "held", None, False)]),
        # The fix is the first of two, and the steps after it have outcomes of their own.
        ([40, 50, 60, 40], 0.0, [
            (10, 12, 40, 50, "fixed", (14, 16), False),
            (12, 14, 50, 60, "fixed", (14, 16), False),
            (14, 16, 60, 40, "held", None, False),
        ]),
    ],
)  # fmt: skip
def test_steps(values: list[float], threshold: float, expected: list[tuple[object, ...]]) -> None:
    found = [
        (
            step.before_revision,
            step.after_revision,
            step.before,
            step.after,
            step.outcome,
            step.end,
            step.minor,
        )
        for step in steps_of(series(values, threshold))
    ]
    assert found == expected


def test_ratio_from_zero_is_absent() -> None:
    (step,) = steps_of(series([0, 8]))
    assert step.ratio is None


@given(st.lists(st.integers(0, 3), min_size=1))
def test_exact_pieces_cover_every_point_once(values: list[int]) -> None:
    points = tuple(enumerate(map(float, values)))
    pieces = exact_pieces(points)
    assert [
        value for piece in pieces for _ in range(piece.first, piece.last + 1) for value in [piece.value]
    ] == values
    assert all(old.value != new.value for old, new in itertools.pairwise(pieces))


def test_pieces_skip_missing_revisions() -> None:
    assert exact_pieces(((3, 1.0), (9, 1.0), (11, 2.0))) == (Piece(3, 9, 1.0), Piece(11, 11, 2.0))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("static.A.track_b(1)", 0.0), ("device.A.b", 0.03), ("host.A.b", 0.05), ("static.noisy.b", 0.5)],
)
def test_threshold_is_the_largest_that_matches(name: str, expected: float) -> None:
    conf = SimpleNamespace(
        regressions_thresholds={"static\\.": 0.0, "device\\..*@main$": 0.03, "static\\.noisy": 0.5}
    )
    assert threshold_of(conf, name, "main") == expected


@pytest.mark.parametrize(
    ("raw", "text"), [("'v3'", "v3"), ("16", "16"), ("<object>", "<object>"), ("None", "None")]
)
def test_parameters_lose_their_quotes(raw: str, text: str) -> None:
    assert plain(raw) == text


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40))
def test_sparkline_stays_in_its_box(values: list[float]) -> None:
    line = sparkline(tuple(enumerate(values)))
    assert len(line.places) == len(values)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in line.places.values())


def test_sparkline_puts_the_lowest_value_lowest() -> None:
    line = sparkline(((1, 5.0), (4, 9.0)))
    assert line.places[1][1] > line.places[4][1]
    assert line.path == "M3.0 21.0H117.0V3.0H117.0"


@given(st.text(alphabet="abv3.'()[]*+?|\\ ,x$^{}", min_size=1, max_size=30))
def test_pattern_matches_the_cell_and_nothing_longer(name: str) -> None:
    assert re.search(pattern_of(name), name)
    assert not re.search(pattern_of(name), name + "0")


def test_gate_options_name_one_cell() -> None:
    assert gate_options(series([1, 2])) == "--lanes static --only static/v3/1"
    assert (
        gate_options(dataclasses.replace(series([1, 2]), benchmark="host.CommandStart.track_seconds")) == ""
    )


@pytest.mark.parametrize(
    ("machine", "slug"),
    [("NVIDIA H200", "h200"), ("none", ""), ("unavailable", ""), ("NVIDIA Foo 1", "foo-1")],
)
def test_gpu_has_the_name_of_its_profile(machine: str, slug: str) -> None:
    assert dataclasses.replace(series([1]), machine={"gpu": machine}).gpu == slug


def test_graph_link_names_what_varies() -> None:
    link = graph_link(series([1, 2]), {"machine"})
    assert link == "index.html#static.Registers.track_registers?machine=laptop&p-variant=%27v3%27&p-m=1"


def test_embedded_json_cannot_end_its_script() -> None:
    assert "</" not in embedded({"subject": "</script><b>"})


@pytest.mark.parametrize(
    ("value", "expected"), [(1234567.89, 1234570.0), (0.000123456789, 0.000123457), (0.0, 0.0), (7, 7)]
)
def test_rounding_keeps_six_digits(value: float, expected: float) -> None:
    assert rounded({"a": [value]}) == {"a": [expected]}
