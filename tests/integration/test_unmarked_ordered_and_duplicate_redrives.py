"""Redrives without a mark, ordered redrives, and refused duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.brokers.adapter_contract import (
    Counting,
    Headers,
    Ordering,
    Outbound,
    OutcomeKind,
    PublishOutcome,
)
from apps.brokers.models import Topic
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.capture.intake.unmarked_dead_letters import OUTSTANDING
from apps.core.errors import Invalid
from apps.poison.models import Failure, Poison, Problem, Redrive
from apps.poison.query_language import Query
from apps.team.rights import Principal
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services import confirm_and_undo, previews, running
from apps.triage.services.ordered_sends import OrderedSends
from apps.triage.services.running import SliceEnd
from apps.triage.services.selection_requests import SelectionRequest
from tests.in_memory_queue_broker import SENT, Queues
from tests.lane_crash_simulation import Killed, drain_all, draining, topic_on_queues
from tests.triage_operation_runner import DyingPublisher, counts_of, run

pytestmark = pytest.mark.django_db(transaction=True)

SECOND = timedelta(seconds=1)
UNKNOWN = PublishOutcome(kind=OutcomeKind.UNKNOWN, detail="the connection broke")
DUPLICATE = PublishOutcome(kind=OutcomeKind.DUPLICATE, detail="seen before")


@pytest.fixture
def bare(broker: Queues) -> Queues:
    """Return a broker whose messages have no headers, like Azure's."""
    return broker.with_(headers=Headers.NONE, counting=Counting.POLICY)


@pytest.fixture
def mail(broker: Queues, now: datetime) -> Topic:
    return topic_on_queues(now)


def captured(
    broker: Queues, topic: Topic, bodies: Sequence[bytes], now: datetime
) -> list[Poison]:
    """Dead-letter these, one batch each, and return their poisons."""
    for body in bodies:
        broker.put("mail-dead", body)
        drain_all(topic, now)
    return list(Poison.objects.order_by("id"))


def redrive(
    who: Principal, now: datetime, *, ids: Sequence[int] = (), ordered: bool = False
) -> Operation:
    selection = SelectionRequest(
        verb=Verb.REDRIVE,
        query=None if ids else Query.parse("is:open"),
        ids=tuple(ids),
        ordered=ordered,
    )
    previewed = previews.preview(selection=selection, principal=who, now=now)
    return confirm_and_undo.confirm(
        token=previewed.token, reason="a test", principal=who, now=now
    )


def sent_to(broker: Queues, topic: str = "mail") -> list[bytes]:
    return [body for body, _ in broker.contents(topic)]


def refuse_bad(message: Outbound) -> PublishOutcome:
    """Answer as a broker that takes any body but one."""
    too_large = PublishOutcome(kind=OutcomeKind.REFUSED, detail="too large")
    return too_large if message.body == b"bad" else SENT


def fails_again(broker: Queues, body: bytes) -> None:
    """Let the consumer fail: the broker dead-letters the message under a new name."""
    broker.queues["mail"].pop(sent_to(broker).index(body))
    broker.put("mail-dead", body)


def test_a_message_without_a_mark_fails_again_as_the_same_poison(
    bare: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    captured(bare, mail, [b"x"], now)
    run(redrive(operator, now), now)
    (outbound,) = bare.published

    fails_again(bare, b"x")
    drain_all(mail, now + SECOND)

    poison = Poison.objects.get()
    assert (outbound.headers, poison.state, poison.recurrences) == ((), "open", 1)
    assert Redrive.objects.get().outcome == "recurred"
    assert not Failure.objects.filter(ambiguous=True).exists()


def test_a_letter_equal_to_two_sends_answers_the_older_and_is_ambiguous(
    bare: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    first, second = captured(bare, mail, [b"x", b"x"], now)
    run(redrive(operator, now, ids=[second.pk]), now)
    run(redrive(operator, now + SECOND, ids=[first.pk]), now + SECOND)

    fails_again(bare, b"x")
    drain_all(mail, now + 2 * SECOND)
    after_one = {p.pk: p.state for p in Poison.objects.all()}
    fails_again(bare, b"x")
    drain_all(mail, now + 3 * SECOND)

    doubts = Failure.objects.filter(is_first=False).order_by("id")
    assert after_one == {first.pk: "redriven", second.pk: "open"}
    assert {p.pk: p.state for p in Poison.objects.all()} == {
        first.pk: "open",
        second.pk: "open",
    }
    # For the second letter, only one send was left.
    assert [failure.ambiguous for failure in doubts] == [True, False]


def test_two_equal_letters_in_one_batch_answer_two_sends(
    bare: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    captured(bare, mail, [b"x", b"x"], now)
    run(redrive(operator, now), now)

    fails_again(bare, b"x")
    fails_again(bare, b"x")
    bare.put("mail-dead", b"x")  # and one more, without a send
    drain_all(mail, now + SECOND)

    recurrences = Poison.objects.order_by("id").values_list("recurrences", flat=True)
    assert list(recurrences) == [1, 1, 0]


def test_a_letter_captured_twice_answers_one_send(
    bare: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    captured(bare, mail, [b"x", b"x"], now)
    run(redrive(operator, now), now)
    fails_again(bare, b"x")
    with draining(mail, now + SECOND) as work:
        work._capture(work.reader.read(limit=9, wait=0.0))  # and here the lane dies

    drain_all(mail, now + SECOND)

    assert Redrive.objects.filter(outcome="recurred").count() == 1
    assert Failure.objects.count() == 3


def test_a_poison_sent_twice_is_answered_by_its_last_send_first(
    bare: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    (poison,) = captured(bare, mail, [b"x"], now)
    run(redrive(operator, now), now)
    later = now + timedelta(minutes=11)  # it is silent by then, and sent again
    run(redrive(operator, later, ids=[poison.pk]), later)

    fails_again(bare, b"x")
    drain_all(mail, later + SECOND)

    poison.refresh_from_db()
    outcomes = Redrive.objects.order_by("n").values_list("outcome", flat=True)
    assert (poison.state, list(outcomes)) == ("open", ["sent", "recurred"])


def test_a_letter_does_not_answer_a_send_of_more_than_a_week_ago(
    bare: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    captured(bare, mail, [b"x"], now)
    run(redrive(operator, now), now)

    fails_again(bare, b"x")
    drain_all(mail, now + OUTSTANDING + SECOND)

    assert Poison.objects.count() == 2


def test_an_equal_body_answers_no_send_on_a_topic_with_marks(
    broker: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    captured(broker, mail, [b"x"], now)
    run(redrive(operator, now), now)

    fails_again(broker, b"x")  # without the mark: another program sent it
    drain_all(mail, now + SECOND)

    assert Poison.objects.count() == 2
    assert Redrive.objects.get().outcome == "sent"


def test_a_dequeue_count_that_no_header_names_is_the_policys(
    bare: Queues, mail: Topic, now: datetime
) -> None:
    captured(bare, mail, [b"x"], now)

    (failure,), (problem,) = Failure.objects.all(), Problem.objects.all()
    assert (failure.cause, failure.dequeue_count, failure.attempts) == (
        "max_dequeue_count",
        5,
        5,
    )
    assert failure.dequeue_count_source == "policy"
    assert "max_dequeue_count" in f"{problem.title} {problem.summary}"


# --- order


def test_a_topic_that_keeps_no_order_is_refused_before_anything_is_sent(
    broker: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    broker.with_(ordering=Ordering.NONE)
    captured(broker, mail, [b"x"], now)

    with pytest.raises(Invalid, match="ordered: the topic mail keeps no order"):
        redrive(operator, now, ordered=True)

    assert not Operation.objects.exists()


def test_only_a_redrive_keeps_an_order() -> None:
    with pytest.raises(Invalid, match="ordered: only a redrive"):
        SelectionRequest(verb=Verb.DROP, ids=(1,), ordered=True)


def test_an_ordered_redrive_sends_messages_one_by_one_in_order_of_capture(
    broker: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    windows: list[int] = []

    class Watched(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            windows.append(len(messages))
            return super().publish(messages)

    bodies = [b"%d" % number for number in range(30)]
    for body in bodies:
        broker.put("mail-dead", body)
    drain_all(mail, now)  # one batch: equal times, unordered numbers

    operation = redrive(operator, now, ordered=True)
    with Watched() as publisher:
        running.run(operation_id=operation.pk, publisher=publisher, clock=lambda: now)

    assert sent_to(broker) == bodies
    assert set(windows) == {1}


def test_no_message_overtakes_one_whose_outcome_is_unknown(
    broker: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    captured(broker, mail, [b"1", b"2", b"3"], now)
    answers = iter([SENT, UNKNOWN])

    def answer(_: Outbound) -> PublishOutcome:
        return next(answers, SENT)

    broker.answer = answer
    operation = redrive(operator, now, ordered=True)

    first = run(operation, now)
    then = sent_to(broker)
    run(operation, now + timedelta(minutes=1))

    assert (first, then) == (SliceEnd.LATER, [b"1"])
    assert sent_to(broker) == [b"1", b"2", b"3"]


def test_messages_behind_a_refused_one_stay_in_later_windows_too(
    broker: Queues,
    mail: Topic,
    operator: Principal,
    now: datetime,
) -> None:
    captured(broker, mail, [b"1", b"bad", b"3", b"4", b"5"], now)
    bad = PublishOutcome(kind=OutcomeKind.REFUSED, detail="too large")
    answered: list[bytes] = []

    def answer(message: Outbound) -> PublishOutcome:
        answered.append(message.body)
        return bad if message.body == b"bad" else SENT

    broker.answer = answer
    operation = redrive(operator, now, ordered=True)

    # The slice ends after its first window.
    with RoutingPublisher() as publisher:
        ended = running.run(
            operation_id=operation.pk,
            publisher=publisher,
            clock=lambda: now + 2 * running.SLICE if answered else now,
            most=2,
        )
    between = counts_of(operation)
    run(operation, now, most=2)

    details = dict(Redrive.objects.values_list("poison__bodies__content", "detail"))
    by_body = {bytes(body): detail for body, detail in details.items()}
    kept_back = "kept back: an earlier message of its topic was refused"
    assert (ended, sent_to(broker)) == (SliceEnd.AGAIN, [b"1"])
    assert between == {"sent": 1, "refused": 1, "waiting": 3}
    assert by_body == {b"1": "", b"bad": "too large"} | dict.fromkeys(
        [b"3", b"4", b"5"], kept_back
    )
    assert Poison.objects.filter(state="open").count() == 4


def test_another_topic_goes_on_behind_a_refused_one(
    broker: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    captured(broker, mail, [b"bad", b"2"], now)
    post = topic_on_queues(now, name="post")
    for body in (b"a", b"b"):
        broker.put("post-dead", body)
    drain_all(post, now)
    broker.answer = refuse_bad

    run(redrive(operator, now, ordered=True), now)

    assert (sent_to(broker), sent_to(broker, "post")) == ([], [b"a", b"b"])


def test_a_topic_is_stuck_in_later_slices_and_another_one_goes_on(
    broker: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    post = topic_on_queues(now, name="post")
    for to_mail, to_post in ((b"bad", b"a"), (b"2", b"b"), (b"3", b"c")):
        captured(broker, mail, [to_mail], now)
        broker.put("post-dead", to_post)
        drain_all(post, now)
    broker.answer = refuse_bad
    operation = redrive(operator, now, ordered=True)
    is_over = False

    def end_slice() -> datetime:
        return now + 2 * running.SLICE if is_over else now

    class OneClaim(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            nonlocal is_over
            is_over = True
            return super().publish(messages)

    with OneClaim() as publisher:
        running.run(
            operation_id=operation.pk, publisher=publisher, clock=end_slice, most=2
        )
    between = counts_of(operation)
    run(operation, now)

    assert between == {"sent": 1, "refused": 1, "waiting": 4}
    assert (sent_to(broker), sent_to(broker, "post")) == ([], [b"a", b"b", b"c"])
    assert counts_of(operation) == {"sent": 3, "refused": 3}


@pytest.mark.parametrize("names", [("mail",), ("mail", "post")])
def test_a_slice_reads_its_stuck_topics_at_a_size_that_does_not_grow(
    broker: Queues, operator: Principal, now: datetime, names: Sequence[str]
) -> None:
    """Many refused messages need no longer statements than a few."""
    topics = [topic_on_queues(now, name=name) for name in names]
    broker.answer = refuse_bad
    lengths = []

    for number in (2, 40):
        for topic in topics:
            for body in (b"bad", *[b"behind"] * number):
                broker.put(f"{topic.name}-dead", body)
            drain_all(topic, now)
        operation = redrive(operator, now, ordered=True)
        run(operation, now)
        with CaptureQueriesContext(connection) as queries, RoutingPublisher() as by:
            stuck = OrderedSends(operation, by).stuck_topics
        lengths.append(sum(len(each["sql"]) for each in queries))
        assert counts_of(operation)["refused"] > number
        assert set(stuck) == {topic.pk for topic in topics}

    few, many = lengths
    assert many - few < 10  # the number of the operation may be longer


# --- duplicates


def test_a_duplicate_of_a_send_that_was_never_tried_is_refused(
    broker: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    captured(broker, mail, [b"x"], now)
    broker.answer = lambda _: DUPLICATE

    run(redrive(operator, now), now)

    (row,), (poison,) = Redrive.objects.all(), Poison.objects.all()
    assert (row.outcome, poison.state) == ("refused", "open")
    assert "it was never sent there" in row.detail
    assert row.detail.endswith("seen before")


def test_a_duplicate_of_a_send_that_died_is_sent(
    broker: Queues, mail: Topic, operator: Principal, now: datetime
) -> None:
    (poison,) = captured(broker, mail, [b"x"], now)
    operation = redrive(operator, now)
    with DyingPublisher() as publisher, pytest.raises(Killed):
        running.run(operation_id=operation.pk, publisher=publisher, clock=lambda: now)
    broker.answer = lambda _: DUPLICATE

    run(operation, now)

    assert Redrive.objects.get().outcome == "sent"
    assert {message.dedupe for message in broker.published} == {
        f"poisonweb-{poison.pk}-1"
    }
