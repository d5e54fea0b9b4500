"""Capture: each report is stored once, byte for byte, with its poison."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import pytest

from apps.capture.intake.services import CaptureStatus
from apps.capture.models import Counter
from apps.poison.models import Alias, Body, Failure, Poison, Problem, Redrive
from apps.poison.services.redrive_confirmations_by_token import confirm
from apps.poison.states import PoisonState, RedriveOutcome
from tests.failure_report_builders import (
    capture,
    count_up,
    counter,
    drop,
    failure,
    poisons,
)
from tests.triage_operation_runner import redriven

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def test_keeps_body_and_headers_byte_for_byte(now: datetime) -> None:
    body = bytes(range(256))
    headers = [("k\ud800", b"\x00\xff"), ("k", b""), ("k", b"again")]

    (answer,) = capture(now, failure(now, body=body, headers=headers))

    stored = Body.objects.get(poison=answer.poison)
    assert bytes(stored.content) == body
    assert [bytes(part) for part in stored.headers] == [
        b"k\xed\xa0\x80", b"\x00\xff", b"k", b"", b"k", b"again",
    ]  # fmt: skip


def test_a_report_counts_once_when_it_is_sent_again_or_twice_in_one_request(
    now: datetime,
) -> None:
    report = failure(now)

    first = capture(now, report, report)
    again = capture(now + SECOND, report)

    statuses = [answer.status for answer in (*first, *again)]
    assert statuses == [
        CaptureStatus.CREATED,
        CaptureStatus.DUPLICATE,
        CaptureStatus.DUPLICATE,
    ]
    assert Poison.objects.get().failures == 1


def test_the_same_message_failing_again_is_the_same_poison(now: datetime) -> None:
    capture(now, failure(now, bookmark="1-0"))

    (answer,) = capture(now, failure(now, bookmark="1-0"))

    assert answer.status is CaptureStatus.UPDATED
    assert (Poison.objects.count(), Failure.objects.count()) == (1, 2)


def test_two_messages_with_equal_bodies_are_two(now: datetime) -> None:
    capture(now, failure(now, bookmark="1-0"), failure(now, bookmark="2-0"))

    assert Poison.objects.count() == 2


def test_one_identity_with_another_body_is_another_poison(now: datetime) -> None:
    one = capture(now, failure(now, bookmark="1-0", body=b"a"))
    two = capture(now, failure(now, bookmark="1-0", body=b"b"))
    three = capture(
        now,
        failure(now, bookmark="1-0", body=b"c"),
        failure(now, bookmark="1-0", body=b"a"),
    )

    assert len({a.poison for a in (*one, *two, *three)}) == 3
    assert sorted(Poison.objects.values_list("reuse", flat=True)) == [0, 1, 2]
    assert bytes(Body.objects.get(poison=one[0].poison).content) == b"a"


def test_an_older_event_never_overwrites_a_newer_one(now: datetime) -> None:
    newer = {"type": "KeyError", "message": "'id'", "traceback": ""}
    older = {"type": "TimeoutError", "message": "late", "traceback": ""}
    capture(now, failure(now, bookmark="1-0", exception=newer))

    capture(now, failure(now - SECOND, bookmark="1-0", exception=older))

    poison = Poison.objects.get()
    assert (poison.error_type, poison.failures) == ("KeyError", 2)
    assert poison.last_failed_at == now
    assert poison.first_failed_at == now - SECOND


def test_a_time_far_off_is_stored_as_claimed_and_replaced_by_ours(
    now: datetime,
) -> None:
    capture(now, failure(now + timedelta(days=1)), failure(now - timedelta(days=31)))

    times = Failure.objects.order_by("failed_at_claimed")
    assert list(times.values_list("failed_at", "failed_at_claimed")) == [
        (now, now - timedelta(days=31)),
        (now, now + timedelta(days=1)),
    ]


def test_nul_and_surrogates_in_every_text_are_survived(now: datetime) -> None:
    nasty = "a\0b\ud800c"
    exception = {"type": nasty, "message": nasty, "traceback": nasty}

    answers = capture(
        now,
        failure(
            now,
            bookmark=nasty * 10_000,
            message_id=nasty,
            content_type=nasty,
            exception=exception,
        ),
    )

    assert [answer.status for answer in answers] == [CaptureStatus.CREATED]
    assert Poison.objects.get().error_type.startswith("a␀b")


def test_one_invalid_member_is_rejected_alone(now: datetime) -> None:
    answers = capture(
        now, failure(now), failure(now, body=b"x", cause="bad luck"), failure(now)
    )

    assert [answer.status for answer in answers] == [
        CaptureStatus.CREATED,
        CaptureStatus.REJECTED,
        CaptureStatus.CREATED,
    ]
    assert answers[1].pointer == "/cause"


def test_a_redriven_message_that_fails_again_is_the_same_poison(now: datetime) -> None:
    (poison,) = poisons(now, 1)
    header = redriven(poison, now)

    (answer,) = capture(
        now + SECOND, failure(now + SECOND, bookmark="9-0", redrive=header)
    )

    poison.refresh_from_db()
    assert (answer.poison, answer.status) == (poison.pk, CaptureStatus.UPDATED)
    assert (poison.state, poison.recurrences) == (PoisonState.OPEN, 1)
    assert Redrive.objects.get().outcome == RedriveOutcome.RECURRED
    assert Alias.objects.get().poison_id == poison.pk


def test_the_new_bookmark_of_a_redriven_message_leads_to_its_poison(
    now: datetime,
) -> None:
    (poison,) = poisons(now, 1)
    capture(now, failure(now, bookmark="9-0", redrive=redriven(poison, now)))

    (answer,) = capture(now, failure(now, bookmark="9-0"))

    assert answer.poison == poison.pk


@pytest.mark.parametrize("forge", ["id", "mac", "body", "topic", "noise"])
def test_a_forged_redrive_is_an_ordinary_message(now: datetime, forge: str) -> None:
    (poison,) = poisons(now, 1)
    header = redriven(poison, now)
    forged = {
        "id": f"{uuid.uuid4()}.{header.partition('.')[2]}",
        "mac": f"{header.partition('.')[0]}.{'A' * 43}",
        "noise": "\u2603" * 100,
    }.get(forge, header)
    body = b"another" if forge == "body" else b'{"id": 13}'
    topic = "elsewhere" if forge == "topic" else "orders"

    (answer,) = capture(
        now, failure(now, bookmark="9-0", redrive=forged, body=body, topic=topic)
    )

    poison.refresh_from_db()
    assert answer.status is CaptureStatus.CREATED
    assert (poison.state, poison.recurrences) == (PoisonState.REDRIVEN, 0)


def test_a_late_failure_of_an_older_redrive_does_not_change_the_newer_one(
    now: datetime,
) -> None:
    (poison,) = poisons(now, 1)
    first = redriven(poison, now)
    later = now + timedelta(minutes=11)  # by then it counts as silent
    redriven(poison, later)

    capture(later, failure(later, bookmark="9-0", redrive=first))

    poison.refresh_from_db()
    assert (poison.state, poison.recurrences) == (PoisonState.REDRIVEN, 1)


def test_a_confirmation_settles_the_poison_once(now: datetime) -> None:
    (poison,) = poisons(now, 1)
    token = (redriven(poison, now), "orders")

    verdicts = [
        *confirm(tokens=[token, token], now=now),
        *confirm(tokens=[token], now=now),
    ]

    poison.refresh_from_db()
    assert [v.status for v in verdicts] == ["confirmed", "duplicate", "duplicate"]
    assert poison.state == PoisonState.CONFIRMED


def test_a_confirmation_for_another_topic_is_rejected(now: datetime) -> None:
    (poison,) = poisons(now, 1)

    (verdict,) = confirm(tokens=[(redriven(poison, now), "elsewhere")], now=now)

    assert verdict.status == "rejected"


def test_only_a_failure_after_the_confirmation_reopens_a_poison(
    now: datetime,
) -> None:
    (poison,) = poisons(now, 1, bookmark="1-0")
    confirm(tokens=[(redriven(poison, now), "orders")], now=now + SECOND)

    capture(now + SECOND, failure(now, bookmark="1-0"))
    poison.refresh_from_db()
    after_the_earlier = poison.state
    capture(now + 3 * SECOND, failure(now + 2 * SECOND, bookmark="1-0"))
    poison.refresh_from_db()

    assert (after_the_earlier, poison.state) == (
        PoisonState.CONFIRMED,
        PoisonState.OPEN,
    )


def test_a_dropped_message_stays_dropped_when_it_fails_again(now: datetime) -> None:
    (poison,) = poisons(now, 1, bookmark="1-0")
    drop(now, poison)

    capture(now, failure(now, bookmark="1-0"))

    poison.refresh_from_db()
    assert (poison.state, poison.failures) == (PoisonState.DROPPED, 2)


def test_failures_of_one_topic_and_group_share_a_problem(now: datetime) -> None:
    def because(message: str, **more: object) -> dict[str, object]:
        raised = {"type": "ValueError", "message": message, "traceback": ""}
        return failure(now, exception=raised, **more)

    capture(
        now,
        because("order 17 is too old"),
        because("order 18 is too old"),
        because("order 19 is too old", consumer_group="shipping"),
        because("no such thing"),
    )

    assert Problem.objects.count() == 3


def test_the_first_failure_of_a_message_is_marked(now: datetime) -> None:
    twice = failure(now, bookmark="1-0"), failure(now, bookmark="1-0")
    capture(now, *twice, failure(now, bookmark="2-0"))
    capture(now, failure(now, bookmark="1-0"))

    marked = Failure.objects.order_by("id").values_list("is_first", flat=True)

    assert list(marked) == [True, False, True, False]


def test_a_confirmation_is_remembered_when_the_message_comes_back(
    now: datetime,
) -> None:
    (poison,) = poisons(now, 1, bookmark="1-0")
    token = redriven(poison, now)
    confirm(tokens=[(token, "orders")], now=now + SECOND)

    capture(now + 2 * SECOND, failure(now + 2 * SECOND, redrive=token))

    redrive = Redrive.objects.get()
    assert redrive.outcome == RedriveOutcome.RECURRED
    assert redrive.confirmed_at == now + SECOND
    assert redrive.answered_at == now + 2 * SECOND


@pytest.mark.parametrize("claimed", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:00Z"])
def test_counts_of_a_minute_far_off_count_in_the_minute_they_arrive(
    now: datetime, claimed: str
) -> None:
    count_up(now + 7 * SECOND, counter(minute=claimed))

    counted = Counter.objects.get()

    assert counted.minute == now
    assert counted.minute_claimed == datetime.fromisoformat(claimed)
    assert counted.source == "sdk"
