"""Calls that may hang: a bounded number, each in a thread of its own."""

from __future__ import annotations

import threading

import pytest

from apps.core.bounded_threads import BoundedThreads


def test_a_call_beyond_the_limit_is_not_started_until_one_has_returned() -> None:
    threads, hanging = BoundedThreads(2, name="test"), threading.Event()
    calls = [threads.start(lambda: hanging.wait(30)) for _ in "abc"]
    hanging.set()

    *started, refused = calls
    assert [call and call.result(30) for call in started] == [True, True]
    assert refused is None
    assert _starts_again(threads)


def test_an_error_of_the_call_is_raised_to_who_waits() -> None:
    threads = BoundedThreads(1, name="test")

    answer = threads.start(lambda: 1 // 0)

    assert answer
    with pytest.raises(ZeroDivisionError):
        answer.result(30)
    assert _starts_again(threads)


def test_a_result_for_which_nothing_waits_any_more_is_no_error() -> None:
    threads, can_go_on = BoundedThreads(1, name="test"), threading.Event()
    answer = threads.start(lambda: can_go_on.wait(30))

    assert answer
    while not answer.running():
        threading.Event().wait(0.001)
    assert not answer.cancel()
    can_go_on.set()

    assert answer.result(30)
    assert _starts_again(threads)


def _starts_again(threads: BoundedThreads) -> bool:
    # The slot is free a moment after the answer is there.
    for _ in range(1_000):
        answer = threads.start(lambda: True)
        if answer:
            return answer.result(30)
        threading.Event().wait(0.01)
    return False
