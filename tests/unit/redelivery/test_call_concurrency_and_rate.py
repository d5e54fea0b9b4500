"""How many calls of an endpoint may begin: concurrency, rate, and the slow start."""

from __future__ import annotations

from apps.redelivery.sending.call_pace import OUTAGE_FAILURES, CallPace, CallThroughput


def room(pace: CallPace, *, in_flight: int = 0, concurrency: int = 10) -> int:
    return pace.room(in_flight=in_flight, concurrency=concurrency, rate=None, now=0.0)


def grown(pace: CallPace, *, rounds: int) -> list[int]:
    """Let all calls that may begin succeed, some times; return how many began."""
    began = []
    for _ in range(rounds):
        began.append(room(pace))
        for _ in range(began[-1]):
            pace.end(is_success=True, outage=0)
        pace.limit_window(10)
    return began


def test_a_new_owner_begins_with_one_call_and_doubles() -> None:
    assert grown(CallPace(), rounds=6) == [1, 2, 4, 8, 10, 10]


def test_calls_in_flight_take_room() -> None:
    pace = CallPace()
    grown(pace, rounds=5)

    assert [room(pace, in_flight=number) for number in (0, 7, 10, 12)] == [10, 3, 0, 0]
    assert room(pace, concurrency=4) == 4


def test_the_first_success_after_an_outage_starts_slowly() -> None:
    for outage, failures in ((0, OUTAGE_FAILURES), (2, 2)):
        pace = CallPace()
        grown(pace, rounds=5)
        for _ in range(failures):
            pace.end(is_success=False, outage=outage)
        assert room(pace) == 10

        pace.end(is_success=True, outage=outage)

        assert grown(pace, rounds=3) == [1, 2, 4]


def test_a_few_failures_are_no_outage() -> None:
    pace = CallPace()
    grown(pace, rounds=5)
    for _ in range(OUTAGE_FAILURES - 1):
        pace.end(is_success=False, outage=0)

    pace.end(is_success=True, outage=0)

    assert room(pace) == 10


def test_the_rate_bounds_the_calls_of_any_time() -> None:
    pace = CallPace()
    grown(pace, rounds=5)
    began = 0
    for tenth in range(101):
        may = pace.room(in_flight=0, concurrency=10, rate=5.0, now=tenth / 10)
        pace.begin(may)
        began += may

    assert 50 <= began <= 52
    assert 0 < pace.seconds_to_token(5.0) <= 0.2


def test_the_throughput_is_that_of_the_last_calls() -> None:
    throughput = CallThroughput()
    assert throughput.expected(seconds=1.0, now=1_000.0) == 0
    for _ in range(100):
        throughput.add()

    assert throughput.expected(seconds=0.25, now=1_000.125) == 200
    assert throughput.expected(seconds=0.25, now=1_000.13) == 200
    assert throughput.expected(seconds=0.25, now=1_060.0) == 0
