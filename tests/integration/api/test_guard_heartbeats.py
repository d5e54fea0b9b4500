"""Guards send heartbeats with their counters; the newest of each guard is stored."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import pytest

from apps.capture.intake import guard_heartbeats
from apps.capture.models import Counter, Guard
from apps.team.rights import Scope
from tests.failure_report_builders import GUARD, counter, guard_word
from tests.integration.api.schema_checking_client import Caller, Reply, program

pytestmark = pytest.mark.django_db

Member = dict[str, object]
REPORTER = str(uuid.uuid4())


@pytest.fixture
def caller() -> Caller:
    return program(Scope.CAPTURE_WRITE)


def word(now: datetime, **changes: object) -> Member:
    return guard_word(now, **{"reporter": REPORTER, **changes})


def tell(caller: Caller, *words: object) -> Reply:
    return caller.post("counters", {"counters": [], "guards": words})


def statuses(reply: Reply) -> list[str]:
    assert reply.status == 200, reply.json
    return [answer["status"] for answer in reply.json["guards"]]


def test_the_newest_heartbeat_of_a_guard_is_stored(
    caller: Caller, now: datetime
) -> None:
    later = word(now, state="paused", detail="50 failures in a row", suspected=3)
    earlier = word(now - timedelta(seconds=9))

    answers = [
        statuses(tell(caller, each)) for each in (earlier, later, earlier, later)
    ]

    assert answers == [["created"], ["updated"], ["duplicate"], ["duplicate"]]
    guard = Guard.objects.get()
    assert (guard.state, guard.detail) == ("paused", "50 failures in a row")
    assert (guard.host, guard.handler_version, guard.suspected) == (
        "web-3",
        "2026.11.20",
        3,
    )


def test_the_newest_of_several_heartbeats_in_one_request_is_stored(
    caller: Caller, now: datetime
) -> None:
    words = [
        word(now - timedelta(seconds=age), detail=f"{age} s ago") for age in (5, 1, 3)
    ]

    answers = statuses(tell(caller, *words))

    assert answers == ["duplicate", "created", "duplicate"]
    assert Guard.objects.get().detail == "1 s ago"


def test_each_process_topic_group_and_client_is_a_guard_of_its_own(
    caller: Caller, now: datetime
) -> None:
    others = [
        {"reporter": str(uuid.uuid4())},
        {"topic": "payments"},
        {"consumer_group": "audit"},
        {"client_name": "billing-2"},
    ]

    answers = statuses(tell(caller, word(now), *(word(now, **each) for each in others)))

    assert answers == ["created"] * 5
    assert Guard.objects.count() == 5


def test_a_state_is_dated_from_when_it_began(caller: Caller, now: datetime) -> None:
    began = now - timedelta(seconds=30)
    moments = [now - timedelta(seconds=60), began, now]

    for moment, state in zip(moments, ("running", "paused", "paused"), strict=True):
        tell(caller, word(moment, state=state))

    guard = Guard.objects.get()
    assert (guard.since, guard.at) == (began, now)


def test_a_guard_whose_clock_is_set_back_is_ignored_only_for_a_while(
    caller: Caller, now: datetime
) -> None:
    tell(caller, word(now + timedelta(minutes=4)))
    back = word(now, state="paused")

    at_once = statuses(tell(caller, back))
    Guard.objects.update(heard_at=now - 2 * guard_heartbeats.GUARD_LIVES)
    in_the_end = statuses(tell(caller, back))

    assert (at_once, in_the_end) == (["duplicate"], ["updated"])
    assert Guard.objects.get().state == "paused"


@pytest.mark.parametrize("year", ["0001", "1970", "9999"])
def test_an_implausible_time_is_replaced_by_ours(
    caller: Caller, now: datetime, year: str
) -> None:
    reply = tell(caller, word(now, at=f"{year}-12-31T23:59:59Z"))

    guard = Guard.objects.get()
    assert statuses(reply) == ["created"]
    assert timedelta(0) <= guard.at - now < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"reporter": "{" + REPORTER + "}"}, "/reporter"),
        ({"topic": ""}, "/topic"),
        ({"topic": "or\0ders"}, "/topic"),
        ({"consumer_group": None}, "/consumer_group"),
        ({"client_name": "x" * 256}, "/client_name"),
        ({"host": "\ud800"}, "/host"),
        ({"state": "fine"}, "/state"),
        ({"state": ["running"]}, "/state"),
        ({"detail": 7}, "/detail"),
        ({"detail": "x" * 200_000}, "/detail"),
        ({"skips_age_s": -1}, "/skips_age_s"),
        ({"skips_age_s": "soon"}, "/skips_age_s"),
        ({"spooled": -1}, "/spooled"),
        ({"suspected": True}, "/suspected"),
        ({"journal": 1}, "/journal"),
        ({"at": "today"}, "/at"),
        ({"at": "2026-11-20T09:30:00"}, "/at"),
        ({"at": "9999-12-31T23:59:59-01:00"}, "/at"),
    ],
)
def test_an_invalid_heartbeat_is_rejected_and_the_others_are_stored(
    caller: Caller, now: datetime, changes: Member, pointer: str
) -> None:
    reply = tell(caller, word(now, **changes), word(now))

    wrong, right = reply.json["guards"]
    assert (wrong["status"], wrong["pointer"]) == ("rejected", pointer)
    assert right["status"] == "created"


@pytest.mark.parametrize("member", [None, 7, "running", [], [["state", "running"]]])
def test_a_heartbeat_that_is_no_object_is_rejected(
    caller: Caller, member: object
) -> None:
    assert statuses(tell(caller, member)) == ["rejected"]


def test_an_infinite_age_of_the_skip_list_is_rejected(
    caller: Caller, now: datetime
) -> None:
    reply = tell(caller, word(now, skips_age_s=float("inf")))

    assert reply.status == 400 or statuses(reply) == ["rejected"]


def test_a_detail_may_have_any_characters_and_is_cut(
    caller: Caller, now: datetime
) -> None:
    hostile = "\0\u202e\ud800" + "A" * 100_000

    answers = statuses(tell(caller, word(now, detail=hostile)))

    detail = Guard.objects.get().detail
    assert answers == ["created"]
    assert len(detail) == 500
    assert "\0" not in detail


def test_a_heartbeat_of_a_topic_outside_the_key_is_rejected(now: datetime) -> None:
    caller = program(Scope.CAPTURE_WRITE, topics=["orders"])

    reply = tell(caller, word(now, topic="payments"), word(now))

    assert [answer.get("pointer") for answer in reply.json["guards"]] == [
        "/topic",
        None,
    ]
    assert Guard.objects.get().topic.name == "orders"


def test_counters_and_guards_may_be_sent_together_or_alone(
    caller: Caller, now: datetime
) -> None:
    both = caller.post("counters", {"counters": [counter()], "guards": [word(now)]})
    alone = caller.post("counters", {"counters": [counter()]})

    assert (both.results[0]["status"], statuses(both)) == ("counted", ["created"])
    assert "guards" not in alone.json
    assert Counter.objects.count() == 2


@pytest.mark.parametrize("body", [None, 7, {}, "running"])
def test_guards_that_are_no_list_are_refused_before_anything_is_counted(
    caller: Caller, body: object
) -> None:
    answer = caller.post("counters", {"counters": [counter()], "guards": body})

    assert (answer.status, answer.pointers) == (400, ["/guards"])
    assert Counter.objects.count() == 0


def test_a_silent_guard_is_deleted_after_a_while(now: datetime) -> None:
    guard_heartbeats.record_heartbeats(members=[word(now)], principal=GUARD, now=now)

    later = [
        now + guard_heartbeats.PRUNED_AFTER + timedelta(seconds=s) for s in (-1, 1)
    ]
    forgotten = [guard_heartbeats.prune(now=moment) for moment in later]

    assert forgotten == [0, 1]
    assert not Guard.objects.exists()
