"""Answers that come before the send is recorded: the first to hear writes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import pytest

from apps.brokers.adapter_contract import Headers, OutcomeKind, PublishOutcome
from apps.brokers.models import Topic
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.capture.intake import services
from apps.capture.intake.services import CaptureAnswer
from apps.poison.models import Failure, Hold, Poison, Redrive
from apps.team.rights import Principal
from apps.triage.item_standings import standings_of
from apps.triage.models import Operation
from apps.triage.services.running import SliceEnd
from poisonguard.contract import REDRIVE_HEADER
from tests.failure_report_builders import GUARD, capture, failure
from tests.in_memory_queue_broker import Queues
from tests.lane_crash_simulation import Killed, drain_all, topic_on_queues
from tests.triage_operation_runner import (
    MINUTE,
    AwayPublisher,
    confirm,
    counts_of,
    preview,
    run,
)

pytestmark = pytest.mark.django_db(transaction=True)

SECOND = timedelta(seconds=1)
BODIES = [b"%d" % number for number in range(4)]
Mark = str


@dataclass(frozen=True, kw_only=True)
class SentTopic:
    """A topic with its broker, and the time at which the messages are sent."""

    broker: Queues
    topic: Topic
    now: datetime

    def record(self, bodies: Sequence[bytes]) -> None:
        members = [failure(self.now, topic="mail", body=body) for body in bodies]
        capture(self.now, *members)

    def marks(self) -> list[tuple[bytes, Mark]]:
        """Return each copy that was sent, and the redrive header that it bears."""
        copies = self.broker.contents("mail")
        return [
            (body, dict(headers).get(REDRIVE_HEADER.encode(), b"").decode())
            for body, headers in copies
        ]


def handle(place: SentTopic) -> None:
    """Let the consumer handle and confirm everything that was sent."""
    answers = confirm_all(place.now, [mark for _, mark in place.marks()])
    assert {answer.status for answer in answers} <= {"confirmed", "duplicate"}


def confirm_all(now: datetime, marks: Sequence[Mark]) -> list[CaptureAnswer]:
    members = [
        {
            "redrive": mark,
            "topic": "mail",
            "consumer_group": "billing",
            "client_name": "billing-1",
            "at": now.isoformat(),
        }
        for mark in marks
    ]
    return services.confirm(members=members, principal=GUARD, now=now)


def fail(place: SentTopic) -> None:
    """Let the consumer fail with everything that was sent, and report it."""
    answers = capture(place.now, *reports_of(place))
    assert {answer.status for answer in answers} <= {"updated", "duplicate"}


def reports_of(place: SentTopic) -> list[dict[str, object]]:
    return [
        failure(place.now, topic="mail", body=body, redrive=mark)
        for body, mark in place.marks()
    ]


def dead_letter(place: SentTopic) -> None:
    """Let the broker dead-letter everything that was sent, and the lane capture it."""
    for body, headers in place.broker.contents("mail"):
        place.broker.put("mail-dead", body, headers)
    place.broker.queues["mail"].clear()
    drain_all(place.topic, place.now)


@pytest.fixture
def place(broker: Queues, now: datetime) -> SentTopic:
    return SentTopic(broker=broker, topic=topic_on_queues(now), now=now)


@pytest.fixture
def bare(place: SentTopic) -> SentTopic:
    """Let no message of the broker carry headers, as with Azure."""
    place.broker.with_(headers=Headers.NONE)
    return place


Answer = Callable[[SentTopic], None]
ANSWERS = pytest.mark.parametrize(
    ("headers", "answer", "outcome", "state"),
    [
        (Headers.BYTES, handle, "confirmed", "confirmed"),
        (Headers.BYTES, fail, "recurred", "open"),
        (Headers.BYTES, dead_letter, "recurred", "open"),
        (Headers.NONE, dead_letter, "recurred", "open"),
    ],
    ids=["confirmation", "report", "letter with a mark", "letter without"],
)


class AnsweredFirst(RoutingPublisher):
    """Publishes, and lets consumers answer before the sender can record anything.

    `dies`: then the worker dies, too. `word` is its answer to each message.
    """

    def __init__(
        self,
        answer: Callable[[], None],
        *,
        dies: bool = False,
        word: OutcomeKind | None = None,
    ) -> None:
        super().__init__()
        self.answer = answer
        self.dies = dies
        self.word = word

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        outcomes = super().publish(messages)
        self.answer()
        if self.dies:
            raise Killed
        if self.word is not None:
            return [PublishOutcome(kind=self.word, detail="cut")] * len(messages)
        return outcomes


def requeue(
    who: Principal,
    place: SentTopic,
    *,
    ids: Sequence[int] = (),
    at: datetime | None = None,
) -> Operation:
    """Confirm a requeue of these messages, or of all that are on record."""
    at = at or place.now
    chosen = tuple(ids) or tuple(Poison.objects.values_list("pk", flat=True))
    return confirm(who, preview(who, at, ids=chosen), at)


def rows() -> set[tuple[str, int, bool]]:
    """Return outcome and number of each redrive, and whether all its times stand."""
    sends = Redrive.objects.values_list("outcome", "n", "sent_at", "answered_at")
    return {(outcome, n, None not in times) for outcome, n, *times in sends}


def ends() -> set[tuple[str, int, int]]:
    return set(Poison.objects.values_list("state", "redrives", "recurrences"))


@ANSWERS
@pytest.mark.parametrize("word", [None, OutcomeKind.UNKNOWN, OutcomeKind.UNSENT])
def test_an_answer_writes_the_redrive_and_the_mark_leaves_it(
    place: SentTopic,
    operator: Principal,
    headers: Headers,
    answer: Answer,
    outcome: str,
    state: str,
    word: OutcomeKind | None,
) -> None:
    place.broker.with_(headers=headers)
    place.record(BODIES)
    operation = requeue(operator, place)
    moments = []

    def look() -> None:
        moments.append((rows(), ends(), counts_of(operation)))

    def answer_and_look() -> None:
        answer(place)
        look()

    ended = run(
        operation, place.now, by=lambda: AnsweredFirst(answer_and_look, word=word)
    )
    look()

    came_back = int(outcome == "recurred")
    expected = (
        {(outcome, 1, True)},
        {(state, 1, came_back)},
        {outcome: len(BODIES)},
    )
    assert (ended, moments) == (SliceEnd.DONE, [expected] * 2)
    assert Poison.objects.count() == Redrive.objects.count() == len(BODIES)
    assert not Hold.objects.exists()
    assert len(place.broker.published) == len(BODIES)


@ANSWERS
@pytest.mark.parametrize("dies_after_the_answer", [True, False])
def test_an_answer_to_a_dead_worker_stands(
    place: SentTopic,
    operator: Principal,
    headers: Headers,
    answer: Answer,
    outcome: str,
    state: str,
    dies_after_the_answer: bool,
) -> None:
    place.broker.with_(headers=headers)
    place.record(BODIES)
    operation = requeue(operator, place)

    def answer_in_time() -> None:
        if dies_after_the_answer:
            answer(place)

    with pytest.raises(Killed):
        run(operation, place.now, by=lambda: AnsweredFirst(answer_in_time, dies=True))
    if not dies_after_the_answer:
        assert counts_of(operation) == {"sending": len(BODIES)}
        answer(place)
    between = counts_of(operation)
    ended = run(operation, place.now)

    came_back = int(outcome == "recurred")
    assert (ended, between) == (SliceEnd.DONE, {outcome: len(BODIES)})
    assert counts_of(operation) == between
    assert (rows(), ends()) == ({(outcome, 1, True)}, {(state, 1, came_back)})
    assert Poison.objects.count() == Redrive.objects.count() == len(BODIES)
    assert not Hold.objects.exists()
    assert len(place.broker.published) == len(BODIES)
    assert set(Redrive.objects.values_list("copies", flat=True)) == {1}


@ANSWERS
def test_an_answer_to_what_a_dead_worker_left_unknown_stands(
    place: SentTopic,
    operator: Principal,
    headers: Headers,
    answer: Answer,
    outcome: str,
    state: str,
) -> None:
    place.broker.with_(headers=headers)
    place.record(BODIES)
    operation = requeue(operator, place)
    with pytest.raises(Killed):
        run(operation, place.now, by=lambda: AnsweredFirst(nothing, dies=True))
    run(operation, place.now, by=AwayPublisher)
    between = counts_of(operation)

    answer(place)
    ended = run(operation, place.now + MINUTE)

    came_back = int(outcome == "recurred")
    assert between == {"unknown": len(BODIES)}
    assert (ended, counts_of(operation)) == (SliceEnd.DONE, {outcome: len(BODIES)})
    assert (rows(), ends()) == ({(outcome, 1, True)}, {(state, 1, came_back)})
    assert Poison.objects.count() == Redrive.objects.count() == len(BODIES)
    assert not Hold.objects.exists()
    assert len(place.broker.published) == len(BODIES)


def test_answers_to_some_messages_of_a_claim_stand_beside_the_mark_of_the_others(
    place: SentTopic, operator: Principal
) -> None:
    place.record(BODIES)
    operation = requeue(operator, place)
    statuses: list[str] = []

    def answer() -> None:
        (_, first), *_ = place.marks()
        (confirmed,) = confirm_all(place.now, [first])
        (failed,) = capture(place.now, reports_of(place)[1])
        statuses.extend([confirmed.status, failed.status])

    run(operation, place.now, by=lambda: AnsweredFirst(answer))

    assert statuses == ["confirmed", "updated"]
    assert counts_of(operation) == {"confirmed": 1, "recurred": 1, "sent": 2}
    assert ends() == {("confirmed", 1, 0), ("open", 1, 1), ("redriven", 1, 0)}
    assert Poison.objects.count() == Redrive.objects.count() == len(BODIES)
    assert not Hold.objects.exists()


def test_a_copy_sent_before_an_earlier_one_was_answered_is_counted(
    place: SentTopic, operator: Principal
) -> None:
    place.record([b"x"])
    operation = requeue(operator, place)
    unknown = OutcomeKind.UNKNOWN
    run(operation, place.now, by=lambda: AnsweredFirst(nothing, word=unknown))
    later = place.now + MINUTE

    run(operation, later, by=lambda: AnsweredFirst(lambda: handle(place)))

    assert Redrive.objects.get().copies == len(place.broker.published) == 2
    assert counts_of(operation) == {"confirmed": 1}


def test_a_copy_of_a_run_that_died_is_counted_although_an_earlier_one_was_answered(
    place: SentTopic, operator: Principal
) -> None:
    place.record([b"x"])
    operation = requeue(operator, place)

    for answer in (nothing, lambda: handle(place)):
        publisher = partial(AnsweredFirst, answer, dies=True)
        with pytest.raises(Killed):
            run(operation, place.now, by=publisher)
    run(operation, place.now)

    assert Redrive.objects.get().copies == len(place.broker.published) == 2
    assert counts_of(operation) == {"confirmed": 1}


@pytest.mark.parametrize(
    ("answer", "outcome", "state"),
    [(handle, "confirmed", "confirmed"), (fail, "recurred", "open")],
)
def test_an_answer_to_what_its_broker_denies_stands(
    place: SentTopic, operator: Principal, answer: Answer, outcome: str, state: str
) -> None:
    place.record(BODIES)
    operation = requeue(operator, place)
    unsent = OutcomeKind.UNSENT
    run(operation, place.now, by=lambda: AnsweredFirst(nothing, word=unsent))
    between = counts_of(operation)

    answer(place)
    answered = counts_of(operation)
    ended = run(operation, place.now + MINUTE)

    assert (between, answered) == ({"waiting": len(BODIES)}, {outcome: len(BODIES)})
    assert (ended, counts_of(operation)) == (SliceEnd.DONE, answered)
    assert {state for state, *_ in ends()} == {state}
    assert len(place.broker.published) == len(BODIES)


def test_half_handled_and_half_failed_stands_on_the_right_messages_once(
    place: SentTopic, operator: Principal
) -> None:
    place.record([b"%d" % number for number in range(20)])
    operation = requeue(operator, place)
    with pytest.raises(Killed):
        run(operation, place.now, by=lambda: AnsweredFirst(nothing, dies=True))
    bodies, marks = zip(*place.marks(), strict=True)
    reports = reports_of(place)

    answers = [
        *confirm_all(place.now, marks[:10]),
        *capture(place.now, *reports[10:]),
    ]
    # Both are sent again: the consumers heard no answer.
    again = [
        *confirm_all(place.now, marks[:10]),
        *capture(place.now, *reports[10:]),
    ]
    ended = run(operation, place.now)

    assert [each.status for each in answers] == ["confirmed"] * 10 + ["updated"] * 10
    assert {each.status for each in again} == {"duplicate"}
    assert (ended, counts_of(operation)) == (
        SliceEnd.DONE,
        {"confirmed": 10, "recurred": 10},
    )
    states = Poison.objects.values_list("bodies__content", "state", "failures")
    expected = [("confirmed", 1)] * 10 + [("open", 2)] * 10
    assert {bytes(body): (state, number) for body, state, number in states} == dict(
        zip(bodies, expected, strict=True)
    )
    assert Redrive.objects.count() == Poison.objects.count() == 20


def test_one_request_may_answer_what_is_recorded_and_what_is_not_yet(
    place: SentTopic, operator: Principal
) -> None:
    place.record(BODIES)
    operation = requeue(operator, place)
    statuses: list[str] = []

    def answer() -> None:
        marks = [mark for _, mark in place.marks()]
        if len(marks) == len(BODIES):
            answers = confirm_all(place.now, [*marks, marks[-1]])
            statuses.extend(answer.status for answer in answers)

    ended = run(operation, place.now, by=lambda: AnsweredFirst(answer), most=2)

    assert statuses == ["confirmed"] * len(BODIES) + ["duplicate"]
    assert (ended, counts_of(operation)) == (
        SliceEnd.DONE,
        {"confirmed": len(BODIES)},
    )


def test_a_batch_with_one_early_failure_does_not_roll_back(
    place: SentTopic, operator: Principal
) -> None:
    place.record([b"early"])
    operation = requeue(operator, place)
    answers = []

    def answer() -> None:
        others = [
            failure(place.now, topic="mail", body=b"%d" % number)
            for number in range(499)
        ]
        others.insert(250, *reports_of(place))
        answers.extend(capture(place.now, *others))

    run(operation, place.now, by=lambda: AnsweredFirst(answer))

    statuses = [answer.status for answer in answers]
    assert statuses == ["created"] * 250 + ["updated"] + ["created"] * 249
    assert (Poison.objects.count(), counts_of(operation)) == (500, {"recurred": 1})
    assert ends() == {("open", 0, 0), ("open", 1, 1)}


def test_a_forged_mark_of_an_unrecorded_send_is_refused(
    place: SentTopic, operator: Principal
) -> None:
    place.record([b"x", b"y"])
    operation = requeue(operator, place)
    statuses: list[str] = []

    def answer() -> None:
        (_, first), (_, second) = place.marks()
        redrive, signature = first[:-10], second[-10:]
        forged = failure(place.now, topic="mail", body=b"z", redrive=first)
        statuses.extend(
            each.status
            for each in (
                *confirm_all(place.now, [redrive + signature]),
                *capture(place.now, forged),
            )
        )

    run(operation, place.now, by=lambda: AnsweredFirst(answer))

    assert statuses == ["rejected", "created"]
    assert counts_of(operation) == {"sent": 2}
    assert Poison.objects.count() == 3


def test_an_early_letter_that_answers_one_of_two_equal_sends_is_ambiguous(
    bare: SentTopic, operator: Principal
) -> None:
    bare.record([b"x", b"x", b"y"])
    operation = requeue(operator, bare)

    def answer() -> None:
        bare.broker.put("mail-dead", b"x")
        bare.broker.put("mail-dead", b"y")
        drain_all(bare.topic, bare.now)

    run(operation, bare.now, by=lambda: AnsweredFirst(answer))

    assert counts_of(operation) == {"recurred": 2, "sent": 1}
    again = Failure.objects.filter(is_first=False)
    assert dict(again.values_list("poison__bodies__content", "ambiguous")) == {
        b"x": True,
        b"y": False,
    }
    assert Poison.objects.count() == 3


def test_an_early_letter_is_ambiguous_with_an_equal_send_on_record(
    bare: SentTopic, operator: Principal
) -> None:
    bare.record([b"x", b"x"])
    first, second = Poison.objects.order_by("id").values_list("pk", flat=True)
    run(requeue(operator, bare, ids=[first]), bare.now)
    operation = requeue(operator, bare, ids=[second])

    def answer() -> None:
        bare.broker.put("mail-dead", b"x")
        drain_all(bare.topic, bare.now + SECOND)

    run(operation, bare.now + SECOND, by=lambda: AnsweredFirst(answer))

    again = Failure.objects.get(is_first=False)
    assert again.ambiguous
    # The send on record is the older.
    assert (again.poison_id, Poison.objects.count()) == (first, 2)


def test_an_early_letter_answers_the_last_send_of_a_silent_message(
    bare: SentTopic, operator: Principal
) -> None:
    bare.record([b"x"])
    run(requeue(operator, bare), bare.now)
    later = bare.now + 11 * MINUTE
    operation = requeue(operator, bare, at=later)

    def answer() -> None:
        bare.broker.put("mail-dead", b"x")
        drain_all(bare.topic, later)

    ended = run(operation, later, by=lambda: AnsweredFirst(answer))

    outcomes = Redrive.objects.order_by("n").values_list("n", "outcome")
    assert (ended, list(outcomes)) == (SliceEnd.DONE, [(1, "sent"), (2, "recurred")])
    assert ends() == {("open", 2, 1)}
    assert not Failure.objects.filter(ambiguous=True).exists()


def test_a_letter_equal_to_what_waits_for_its_turn_is_a_message_of_its_own(
    bare: SentTopic, operator: Principal
) -> None:
    bare.record([b"1", b"2", b"3"])
    operation = requeue(operator, bare)
    times = []

    def answer() -> None:
        times.append(1)
        if len(times) == 1:
            bare.broker.put("mail-dead", last_body(operation))
            drain_all(bare.topic, bare.now)

    run(operation, bare.now, by=lambda: AnsweredFirst(answer), most=2)

    assert (Poison.objects.count(), counts_of(operation)) == (4, {"sent": 3})


def last_body(operation: Operation) -> bytes:
    item = standings_of(operation, limit=10)[-1]
    assert item.poison is not None
    body = Poison.objects.values_list("bodies__content", flat=True).get(pk=item.poison)
    return bytes(body)


def test_an_early_answer_to_another_topic_is_right(
    place: SentTopic, operator: Principal
) -> None:
    place.record([b"x"])
    topic_on_queues(place.now, name="parking")
    (chosen,) = Poison.objects.values_list("pk", flat=True)
    selection = preview(operator, place.now, ids=(chosen,), target_topic="parking")
    operation = confirm(operator, selection, place.now)

    def answer() -> None:
        ((body, headers),) = place.broker.contents("parking")
        mark = dict(headers)[REDRIVE_HEADER.encode()].decode()
        report = failure(place.now, topic="parking", body=body, redrive=mark)
        capture(place.now, report)

    run(operation, place.now, by=lambda: AnsweredFirst(answer))

    assert (ends(), counts_of(operation)) == ({("open", 1, 1)}, {"recurred": 1})
    assert (Poison.objects.count(), Redrive.objects.get().topic.name) == (1, "parking")


def nothing() -> None:
    """Answer nothing."""
