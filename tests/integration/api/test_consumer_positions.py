"""Positions over HTTP: open, settle, list and move, as any consumer can."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from typing import Any

import pytest

from apps.audit.models import Entry
from apps.bookmarks import services as bookmarks
from apps.bookmarks.models import BookmarkPosition, Mark
from apps.bookmarks.services import watermark_samples
from apps.brokers.models import Topic
from apps.core import clock
from apps.team.rights import Role, Scope
from tests.failure_report_builders import poisons
from tests.integration.api.schema_checking_client import Caller, person, program
from tests.position_opening_and_settling import told_by_broker, update

pytestmark = pytest.mark.django_db

AMPS = "13948331409633568391"
QUIET = timedelta(minutes=3)


@pytest.fixture
def consumer() -> Caller:
    return program(Scope.POSITIONS_WRITE)


def opened(consumer: Caller, **changes: object) -> Any:
    update = {"client_name": "billing-1", "sub_id": "1", "topic": "orders", **changes}
    answer = consumer.post("positions/open", update)
    assert answer.status == 200, answer.json
    return answer.json


def settle(consumer: Caller, *updates: object) -> list[Any]:
    return consumer.post("positions/settle", {"updates": updates}).results


def quiet() -> None:
    """Date the last settling of the holder some minutes back."""
    Mark.objects.update(settled_at=clock.now() - QUIET)


def test_a_consumer_that_opens_again_finds_everything_it_settled(
    consumer: Caller,
) -> None:
    first = opened(consumer)
    answers = settle(
        consumer,
        update(
            first["epoch"],
            (0, 100),
            (120, 130),
            publisher=AMPS,
            received=150,
            persisted=90,
        ),
        update(first["epoch"], (0, 7), bookmark="seven"),
    )

    again = opened(consumer)

    assert (first["positions"], answers) == ([], [{"status": "ok"}] * 2)
    assert again["epoch"] > first["epoch"]
    name = {
        "position": BookmarkPosition.objects.get().pk,
        "sub_id": "1",
        "topic": "orders",
    }
    assert again["positions"] == [
        {
            **name,
            "publisher": "",
            "processed": 7,
            "persisted": None,
            "received": 7,
            "settled": [],
            "resume": 7,
            "bookmark": "seven",
        },
        {
            **name,
            "publisher": AMPS,
            "processed": 100,
            "persisted": 90,
            "received": 150,
            "settled": [[120, 130]],
            "resume": 90,
            "bookmark": "",
        },
    ]


def test_each_update_gets_its_own_answer(consumer: Caller) -> None:
    epoch = opened(consumer)["epoch"]
    opened(consumer)

    answers = settle(
        consumer,
        update(epoch, (0, 5)),
        update(epoch + 1, (0, 5)),
        update(epoch + 1, (5, 0)),
        {**update(epoch + 1), "sub_id": "never"},
        None,
    )

    assert [each["status"] for each in answers] == [
        "fenced",
        "ok",
        "rejected",
        "rejected",
        "rejected",
    ]
    assert [each.get("pointer") for each in answers[2:]] == ["/settled/0", "/topic", ""]
    assert all("detail" in each for each in (answers[0], *answers[2:]))


def test_thousands_of_updates_may_be_gzipped_in_one_request(consumer: Caller) -> None:
    epochs = {
        f"c{n}": opened(consumer, client_name=f"c{n}")["epoch"] for n in range(20)
    }
    updates = [
        update(epoch, (10 * turn, 10 * turn + 9), client_name=name)
        for name, epoch in epochs.items()
        for turn in range(200)
    ]
    raw = gzip.compress(json.dumps({"updates": updates}).encode())

    reply = consumer.post("positions/settle", raw, Content_Encoding="gzip")
    refused = consumer.post("positions/settle", {"updates": [1] * 10_001})

    assert {each["status"] for each in reply.results} == {"ok"}
    assert set(Mark.objects.values_list("processed", flat=True)) == {1999}
    assert refused.status == 413


def test_the_same_opening_sent_twice_fences_only_once(consumer: Caller) -> None:
    holder = {"client_name": "billing-1", "sub_id": "1", "topic": "orders"}

    answers = [
        consumer.post("positions/open", holder, Idempotency_Key="one") for _ in range(2)
    ]
    epoch = answers[0].json["epoch"]

    assert [answer.json["epoch"] for answer in answers] == [epoch, epoch]
    assert settle(consumer, update(epoch, (0, 5))) == [{"status": "ok"}]


@pytest.mark.parametrize(
    ("broken", "status", "pointers"),
    [
        ({"client_name": ""}, 422, ["/client_name"]),
        ({"client_name": 7}, 422, ["/client_name"]),
        ({"sub_id": " "}, 422, ["/sub_id"]),
        ({"topic": "x" * 256}, 422, ["/topic"]),
        ({"replays": "yes"}, 422, ["/replays"]),
    ],
)
def test_an_invalid_opening_is_refused_with_the_remedy(
    consumer: Caller, broken: dict[str, object], status: int, pointers: list[str]
) -> None:
    reply = consumer.post(
        "positions/open",
        {"client_name": "billing-1", "sub_id": "1", "topic": "orders", **broken},
    )

    assert (reply.status, reply.pointers) == (status, pointers)
    assert not BookmarkPosition.objects.exists()


def test_a_key_for_other_topics_sees_and_opens_nothing(consumer: Caller) -> None:
    opened(consumer)
    eu = program(topics=["orders.eu"])
    number = BookmarkPosition.objects.get().pk

    forbidden = eu.post(
        "positions/open", {"client_name": "billing-1", "sub_id": "1", "topic": "orders"}
    )
    absent = eu.post(f"positions/{number}/move", {"to": {"": 1}, "dry_run": True})

    assert (forbidden.status, absent.status) == (403, 404)
    assert opened(eu, sub_id=None, topic=None)["positions"] == []
    assert eu.get("positions").results == []


def test_the_list_has_both_sources_and_consumers_without_marks(
    consumer: Caller,
) -> None:
    epoch = opened(consumer)["epoch"]
    opened(consumer, client_name="billing-2")
    settle(consumer, update(epoch, (0, 5), (8, 9)))
    topic = Topic.objects.get(name="orders")
    bookmarks.observe(topic=topic, consumers=[told_by_broker()], now=clock.now())
    reader = program(Scope.POSITIONS_READ)

    everything = reader.get("positions").results
    of_one = reader.get("positions", topic="orders", client_name="billing-1").results
    first = reader.get("positions", limit=2).json
    rest = reader.get("positions", limit=2, cursor=first["next"]).json

    assert [row["source"] for row in everything] == ["sdk", "sdk", "broker"]
    assert [len(row["marks"]) for row in everything] == [1, 0, 1]
    (mark,) = of_one[0]["marks"]
    assert (mark["processed"], mark["ahead"], mark["head"]) == (5, 1, 19)
    assert (mark["lag"], everything[2]["marks"][0]["lag"]) == (None, 2)
    assert first["results"] + rest["results"] == everything
    assert rest["next"] is None


def test_a_dry_run_shows_what_the_move_then_does(
    consumer: Caller,
) -> None:
    epoch = opened(consumer)["epoch"]
    settle(consumer, update(epoch, (0, 100), (150, 160)))
    (early,) = poisons(clock.now(), 1, bookmark="50")
    (late,) = poisons(clock.now(), 1, bookmark="155")
    number = BookmarkPosition.objects.get().pk
    anna = person(Role.OPERATOR)
    path, body = f"positions/{number}/move", {"to": {"": 40}, "reason": "a bad deploy"}

    dry = anna.post(path, {**body, "dry_run": True})
    at_work = anna.post(path, body)
    untouched = Mark.objects.get().processed
    done = anna.post(path, {**body, "fence": True})

    assert (dry.status, at_work.status, untouched) == (200, 409, 100)
    assert (dry.json["id"], dry.json["held"]) == (None, True)
    (step,) = dry.json["steps"]
    assert (step["before"], step["after"]) == (100, 40)
    assert (step["replayed"], step["passed_over"]) == (71, 0)
    assert step["poison_replayed"] == [late.pk, early.pk]
    assert done.json["steps"] == dry.json["steps"]
    assert done.json["epoch"] == epoch + 1
    assert Mark.objects.get().processed == 40
    assert Entry.objects.latest("seq").action == "position.moved"


def test_a_move_is_given_by_number_time_distance_position_or_move(
    consumer: Caller,
) -> None:
    epoch = opened(consumer)["epoch"]
    settle(consumer, update(epoch, (0, 100)))
    other = opened(consumer, client_name="billing-2")["epoch"]
    settle(consumer, update(other, (0, 33), client_name="billing-2"))
    watermark_samples.take(now=clock.now() - 2 * QUIET)
    quiet()
    first, second = BookmarkPosition.objects.order_by("pk")
    path = f"positions/{first.pk}/move"

    landed, moves = [], []
    for wish in (
        {"to": {"": 10}},
        {"by": 15},
        {"other": second.pk},
        {"at": (clock.now() - QUIET).isoformat()},
    ):
        reply = consumer.post(path, {**wish, "reason": "a test"})
        landed.append(reply.json["steps"][0]["after"])
        moves.append(reply.json["id"])
    undone = consumer.post(path, {"move": moves[0], "reason": "a mistake"})

    assert landed == [10, 25, 33, 100]
    assert undone.status == 409  # it stands at 100 again, as before the first
    assert undone.detail == "The position is there already."


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({}, 422, "/to"),
        ({"to": {"": 1}, "by": 1}, 422, "/to"),
        ({"to": {}}, 422, "/to"),
        ({"to": {"": -2}}, 422, "/to/"),
        ({"to": {"a": 2**63 - 1}}, 422, "/to/a"),
        ({"to": {"a/~b": -2}}, 422, "/to/a~1~0b"),
        ({"to": {"": 1}, "a/b": 1}, 422, "/a~1b"),
        ({"to": {"": True}}, 422, "/to/"),
        ({"to": 7}, 422, "/to"),
        ({"at": "2026-11-20T09:30"}, 422, "/at"),
        ({"at": "yesterday"}, 422, "/at"),
        ({"at": "2000-01-01T00:00Z"}, 422, "/at"),
        ({"by": 1.5}, 422, "/by"),
        ({"by": 0}, 422, "/by"),
        ({"other": 10**6}, 422, "/other"),
        ({"move": 10**6}, 422, "/move"),
        ({"to": {"": 1}, "fence": "yes"}, 422, "/fence"),
        ({"to": {"": 1}, "dry_run": None}, 422, "/dry_run"),
        ({"to": {"": 1}, "reason": 7}, 422, "/reason"),
        ({"to": {"": 1}, "reason": ""}, 422, "/reason"),
        ({"to": {"": 1}, "dryrun": True}, 422, "/dryrun"),
        ([], 400, ""),
    ],
)
def test_an_invalid_move_moves_nothing(
    consumer: Caller, body: Any, status: int, pointer: str
) -> None:
    settle(consumer, update(opened(consumer)["epoch"], (0, 100)))
    quiet()
    number = BookmarkPosition.objects.get().pk
    request = {"reason": "a test", **body} if isinstance(body, dict) else body

    reply = consumer.post(f"positions/{number}/move", request)

    assert (reply.status, reply.pointers) == (status, [pointer])
    assert Mark.objects.get().processed == 100


def test_a_viewer_may_not_move_a_position(consumer: Caller) -> None:
    opened(consumer)
    number = BookmarkPosition.objects.get().pk

    reply = person(Role.VIEWER).post(f"positions/{number}/move", {"to": {"": 1}})

    assert reply.status == 403
