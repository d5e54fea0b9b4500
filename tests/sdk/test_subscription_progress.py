"""How far one publisher's messages have come, through kills and replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poisonguard.positions.subscription_progress import (
    RUNS_LIMIT,
    RUNS_PRESSED,
    Start,
    Subscription,
    Track,
)
from poisonguard.positions.whole_number_ranges import Ranges

LIMIT = 65_536


class ServerState:
    """The server's state of a track."""

    def __init__(self) -> None:
        self.settled = Ranges()

    def write(self, track: Track) -> None:
        changes = track.take_changes()
        for first, last in changes.runs if changes else ():
            self.settled.add(first, last)

    def track(self) -> Track:
        return Track.from_server(settled=self.settled, persisted=None)


def deliver(track: Track, numbers: Iterable[int]) -> list[int]:
    """Deliver what a broker replays after the resume point; return the unsettled."""
    after = -1 if track.resume is None else track.resume
    unsettled = [n for n in numbers if n > after and n not in track.settled]
    for number in unsettled:
        track.receive(number)
    return unsettled


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=60), st.randoms())
def test_only_what_was_not_written_as_settled_comes_again(
    sparse: set[int], random: object
) -> None:
    numbers, server, written = sorted(sparse), ServerState(), set[int]()

    for life in range(4):
        track = server.track()
        handled = deliver(track, numbers)
        assert handled == [n for n in numbers if n not in written]
        settled = _some(random, handled) if life < 3 else handled
        for place, number in enumerate(settled):
            track.settle(number)
            if place % 3 == 0:
                server.write(track)
                written.update(settled[: place + 1])
        if life == 3:
            server.write(track)

    assert [*server.settled] == [(0, numbers[-1])]


def _some(random: object, numbers: Sequence[int]) -> list[int]:
    shuffled = list(numbers)
    random.shuffle(shuffled)  # type: ignore[attr-defined] # hypothesis hides its type
    return shuffled[: len(shuffled) // 2]


def test_settling_covers_numbers_that_never_arrived() -> None:
    track = Track()
    for number in (10, 20, 30):
        track.receive(number)

    track.settle(30)
    between = [*track.settled]
    track.settle(10)
    track.settle(20)

    assert between == [(21, 30)]
    assert ([*track.settled], track.processed) == ([(0, 30)], 30)


def test_the_resume_point_is_always_a_number_that_came() -> None:
    track = Track()
    for number in (10, 20, 30):
        track.receive(number)

    resumes = [(track.settle(number), track.resume)[1] for number in (30, 10, 20)]

    assert resumes == [None, 10, 30]


def test_a_late_number_is_not_settled_by_its_successor() -> None:
    track = Track()
    track.receive(10)
    track.receive(20)
    track.receive(15)

    track.settle(20)

    assert ([*track.settled], 15 in track.settled) == ([(16, 20)], False)


def test_a_number_that_comes_again_while_it_is_handled_is_settled_once() -> None:
    track = Track()
    for number in (10, 20, 10):
        track.receive(number)

    assert [track.settle(10), track.settle(10), track.processed] == [True, False, 10]


def test_what_was_never_received_cannot_be_settled() -> None:
    track = Track.from_server(settled=[(0, 10)], persisted=None)

    assert [track.settle(number) for number in (5, 10, 11)] == [False] * 3


def test_a_reader_from_now_on_passes_over_all_before_its_first_message() -> None:
    readers = [
        Subscription(sub_id="eu", topic="orders", start=start) for start in Start
    ]

    for reader in readers:
        reader.receive("p", 500)

    assert [reader.resume.positions for reader in readers] == [
        {"p": None},
        {"p": 499},
        {"p": None},
    ]


def test_resumes_at_the_lesser_of_what_is_settled_and_what_is_replicated() -> None:
    track = Track.from_server(settled=[(0, 100)], persisted=None)

    untracked = track.resume
    track.persist(40)
    track.persist(30)
    behind = track.resume
    track.persist(200)

    assert (untracked, behind, track.resume) == (100, 40, 100)


def test_many_holes_hold_back_new_messages_and_let_old_ones_in() -> None:
    holes = [(3 * n, 3 * n + 1) for n in range(RUNS_PRESSED)]
    track = Track.from_server(settled=holes, persisted=None)

    def is_pressed(seq: int) -> bool:
        return track.is_pressed(seq, in_flight_limit=LIMIT)

    assert (is_pressed(3 * RUNS_PRESSED), is_pressed(2), track.pressure(LIMIT)) == (
        True,
        False,
        1,
    )


def test_more_runs_than_are_kept_go_out_from_the_lowest_on() -> None:
    track = Track()
    for number in range(2 * RUNS_LIMIT + 2):
        track.receive(number)
    for number in range(0, 2 * RUNS_LIMIT + 2, 2):
        track.settle(number)

    first, second = track.take_changes(), track.take_changes()

    assert first is not None
    assert second is not None
    assert (len(first.runs), first.runs[0], len(second.runs)) == (RUNS_LIMIT, (0, 0), 1)


def test_a_grown_run_is_written_whole_to_repair_losses() -> None:
    track = Track.from_server(settled=[(0, 10)], persisted=None)
    track.receive(15)
    track.settle(15)

    changes = track.take_changes()

    assert changes is not None
    assert (changes.runs, changes.messages, track.take_changes()) == (
        [(0, 15)],
        1,
        None,
    )


def test_a_publisher_whose_messages_never_came_is_no_place_to_resume() -> None:
    reader = Subscription(sub_id="eu", topic="orders", start=Start.EARLIEST)
    reader.receive("p", 1)
    reader.tracks["q"] = Track()

    reader.tracks["q"].persist(40)

    assert reader.resume.positions == {"p": None}


@pytest.mark.parametrize("lost", [False, True])
def test_what_a_lost_write_held_is_written_with_the_next(lost: bool) -> None:
    track, server = Track(), ServerState()
    for number in range(3):
        track.receive(number)
    track.settle(0)
    changes = track.take_changes()
    track.settle(2)

    if lost and changes is not None:
        track.give_back(changes)
    server.write(track)

    assert [*server.settled] == ([(0, 0), (2, 2)] if lost else [(2, 2)])
