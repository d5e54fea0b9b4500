from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from poisonguard.errors import Misconfigured
from poisonguard.policy import RetryDecision, RetryPolicy

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def judged(policy: RetryPolicy, error: Exception, **changes: Any) -> RetryDecision:
    facts = {"attempts": 1, "due_at": NOON, "first_enqueued_at": NOON, **changes}
    return policy.judge(error, **facts)


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ({"max_attempts": 0}, "the first included: give 1 or more"),
        ({"max_attempts": -1}, "give 1 or more"),
        ({"max_attempts": True}, "give 1 or more"),
        ({"max_attempts": 1.5}, "give 1 or more"),
        ({"base": -1}, "0 <= base <= cap"),
        ({"base": 10, "cap": 1}, "0 <= base <= cap"),
        ({"cap": float("inf")}, "0 <= base <= cap"),
        ({"base": float("nan")}, "0 <= base <= cap"),
        ({"jitter": "some"}, "full, decorrelated or none"),
        ({"expire_after": 0}, "or None for messages that never expire"),
        ({"expire_after": float("nan")}, "give more than 0"),
        ({"fatal": (KeyboardInterrupt,)}, "exception classes"),
        ({"fatal": ("ValueError",)}, "exception classes"),
    ],
)
def test_an_unusable_setting_is_refused_with_a_remedy(
    setting: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(Misconfigured, match=remedy):
        RetryPolicy(**setting)


def test_every_delivery_counts_the_first_one_too() -> None:
    policy = RetryPolicy(max_attempts=3)

    verdicts = [judged(policy, OSError(), attempts=n) for n in (1, 2, 3)]

    assert verdicts == [
        RetryDecision.RETRY,
        RetryDecision.RETRY,
        RetryDecision.EXHAUSTED,
    ]


def test_a_fatal_exception_is_not_retried_nor_one_derived_from_it() -> None:
    policy = RetryPolicy(fatal=(LookupError,))

    verdicts = [judged(policy, error) for error in (KeyError(), ValueError())]

    assert verdicts == [RetryDecision.FATAL, RetryDecision.RETRY]


def test_a_retry_that_would_come_too_late_is_expired_now() -> None:
    policy = RetryPolicy(expire_after=60)

    verdicts = [
        judged(policy, OSError(), due_at=NOON + timedelta(seconds=s)) for s in (59, 60)
    ]

    assert verdicts == [RetryDecision.RETRY, RetryDecision.EXPIRED]


@pytest.mark.parametrize(
    ("attempts", "least", "most"),
    [(1, 0.5, 1), (2, 0.5, 2), (5, 0.5, 16), (10, 0.5, 300), (10**9, 0.5, 300)],
)
def test_full_jitter_keeps_its_floor_and_its_cap_and_never_overflows(
    attempts: int, least: float, most: float
) -> None:
    policy = RetryPolicy(base=0.5, cap=300)

    delays = [policy.delay(attempts) for _ in range(2_000)]

    assert least <= min(delays) < least + (most - least) / 10
    assert most >= max(delays) > most - (most - least) / 10


def test_decorrelated_jitter_grows_from_the_delay_before() -> None:
    policy = RetryPolicy(base=1, cap=20, jitter="decorrelated")

    first = [policy.delay(1) for _ in range(2_000)]
    later = [policy.delay(2, before=5) for _ in range(2_000)]
    capped = [policy.delay(3, before=1_000) for _ in range(2_000)]

    assert 1 <= min(first) <= max(first) <= 3 < max(later) <= 15
    assert min(later) >= 1
    assert max(capped) == 20


def test_without_jitter_the_delay_doubles_up_to_its_cap() -> None:
    policy = RetryPolicy(base=1, cap=5, jitter="none")

    assert [policy.delay(n) for n in (1, 2, 3, 4, 2_000)] == [1, 2, 4, 5, 5]
