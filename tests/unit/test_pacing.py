"""The rate of an operation, at the calls that hand its messages to a broker."""

from __future__ import annotations

import random
from collections import deque
from statistics import median

import pytest

from apps.core.errors import Invalid
from apps.triage.services.pacing import HIGHEST_RATE, Pacer, at_once, require_rate

SECONDS = 10


class SenderClock:
    """A time that passes only while the sender sleeps or works."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def timer(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class PacedSender:
    """Hands messages over as a run does, and notes when, in seconds from its start.

    Each call to the broker takes up to `work` of the time between two calls.
    """

    def __init__(self, rate: int | None, *, work: float) -> None:
        self.rate = rate
        self.work = work
        self.clock = SenderClock()
        self.began = self.clock.now
        self.chance = random.Random(rate)
        self.handed_over: list[tuple[float, int]] = []
        self.pacer = Pacer(
            lambda: self.rate, timer=self.clock.timer, sleep=self.clock.sleep
        )

    @property
    def elapsed(self) -> float:
        return self.clock.now - self.began

    def send_until(self, end: float) -> None:
        while self.elapsed < end:
            number = min(at_once(self.rate), 500)
            self.pacer.wait(number)
            self.handed_over.append((self.elapsed, number))
            pause = number / self.rate if self.rate else 0.001
            self.clock.sleep(pause * self.chance.uniform(0.01, self.work))

    def between(self, start: float, end: float) -> int:
        return sum(number for at, number in self.handed_over if start <= at < end)

    def most_in_a_second(self, *, since: float) -> int:
        """Find the second with the most messages, wherever it begins."""
        within: deque[tuple[float, int]] = deque()
        most = total = 0
        for at, number in self.handed_over:
            if at < since:
                continue
            within.append((at, number))
            total += number
            while within[0][0] <= at - 1:
                total -= within.popleft()[1]
            most = max(most, total)
        return most


def allowed(rate: int) -> float:
    return max(rate * 1.05, rate + 1)


@pytest.mark.parametrize("work", [0.02, 0.9, 1.5])
@pytest.mark.parametrize("rate", [1, 7, 20, 100, 3_000])
def test_no_second_has_more_than_its_share(rate: int, work: float) -> None:
    sender = PacedSender(rate, work=work)

    sender.send_until(SECONDS)

    assert sender.most_in_a_second(since=1) <= allowed(rate)
    # A run that ended just before may have sent the share of the first second.
    assert sender.between(0, 1) <= rate


@pytest.mark.parametrize("rate", [1, 7, 20, 100, 3_000])
def test_the_median_second_has_nearly_its_share(rate: int) -> None:
    sender = PacedSender(rate, work=0.9)

    sender.send_until(SECONDS + 1)

    numbers = [sender.between(second, second + 1) for second in range(1, SECONDS + 1)]
    assert median(numbers) >= rate * 0.95


@pytest.mark.parametrize("rate", [1, 7, 20, 100, 3_000])
def test_a_broker_that_was_slow_is_not_overrun_afterwards(rate: int) -> None:
    sender = PacedSender(rate, work=0.9)
    sender.send_until(3)

    sender.clock.sleep(4)
    sender.send_until(SECONDS)

    assert sender.most_in_a_second(since=1) <= allowed(rate)


@pytest.mark.parametrize("before", [None, 1, 100, 3_000])
@pytest.mark.parametrize("after", [1, 20, 100, 3_000])
def test_a_change_of_the_rate_is_obeyed_while_it_runs(
    before: int | None, after: int
) -> None:
    sender = PacedSender(before, work=0.9)
    sender.send_until(5)

    changed_at = sender.elapsed
    sender.rate = after
    sender.send_until(changed_at + SECONDS)

    assert sender.most_in_a_second(since=changed_at + 1) <= allowed(after)
    numbers = [
        sender.between(changed_at + second, changed_at + second + 1)
        for second in range(1, SECONDS)
    ]
    assert median(numbers) >= after * 0.95


def test_without_a_limit_nothing_waits() -> None:
    sender = PacedSender(100, work=0.9)
    sender.send_until(2)
    sender.rate = None
    at = sender.clock.now

    for _ in range(100):
        sender.pacer.wait(500)

    assert sender.clock.now == at


@pytest.mark.parametrize("rate", [1, 24, 25, 100, HIGHEST_RATE])
def test_a_claim_is_at_most_half_a_second_of_the_rate(rate: int) -> None:
    assert 1 <= at_once(rate) <= max(1, rate / 2)


@pytest.mark.parametrize("rate", [0, -1, HIGHEST_RATE + 1, 10**9])
def test_an_impossible_rate_is_refused(rate: int) -> None:
    with pytest.raises(Invalid, match="rate"):
        require_rate(rate)


@pytest.mark.parametrize("rate", [None, 1, HIGHEST_RATE])
def test_a_possible_rate_is_accepted(rate: int | None) -> None:
    require_rate(rate)
