"""Tests wait for conditions, and say what they saw instead."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests import waiting
from tests.waiting import await_start, stall_free_timer, wait_until


def test_the_first_true_value_is_returned() -> None:
    values = iter([0, 0, 7, 8])

    assert wait_until(lambda: next(values)) == 7


def test_a_wait_in_vain_fails_with_the_description() -> None:
    with pytest.raises(AssertionError, match=r"not come true within 0\.01 s: the log$"):
        wait_until(lambda: False, seconds=0.01, describe=lambda: "the log")


def test_a_server_that_has_ended_is_not_waited_for() -> None:
    with subprocess.Popen("false") as process:
        process.wait()

        with pytest.raises(AssertionError, match="its log"):
            await_start(process, lambda: False, describe=lambda: "its log")


def test_a_stall_free_timer_goes_on_but_not_while_its_thread_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = time.monotonic()
    with stall_free_timer() as timer:
        wait_until(lambda: timer() >= 0.1)
    took = time.monotonic() - began
    # As if each tick came late.
    monkeypatch.setattr(waiting, "LONGEST_TICK", waiting.TICK / 4)
    began = time.monotonic()
    with stall_free_timer() as timer:
        time.sleep(0.1)
        seconds = timer()

    assert took >= 0.1
    assert seconds <= (time.monotonic() - began) / 2
