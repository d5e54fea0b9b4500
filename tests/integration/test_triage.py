"""Triage: what was seen is what is acted on, and every item's end is told."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from django.db import connection
from redis import Redis

from apps.audit import services as audit
from apps.audit.models import Entry
from apps.brokers.models import Broker, Topic
from apps.brokers.ports import Outcome, OutcomeKind
from apps.brokers.services import Addressed, RoutingPublisher
from apps.core.actor import Actor
from apps.core.errors import Absent, Forbidden, Invalid
from apps.poison import services as poison_services
from apps.poison.models import Poison, Redrive
from apps.poison.query import Query
from apps.poison.states import State as PoisonState
from apps.poison.tokens import verified
from apps.team.rights import GRANTS, Principal, Role, Scope
from apps.triage.errors import Stale
from apps.triage.models import Item, Operation
from apps.triage.services import decision, running, selection, upkeep
from apps.triage.services.running import Ended
from apps.triage.services.selection import Ask
from apps.triage.states import State, Verb
from tests.acceptance.product import eventually
from tests.reports import capture, drop, failure, poisons

pytestmark = pytest.mark.django_db(transaction=True)

ALL = Query.parse("topic:orders")
MINUTE = timedelta(minutes=1)
Entries = list[tuple[bytes, dict[bytes, bytes]]]
BORIS = Principal(actor=Actor.user("boris"), scopes=frozenset(Scope))


class Killed(BaseException):
    """What a kill -9 looks like from within."""


class DyingPublisher(RoutingPublisher):
    """Publish, and die before anything of it is written down."""

    def publish(self, messages: Sequence[Addressed]) -> list[Outcome]:
        super().publish(messages)
        raise Killed


def preview(who: Principal, now: datetime, **ask: object) -> Operation:
    ask.setdefault("verb", Verb.REDRIVE)
    if not {"ids", "query", "dropped_by"} & ask.keys():
        ask["query"] = ALL
    return selection.preview(ask=Ask(**ask), principal=who, now=now)  # type: ignore[arg-type]


def confirm(who: Principal, operation: Operation, now: datetime) -> Operation:
    return decision.confirm(
        token=operation.token, reason="a test", principal=who, now=now
    )


def run(operation: Operation, now: datetime) -> Ended:
    with RoutingPublisher() as publisher:
        return running.run(
            operation_id=operation.pk, publisher=publisher, clock=lambda: now
        )


def sent(stream: Redis) -> list[dict[bytes, bytes]]:
    """Read the topic's messages, oldest first, as their fields."""
    return [fields for _, fields in cast(Entries, stream.xrange("orders"))]


def told(operation: Operation) -> dict[str, int]:
    counts = operation.items.counts()
    assert sum(counts.values()) == operation.total
    return {name: number for name, number in counts.items() if number}


def test_a_requeue_sends_each_message_as_it_came(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    headers = [
        ("trace", b"\x00\xff"),
        ("x-poison-cause", b"exhausted"),
        ("x-poisonweb-redrive", b"an old one"),
    ]
    (poison,) = poisons(now, 1, body=b"\xff\x00", headers=headers)
    operation = confirm(operator, preview(operator, now), now)

    ended = run(operation, now)

    (fields,) = sent(stream)
    token = fields.pop(b"x-poisonweb-redrive").decode()
    assert fields == {b"body": b"\xff\x00", b"trace": b"\x00\xff"}
    assert verified(token, topic="orders", digest=poison.digest) is not None
    assert (ended, told(operation)) == (Ended.DONE, {"sent": 1})
    poison.refresh_from_db()
    assert poison.state == PoisonState.REDRIVEN


def test_a_message_that_comes_after_the_preview_is_never_touched(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    seen = preview(operator, now)
    (late,) = poisons(now, 1)

    run(confirm(operator, seen, now), now)

    late.refresh_from_db()
    assert (seen.total, late.state) == (2, PoisonState.OPEN)


def test_a_preview_says_what_will_be_passed_over_and_why(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    open_one, dropped = poisons(now, 2)
    drop(now, dropped)

    seen = selection.see(operation=preview(operator, now))

    assert (seen.will_act, seen.skipped) == (1, (("dropped: restore it first", 1),))
    assert seen.by_topic == (("orders", 1),)
    assert [poison.pk for poison in seen.sample] == [open_one.pk]


def test_one_of_two_overlapping_operations_gets_each_message(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    first, second, third = poisons(now, 3)
    mine = preview(operator, now, ids=(first.pk, second.pk))
    theirs = preview(BORIS, now, ids=(second.pk, third.pk))

    confirm(operator, mine, now)
    confirm(BORIS, theirs, now)
    run(mine, now)
    run(theirs, now)

    skipped = Item.objects.get(operation=theirs, poison=second)
    assert skipped.reason == f"operation {mine.pk} has it"
    assert stream.xlen("orders") == 3
    assert Redrive.objects.count() == 3


def test_a_used_token_is_refused_with_a_fresh_preview(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    seen = preview(operator, now)
    confirm(operator, seen, now)

    with pytest.raises(Stale) as refusal:
        confirm(operator, seen, now)

    assert refusal.value.fresh is not None
    assert refusal.value.fresh.token != seen.token


@pytest.mark.parametrize("case", ["foreign", "unknown", "expired", "replaced", "empty"])
def test_a_token_that_is_not_good_is_refused(
    orders: Topic, operator: Principal, now: datetime, case: str
) -> None:
    poisons(now, 1)
    seen = preview(operator, now)
    who, when, token = operator, now, seen.token
    if case == "foreign":
        who = BORIS
    elif case == "unknown":
        token = uuid.uuid4()
    elif case == "expired":
        when = now + 15 * MINUTE
    elif case == "replaced":
        preview(operator, now)
    else:
        drop(now, *Poison.objects.all())
        token = preview(operator, now).token

    with pytest.raises(Stale):
        decision.confirm(token=token, reason="", principal=who, now=when)

    assert not Operation.objects.confirmed().exists()


def test_a_drop_needs_a_reason(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    seen = preview(operator, now, verb=Verb.DROP)

    with pytest.raises(Invalid, match="reason"):
        decision.confirm(token=seen.token, reason=" ", principal=operator, now=now)


def test_a_drop_can_be_undone_as_an_operation_of_its_own(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    dropping = confirm(operator, preview(operator, now, verb=Verb.DROP), now)
    run(dropping, now)
    after_the_drop = set(Poison.objects.values_list("state", flat=True))

    undo = decision.undo(operation_id=dropping.pk, principal=operator, now=now)
    run(undo, now)

    assert after_the_drop == {"dropped"}
    assert (told(dropping), told(undo)) == ({"dropped": 3}, {"restored": 3})
    assert set(Poison.objects.values_list("state", flat=True)) == {"open"}
    assert undo.undo_of_id == dropping.pk


def test_undoing_twice_finds_nothing_left(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    dropping = confirm(operator, preview(operator, now, verb=Verb.DROP), now)
    run(dropping, now)
    run(decision.undo(operation_id=dropping.pk, principal=operator, now=now), now)

    with pytest.raises(Stale):
        decision.undo(operation_id=dropping.pk, principal=operator, now=now)


def test_a_topic_without_a_broker_refuses_and_the_rest_goes_on(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    (stray,) = poisons(now, 1, topic="nowhere")
    everything = preview(operator, now, query=Query.parse("is:open"))

    operation = confirm(operator, everything, now)
    run(operation, now)

    assert told(operation) == {"sent": 2, "refused": 1}
    refused = operation.items.standing("refused").get()
    assert refused.told == "the topic nowhere has no broker"
    stray.refresh_from_db()
    assert stray.state == PoisonState.OPEN


def test_sent_elsewhere_on_purpose_is_moved(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    Topic.objects.create(
        name="parking", native_name="parking", broker_id=orders.broker_id
    )

    operation = confirm(operator, preview(operator, now, target_topic="parking"), now)
    run(operation, now)

    poison.refresh_from_db()
    assert (stream.xlen("parking"), stream.xlen("orders")) == (1, 0)
    assert (poison.state, told(operation)) == (PoisonState.MOVED, {"moved": 1})


def test_a_target_without_a_broker_is_refused_at_once(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    Topic.objects.create(name="nowhere", native_name="nowhere")

    with pytest.raises(Invalid, match="no broker"):
        preview(operator, now, target_topic="nowhere")
    with pytest.raises(Absent):
        preview(operator, now, target_topic="unheard of")


def test_what_a_consumer_answered_to_a_run_that_died_is_held_no_more(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    with pytest.raises(Killed), DyingPublisher() as publisher:
        running.run(operation_id=operation.pk, publisher=publisher, clock=lambda: now)
    (fields,) = sent(stream)
    header = fields[b"x-poisonweb-redrive"].decode()
    capture(now, failure(now, bookmark="9-0", redrive=header))
    ended = run(operation, now)

    assert (ended, told(operation)) == (Ended.DONE, {"recurred": 1})
    assert not Item.objects.filter(held=True).exists()
    assert selection.see(operation=preview(operator, now)).will_act == 1


def test_a_broker_that_is_away_is_waited_for_under_the_same_redrive_id(
    orders: Topic, stream: Redis, operator: Principal, now: datetime, redis_url: str
) -> None:
    poisons(now, 2)
    operation = confirm(operator, preview(operator, now), now)
    Broker.objects.update(url="redis://127.0.0.1:1/0")

    ended = run(operation, now)
    before = set(Redrive.objects.values_list("pk", flat=True))
    operation.refresh_from_db()
    waiting = upkeep.orphans(now=now)
    Broker.objects.update(url=redis_url)
    finished = run(operation, now + MINUTE)

    assert (ended, finished) == (Ended.LATER, Ended.DONE)
    assert operation.trouble
    assert operation.pk not in waiting.to_run
    assert set(Redrive.objects.values_list("pk", flat=True)) == before
    assert told(operation) == {"sent": 2}
    assert stream.xlen("orders") == 2


def test_what_an_older_run_left_in_flight_is_sent_again_under_its_id(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    operation = confirm(operator, preview(operator, now), now)

    with pytest.raises(Killed), DyingPublisher() as publisher:
        running.run(operation_id=operation.pk, publisher=publisher, clock=lambda: now)
    ended = run(operation, now)

    tokens = [fields[b"x-poisonweb-redrive"] for fields in sent(stream)]
    assert (ended, told(operation)) == (Ended.DONE, {"sent": 3})
    assert (len(tokens), len(set(tokens))) == (6, 3)


class DiesLater(RoutingPublisher):
    """Publish some windows, and die with the next before anything is written down."""

    def __init__(self, windows: int) -> None:
        super().__init__()
        self.windows = windows

    def publish(self, messages: Sequence[Addressed]) -> list[Outcome]:
        outcomes = super().publish(messages)
        self.windows -= 1
        if self.windows < 0:
            raise Killed
        return outcomes


def test_of_two_windows_in_flight_at_a_death_only_one_is_sent_twice(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "WINDOW", 2)
    poisons(now, 7)
    operation = confirm(operator, preview(operator, now), now)

    with pytest.raises(Killed), DiesLater(windows=1) as publisher:
        running.run(operation_id=operation.pk, publisher=publisher, clock=lambda: now)
    between = told(operation)
    ended = run(operation, now)

    tokens = [fields[b"x-poisonweb-redrive"] for fields in sent(stream)]
    assert between == {"sent": 2, "sending": 4, "waiting": 1}
    assert (ended, told(operation)) == (Ended.DONE, {"sent": 7})
    assert (len(tokens), len(set(tokens))) == (7 + 2, 7)
    assert not Item.objects.filter(held=True).exists()


def test_a_window_is_published_when_the_one_before_is_on_record(
    orders: Topic,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "WINDOW", 2)
    poisons(now, 6)
    operation = confirm(operator, preview(operator, now), now)
    on_record: list[int] = []

    class Looks(RoutingPublisher):
        def publish(self, messages: Sequence[Addressed]) -> list[Outcome]:
            on_record.append(Redrive.objects.filter(outcome="sent").count())
            return super().publish(messages)

    with Looks() as publisher:
        running.run(operation_id=operation.pk, publisher=publisher, clock=lambda: now)

    assert on_record == [0, 2, 4]


def test_a_broker_that_is_away_is_asked_once_though_more_was_claimed(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "WINDOW", 2)
    poisons(now, 6)
    operation = confirm(operator, preview(operator, now), now)
    asked: list[int] = []

    class Away(RoutingPublisher):
        def publish(self, messages: Sequence[Addressed]) -> list[Outcome]:
            asked.append(len(messages))
            return [Outcome(kind=OutcomeKind.UNKNOWN, detail="away")] * len(messages)

    with Away() as publisher:
        ended = running.run(
            operation_id=operation.pk, publisher=publisher, clock=lambda: now
        )
    between = told(operation)
    finished = run(operation, now + MINUTE)

    assert (ended, asked, between) == (Ended.LATER, [2], {"unknown": 4, "waiting": 2})
    assert (finished, told(operation)) == (Ended.DONE, {"sent": 6})
    assert stream.xlen("orders") == 6


def test_what_is_refused_with_hostile_words_is_refused_for_good(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    class Refuses(RoutingPublisher):
        def publish(self, messages: Sequence[Addressed]) -> list[Outcome]:
            words = "no \0 queue \ud800"
            return [Outcome(kind=OutcomeKind.REFUSED, detail=words)] * len(messages)

    with Refuses() as publisher:
        ended = running.run(
            operation_id=operation.pk, publisher=publisher, clock=lambda: now
        )

    assert (ended, told(operation)) == (Ended.DONE, {"refused": 1})
    assert Redrive.objects.get().detail.startswith("no \u2400 queue ")


def test_what_was_published_is_on_record_though_the_next_claim_failed(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "WINDOW", 2)
    poisons(now, 4)
    operation = confirm(operator, preview(operator, now), now)
    begin = poison_services.begin

    def begin_once(**asked: Any) -> dict[int, uuid.UUID]:
        if Redrive.objects.exists():
            raise ZeroDivisionError
        return begin(**asked)

    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(poison_services, "begin", begin_once)
        run(operation, now)
    between = told(operation)
    ended = run(operation, now + MINUTE)

    assert between == {"sent": 2, "waiting": 2}
    assert (ended, told(operation)) == (Ended.DONE, {"sent": 4})
    assert stream.xlen("orders") == 4


def test_a_run_leaves_no_connection_behind(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)
    before = sessions()

    run(operation, now)

    eventually(lambda: sessions() == before)


def sessions() -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend'"
        )
        return {pid for (pid,) in cursor.fetchall()}


def test_what_a_consumer_answered_while_the_broker_said_nothing_is_held_no_more(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    class Silent(RoutingPublisher):
        def publish(self, messages: Sequence[Addressed]) -> list[Outcome]:
            super().publish(messages)
            (fields,) = sent(stream)
            header = fields[b"x-poisonweb-redrive"].decode()
            capture(now, failure(now, bookmark="9-0", redrive=header))
            return [Outcome(kind=OutcomeKind.UNKNOWN, detail="cut")] * len(messages)

    with Silent() as publisher:
        ended = running.run(
            operation_id=operation.pk, publisher=publisher, clock=lambda: now
        )

    assert (ended, told(operation)) == (Ended.DONE, {"recurred": 1})
    assert not Item.objects.filter(held=True).exists()


def test_an_unexpected_error_is_told_and_the_operation_waits(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    class BrokenPublisher(RoutingPublisher):
        def publish(self, messages: Sequence[Addressed]) -> list[Outcome]:
            raise ZeroDivisionError("by us")

    with pytest.raises(ZeroDivisionError), BrokenPublisher() as publisher:
        running.run(operation_id=operation.pk, publisher=publisher, clock=lambda: now)

    operation.refresh_from_db()
    assert operation.trouble == "ZeroDivisionError: by us"
    assert operation.pk not in upkeep.orphans(now=now).to_run
    assert operation.pk in upkeep.orphans(now=now + MINUTE).to_run


def test_a_run_that_lost_its_lock_writes_nothing_more(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    def clock() -> datetime:
        Operation.objects.filter(pk=operation.pk).update(epoch=99)
        return now

    with RoutingPublisher() as publisher:
        ended = running.run(operation_id=operation.pk, publisher=publisher, clock=clock)

    assert ended is Ended.ELSEWHERE
    assert not Redrive.objects.filter(outcome="sent").exists()


def test_a_silent_message_may_be_sent_again_or_dropped(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    run(confirm(operator, preview(operator, now), now), now)

    soon = selection.see(operation=preview(operator, now + 9 * MINUTE))
    late = selection.see(operation=preview(operator, now + 11 * MINUTE))

    assert soon.skipped == (("already sent, no answer yet", 1),)
    assert late.will_act == 1


def test_what_was_decided_meanwhile_is_passed_over_and_told(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)
    drop(now, *Poison.objects.all())

    run(operation, now)

    assert told(operation) == {"skipped": 1}
    assert operation.items.get().reason == "meanwhile it became dropped"


def test_confirm_and_end_are_on_the_trail_with_reason_and_counts(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    operation = confirm(operator, preview(operator, now), now)

    run(operation, now)

    first, last = Entry.objects.filter(subject=f"operation:{operation.pk}").order_by(
        "seq"
    )
    assert (first.action, first.actor, first.reason) == (
        "operation.confirmed",
        "user:anna",
        "a test",
    )
    assert last.action == "operation.finished"
    assert last.detail["counts"] == {"sent": 2}
    assert audit.verify().ok


def test_a_viewer_may_not_preview(orders: Topic, now: datetime) -> None:
    viewer = Principal(actor=Actor.user("vera"), scopes=GRANTS[Role.VIEWER])

    with pytest.raises(Forbidden):
        preview(viewer, now)


def test_topics_outside_a_keys_patterns_are_not_there(
    orders: Topic, now: datetime
) -> None:
    poisons(now, 1)
    poisons(now, 1, topic="payments")
    narrow = Principal(
        actor=Actor.key("ci"), scopes=frozenset(Scope), topics=("pay*",), source="api"
    )

    seen = preview(narrow, now, query=Query.parse(""))

    assert [item.poison.topic.name for item in seen.items.all()] == ["payments"]


def test_a_large_selection_is_taken_later_as_of_the_click(
    orders: Topic, operator: Principal, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "TAKEN_AT_ONCE", 1)
    poisons(now, 2)

    seen = preview(operator, now)
    waiting = upkeep.orphans(now=now).to_take
    selection.take(operation_id=seen.pk, now=now)
    selection.take(operation_id=seen.pk, now=now)

    assert (seen.taken, waiting) == (False, (seen.pk,))
    seen.refresh_from_db()
    assert (seen.taken, seen.total, seen.items.count()) == (True, 2, 2)


def test_prune_removes_stale_previews_and_nothing_else(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    kept = confirm(operator, preview(operator, now), now)
    preview(operator, now)
    preview(operator, now)  # it replaces the one before

    early = upkeep.prune(now=now)
    late = upkeep.prune(now=now + 15 * MINUTE)

    assert (early.previews, late.previews) == (1, 1)
    assert list(Operation.objects.values_list("pk", "state")) == [
        (kept.pk, State.QUEUED.value)
    ]


def test_a_worker_that_stopped_answering_is_missed(now: datetime) -> None:
    never = upkeep.worker_missing_for(now=now)
    upkeep.beat(now=now)
    soon = upkeep.worker_missing_for(now=now + timedelta(seconds=9))
    late = upkeep.worker_missing_for(now=now + timedelta(seconds=11))

    assert (never, soon, late) == (None, None, timedelta(seconds=11))
