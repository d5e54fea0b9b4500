"""Charts in lines and cells."""

from __future__ import annotations

import re

from apps.dashboard.presentation.small_charts import sparkline


def test_draws_each_value_by_its_share_of_the_highest() -> None:
    drawn = sparkline([0, 5, 10], "15 failures")

    assert re.findall(r' height="([^"]+)"', drawn) == ["9.5", "19.0"]


def test_draws_rows_that_are_compared_by_one_scale_and_the_least_still_shows() -> None:
    drawn = sparkline([0, 1, 260], "261 failures", top=520)

    assert re.findall(r' height="([^"]+)"', drawn) == ["1.0", "9.5"]


def test_draws_no_axis_under_a_single_bar_unless_it_is_wide() -> None:
    narrow = [sparkline(values, "") for values in ([0, 5], [3, 5], [0, 0])]
    wide = sparkline([0, 5], "", wide=True)

    axes = ["<line" in drawn for drawn in (*narrow, wide)]
    assert axes == [False, True, True, True]
