"""The geometry of charts: each kind of point has its own shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.dashboard.presentation import charts, report_numbers
from apps.dashboard.presentation.charts import Point, PointKind


def points(*values: float | None) -> list[Point]:
    return [Point(label=str(value), value=value) for value in values]


@pytest.mark.parametrize(
    ("value", "top"),
    [(0.001, 0.001), (0.0011, 0.002), (0.3, 0.5), (0.51, 1), (7, 10), (10, 10)],
)
def test_the_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert charts.ceiling(value) == pytest.approx(top)


@given(st.floats(1e-9, 1e12))
def test_nothing_is_higher_than_its_axis(value: float) -> None:
    top = charts.ceiling(value)

    assert value * (1 - 1e-6) <= top < 2.6 * value


def test_a_bar_is_as_high_as_its_part_of_the_axis() -> None:
    drawn = charts.chart(points(0.5, 1.0), least=0.001, most=1.0)

    assert (
        drawn.outlines[PointKind.BAR] == "M1.5 100v-50.0h7V100zM11.5 100v-100.0h7V100z"
    )
    assert (drawn.top, drawn.width) == (1.0, 20)


def test_a_bar_is_never_too_flat_to_be_seen() -> None:
    drawn = charts.chart(points(1.0, 1e-6), least=0.001)

    assert "M11.5 100v-2.0" in drawn.outlines[PointKind.BAR]


def test_zero_nothing_and_a_gap_have_three_shapes() -> None:
    gap = Point(label="", is_gap=True)

    drawn = charts.chart([*points(0.0, None), gap], least=0.001)

    assert drawn.outlines[PointKind.BAR] == ""
    assert drawn.outlines[PointKind.ZERO].startswith("M1.5 ")
    assert drawn.outlines[PointKind.NOTHING].startswith("M11.5 ")
    assert drawn.outlines[PointKind.GAP] == "M20 0h10v100h-10z"


def test_a_whisker_ends_where_the_chart_does() -> None:
    sure = Point(label="", value=0.5, low=0.25, high=0.75)
    unsure = Point(label="", value=0.1, low=0.0, high=2.0)
    none = Point(label="", value=0.0, low=0.0, high=0.8)

    drawn = charts.chart([sure, unsure, none, *points(1.0)], least=0.001, most=1.0)

    assert drawn.whiskers == "M5 75.0V25.0M15 100.0V0.0"


def test_an_axis_without_a_value_ends_at_the_least() -> None:
    assert charts.chart(points(None, 0.0), least=0.001).top == 0.001


def test_every_slot_leads_somewhere_and_says_what_is_there() -> None:
    there = Point(label="Mon: 3 failed", href="/messages?q=day:x", value=3)

    drawn = charts.chart([*points(None), there], least=1)

    slot = drawn.slots[1]
    assert (slot.x, slot.label, slot.href) == (10, "Mon: 3 failed", "/messages?q=day:x")


def test_an_hour_grows_with_its_value_and_a_gap_is_a_column() -> None:
    drawn = charts.heat([points(0.0, 0.01, 1.0), None, points(None, None, 0.25)])

    assert [(cell.level, cell.side) for cell in drawn.cells] == [
        (0, 2),
        (1, 4),
        (4, 10),
        (2, 6),
    ]
    assert (list(drawn.gaps), drawn.width, drawn.height) == ([10], 30, 30)
    assert drawn.bounds == [0.0625, 0.25, 0.5625, 1.0]


def test_hours_without_a_failure_have_no_scale() -> None:
    drawn = charts.heat([points(0.0, None)])

    assert [cell.level for cell in drawn.cells] == [0]
    assert drawn.bounds == []


def test_no_hour_at_all_is_no_fault() -> None:
    drawn = charts.heat([None, None])

    assert (drawn.cells, drawn.height) == ([], 0)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "—"),
        (0.0, "0 %"),
        (1e-7, "<0.01 %"),
        (0.0042, "0.42 %"),
        (0.00996, "1.0 %"),
        (0.0312, "3.1 %"),
        (0.0996, "10 %"),
        (0.254, "25 %"),
        (0.9999, ">99 %"),
        (1.0, "100 %"),
    ],
)
def test_a_small_share_is_never_nothing_nor_a_large_one_everything(
    share: float | None, text: str
) -> None:
    assert report_numbers.percent(share) == text.replace(" ", "\u00a0")


def test_an_interval_is_told_with_both_its_ends() -> None:
    assert report_numbers.interval(0.0031, 0.0055) == "0.31–0.55\u00a0%"  # noqa: RUF001
    assert report_numbers.interval(None, None) == "—"


@pytest.mark.parametrize(
    ("bound", "text"), [(None, "—"), (512, "512 ms"), (4096, "4.1 s")]
)
def test_a_handling_time_is_told_in_its_unit(bound: int | None, text: str) -> None:
    assert report_numbers.milliseconds(bound) == text.replace(" ", "\u00a0")
