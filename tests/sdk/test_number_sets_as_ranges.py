"""Sets of numbers kept as runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poisonguard.positions.whole_number_ranges import Ranges, Run

runs = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(
    lambda pair: (min(pair), max(pair))
)


def numbers(ranges: Ranges) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


@given(st.lists(runs))
def test_ranges_hold_exactly_the_added_numbers(added: list[Run]) -> None:
    expected = {n for first, last in added for n in range(first, last + 1)}

    ranges = Ranges(added)

    assert numbers(ranges) == expected
    assert [n in ranges for n in range(62)] == [n in expected for n in range(62)]
    assert ranges.top == max(expected, default=-1)


@given(st.lists(runs))
def test_ranges_merge_touching_runs_in_order(added: list[Run]) -> None:
    ranges = Ranges(added)

    gaps = [
        second[0] - first[1]
        for first, second in zip(ranges, [*ranges][1:], strict=False)
    ]
    assert all(gap > 1 for gap in gaps)
    assert len(ranges) == len([*ranges])


@given(st.lists(runs), st.lists(runs))
def test_finds_the_whole_runs_around_some_numbers(
    added: list[Run], some: list[Run]
) -> None:
    ranges, others = Ranges(added), Ranges(some)

    runs_around = [*ranges.around(others)]

    touched = numbers(others)
    assert runs_around == [
        run for run in ranges if touched & set(range(run[0], run[1] + 1))
    ]


def test_needs_one_run_for_a_million_in_a_row_and_two_around_a_hole() -> None:
    ranges = Ranges()

    for number in range(0, 1_000_000, 1_000):
        ranges.add(number, number + 999)
    before = len(ranges)
    ranges.add(1_000_001, 2_000_000)

    assert (before, len(ranges), 1_000_000 in ranges) == (1, 2, False)
