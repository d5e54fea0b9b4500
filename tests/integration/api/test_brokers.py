"""The calls about brokers and topics: no answer has a secret, nothing acts twice."""

from __future__ import annotations

import json
from datetime import datetime
from urllib.parse import urlsplit

import pytest
import redis

from apps.audit.models import Entry
from apps.brokers import sealed_addresses
from apps.brokers.adapters import KINDS, BrokerKind
from apps.brokers.models import Broker, Topic
from apps.capture.models import HeldDeadLetter, Lane
from apps.team.rights import Role
from tests.failure_report_builders import poisons
from tests.integration.api.schema_checking_client import Caller, Reply, person, program

pytestmark = pytest.mark.django_db

Member = dict[str, object]


@pytest.fixture
def ours(admin: Caller, redis_url: str) -> int:
    number: int = admin.post("brokers", new(redis_url)).json["id"]
    return number


def new(address: str = "redis://127.0.0.1:9", **changes: object) -> Member:
    return {"name": "ours", "kind": "redis_streams", "url": address, **changes}


def patch(caller: Caller, path: str, body: object) -> Reply:
    return caller.send("PATCH", path, raw=json.dumps(body).encode())


def registered(caller: Caller, **changes: object) -> Reply:
    # `changes` may override the name, even with an invalid one.
    queue = f"{changes.get('name', 'orders')!s:.99}-poison".replace("\0", "")
    request = {"name": "orders", "broker": "ours", "dead_letter_queue": queue}
    return caller.post("topics", {**request, **changes})


def test_a_broker_is_added_and_no_answer_contains_its_address(
    admin: Caller, redis_url: str
) -> None:
    reply = admin.post("brokers", new(redis_url, options={"body_field": "b"}))

    answers = [reply, admin.get("brokers"), admin.get(reply.response["Location"])]
    password = urlsplit(redis_url).password or "?"
    assert reply.status == 201
    assert reply.json["address"] == "kept, sealed"
    assert reply.json["options"] == {"body_field": "b"}
    assert reply.json["capabilities"]["ordering"] == "topic"
    assert reply.json["capabilities"]["reserved"] == []
    assert answers[1].results == [reply.json] == [answers[2].json]
    assert not any(password.encode() in each.response.content for each in answers)
    assert not any("url" in each for each in (reply.json, answers[2].json))
    assert sealed_addresses.reveal(Broker.objects.get().url) == redis_url


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": None}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"kind": "pigeon"}, "/kind"),
        ({"kind": 7}, "/kind"),
        ({"url": None}, "/url"),
        ({"url": ["redis://x"]}, "/url"),
        ({"url": "redis://:sesame@[fe80::1]"}, "/url"),
        ({"url": "redis://:sesame@127.0.0.1:x"}, "/url"),
        ({"options": []}, "/options"),
        ({"options": {"colour": 1}}, "/options"),
        ({"password": "sesame"}, "/password"),
    ],
)
def test_an_invalid_broker_is_a_422_that_names_the_member(
    admin: Caller, change: Member, pointer: str
) -> None:
    reply = admin.post("brokers", {**new(), **change})

    assert (reply.status, reply.pointers) == (422, [pointer])
    assert b"sesame" not in reply.response.content
    assert Broker.objects.count() == 0


def test_all_members_of_a_broker_that_are_invalid_are_named_at_once(
    admin: Caller,
) -> None:
    wrong = {"name": "", "kind": "pigeon", "url": 7, "options": "sesame"}

    reply = admin.post("brokers", wrong)

    assert reply.status == 422
    assert sorted(reply.pointers) == ["/kind", "/name", "/options", "/url"]
    assert b"sesame" not in reply.response.content


def test_options_of_a_broker_may_be_null(admin: Caller, redis_url: str) -> None:
    added = admin.post("brokers", new(redis_url, options=None)).json
    patch(admin, f"brokers/{added['id']}", {"options": {"body_field": "b"}})

    changed = patch(admin, f"brokers/{added['id']}", {"name": "a", "options": None})

    assert added["options"] == {}
    assert changed.json["options"] == {"body_field": "b"}


@pytest.mark.parametrize("body", [[], 13, None])
def test_a_body_of_another_shape_is_a_400(admin: Caller, body: object) -> None:
    assert admin.post("brokers", body).status == 400
    assert admin.post("topics", body).status == 400


def test_adding_twice_under_one_key_adds_once(admin: Caller) -> None:
    answers = [
        admin.post("brokers", new(), Idempotency_Key=key) for key in ("a", "a", "b")
    ]

    assert [answer.status for answer in answers] == [201, 201, 422]
    assert answers[0].json == answers[1].json
    assert Entry.objects.filter(action="broker.registered").count() == 1


def test_members_left_out_of_a_change_keep_their_values(
    admin: Caller, ours: int
) -> None:
    path, before = f"brokers/{ours}", Broker.objects.get().url

    named = patch(admin, path, {"name": "renamed"})
    moved = patch(admin, path, {"url": "env:BROKER_ELSEWHERE", "options": {}})
    refused = [
        patch(admin, path, {"kind": "sqs"}),
        patch(admin, path, {"url": ""}),
        patch(admin, path, {"name": ""}),
        patch(admin, path, {"name": "x" * 256}),
    ]

    assert (named.status, named.json["name"]) == (200, "renamed")
    assert moved.json["address"] == "env:BROKER_ELSEWHERE"
    assert Broker.objects.get().url != before
    pointers = [["/kind"], ["/url"], ["/name"], ["/name"]]
    assert [reply.pointers for reply in refused] == pointers
    assert "add another broker" in refused[0].json["detail"]
    assert all("100 characters" in reply.json["detail"] for reply in refused[2:])


def delete(caller: Caller, path: str, body: object) -> Reply:
    return caller.send("DELETE", path, raw=json.dumps(body).encode())


def test_a_broker_is_removed_with_its_topics(admin: Caller, ours: int) -> None:
    registered(admin, mode="observe")

    removed = delete(admin, f"brokers/{ours}", {"reason": "the wrong one"})

    entry = Entry.objects.order_by("-seq")[0]
    assert (removed.status, removed.json["topics"]) == (200, 1)
    assert (entry.reason, entry.detail["topics"]) == ("the wrong one", ["orders"])
    assert not Topic.objects.exists()
    assert admin.get(f"brokers/{ours}").status == 404
    assert admin.send("DELETE", f"brokers/{ours}").status == 404


def test_a_topic_with_records_is_not_removed_and_neither_is_its_broker(
    admin: Caller, ours: int, now: datetime
) -> None:
    registered(admin, mode="observe")
    registered(admin, name="bills", mode="observe")
    poisons(now, 1)

    refused = [
        admin.send("DELETE", f"brokers/{ours}"),
        delete(admin, "topics", {"name": "orders"}),
    ]
    removed = delete(admin, "topics", {"name": "bills", "reason": "not ours"})

    assert [reply.status for reply in refused] == [409, 409]
    assert all(
        reply.json["type"] == "urn:poisonweb:problem:on-record"
        and "orders (messages) has something on record" in reply.json["detail"]
        for reply in refused
    )
    assert (removed.status, removed.json["name"]) == (200, "bills")
    assert Entry.objects.get(action="topic.removed").reason == "not ours"
    assert list(Topic.objects.values_list("name")) == [("orders",)]


def test_a_reason_of_2000_characters_is_recorded_whole(
    admin: Caller, ours: int
) -> None:
    long = "x" * 2_000
    registered(admin, owner="me", reason=long)
    patch(admin, "topics", {"name": "orders", "owner": "you", "reason": long})
    delete(admin, "topics", {"name": "orders", "reason": long})
    delete(admin, f"brokers/{ours}", {"reason": f" {long}\n"})

    reasons = Entry.objects.exclude(reason="").values_list("reason", flat=True)
    assert list(reasons) == [long] * 4


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("topics", {}, 422),
        ("topics", {"name": "orders", "topic": "bills"}, 422),
        ("topics", {"name": "nowhere"}, 404),
        ("topics", [], 400),
        ("brokers/{}", {"force": True}, 422),
        ("brokers/{}", {"reason": 7}, 422),
        ("brokers/{}", {"reason": "x" * 2_001}, 422),
        ("topics", {"name": "orders", "reason": "x" * 2_001}, 422),
    ],
)
def test_an_invalid_removal_removes_nothing(
    admin: Caller, ours: int, path: str, body: object, status: int
) -> None:
    registered(admin)

    reply = delete(admin, path.format(ours), body)

    assert (reply.status, Topic.objects.count()) == (status, 1)


def test_testing_a_broker_answers_200_whether_it_is_reached_or_not(
    admin: Caller, ours: int
) -> None:
    good = admin.post(f"brokers/{ours}/test", {})
    Broker.objects.update(url=sealed_addresses.seal("redis://:sesame@127.0.0.1:9"))
    bad = admin.post(f"brokers/{ours}/test", {})

    assert (good.status, good.json["ok"]) == (200, True)
    assert good.json["detail"].startswith("Redis")
    assert (bad.status, bad.json["ok"]) == (200, False)
    assert b"sesame" not in bad.response.content


def test_a_broker_whose_client_is_missing_fails_its_test(
    admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = BrokerKind(name="sqs", title="Absent", client="apps", url="")
    monkeypatch.setitem(KINDS, "sqs_absent", absent)
    Broker.objects.create(name="a", kind="sqs_absent", url="env:BROKER_NOWHERE")
    number = Broker.objects.get().pk

    data = admin.post(f"brokers/{number}/test", {}).json

    assert data["ok"] is False


def test_a_broker_of_a_kind_without_its_client_is_a_422_that_names_the_remedy(
    admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = BrokerKind(name="absent", title="Absent", client="apps", url="")
    monkeypatch.setitem(KINDS, "absent", absent)

    reply = admin.post("brokers", new(kind="absent"))

    assert (reply.status, reply.pointers) == (422, ["/kind"])
    assert "pip install -r apps/brokers/requirements/absent.txt" in reply.json["detail"]
    assert Broker.objects.count() == 0


def test_options_of_another_shape_are_answered_with_an_example_of_that_kind(
    admin: Caller,
) -> None:
    reply = admin.post("brokers", new("amqp://host", kind="rabbitmq", options=[]))

    assert (reply.status, reply.pointers) == (422, ["/options"])
    assert "management_url" in reply.json["detail"]
    assert "body_field" not in reply.json["detail"]


def test_discovered_topics_have_the_names_that_they_have_here(
    admin: Caller, ours: int, stream: redis.Redis
) -> None:
    for name in (b"orders", b"orders-poison", b"\xff\x00"):
        stream.xadd(name, {"body": b"1"})
    registered(admin, name="mine", native_name="orders")

    rows = admin.get(f"brokers/{ours}/discover").json["results"]

    by_name = {each["native_name"]: each for each in rows}
    assert by_name["orders"] == {
        "native_name": "orders",
        "depth": 1,
        "dead_letter_queue": "orders-poison",
        "dead_letters": 1,
        "name": "mine",
    }
    assert len(rows) == 2


def test_a_key_for_some_topics_discovers_only_those(
    ours: int, stream: redis.Redis
) -> None:
    stream.xadd("orders.eu", {"body": b"1"})
    stream.xadd("invoices", {"body": b"1"})
    registered(program(), name="orders.us")
    mine = program(topics=["orders.*"])

    rows = mine.get(f"brokers/{ours}/discover").json["results"]

    assert [each["native_name"] for each in rows] == ["orders.eu"]


def test_a_broker_that_is_away_is_a_503_without_its_secret(
    admin: Caller, ours: int
) -> None:
    Broker.objects.update(url=sealed_addresses.seal("redis://:sesame@127.0.0.1:9"))

    reply = admin.get(f"brokers/{ours}/discover")

    assert reply.status == 503
    assert b"sesame" not in reply.response.content


@pytest.mark.parametrize(
    "name",
    ["a\r\nb", "\x1b[1m", "a\x85", "\u202eb", "a\u2028b", " a", "a ", "a\u200bb"],
)
def test_a_topic_name_with_invisible_characters_is_refused(
    admin: Caller, ours: int, name: str
) -> None:
    reply = registered(admin, name=name, dead_letter_queue="orders-poison")

    assert (reply.status, reply.pointers) == (422, ["/name"])
    assert not Topic.objects.exists()


@pytest.mark.parametrize(
    ("field", "more"), [("native_name", {}), ("tee_queue", {"mode": "tee"})]
)
@pytest.mark.parametrize("name", ["a\r\nb", "\x1b[1m", "\u202eb", "a\u200bb"])
def test_a_queue_name_with_invisible_characters_is_refused(
    admin: Caller, ours: int, field: str, more: dict[str, str], name: str
) -> None:
    reply = registered(
        admin, dead_letter_queue="orders-poison", **{field: name}, **more
    )

    assert (reply.status, reply.pointers) == (422, [f"/{field}"])
    assert not Topic.objects.exists()


def test_a_topic_is_registered_with_its_policies_and_its_lane(
    admin: Caller, ours: int
) -> None:
    reply = registered(
        admin,
        name="/sample/bookmarkStore é%",
        native_name="store",
        mode="capture",
        reason="ours",
        max_dequeue_count=3,
        visibility_timeout="00:00:30",
        retention_days=14,
        owner="Team A",
        runbook="https://wiki.example/",
        options={"body_field": "b"},
    )

    assert reply.status == 201, reply.json
    rows = admin.get("topics", topic="/sample/bookmarkStore é%").results
    assert rows == [reply.json]
    facts = {name: reply.json[name] for name in ("native_name", "owner", "broker")}
    assert facts == {"native_name": "store", "owner": "Team A", "broker": "ours"}
    assert reply.json["visibility_timeout"] == 30.0
    lane = reply.json["lane"]
    assert (lane["mode"], lane["state"], lane["paused"]) == ("capture", "off", False)
    assert Entry.objects.get(action="lane.set").reason == "ours"
    assert Entry.objects.get(action="lane.set").record.count("key:") == 1


# --- a dead-letter queue that a convention names


@pytest.fixture
def functions() -> Broker:
    """Give a broker whose kind names the dead-letter queue of every topic."""
    url = "env:BROKER_NOWHERE"
    return Broker.objects.create(name="functions", kind="azure_queue", url=url)


def declared(caller: Caller, name: str, **changes: object) -> Reply:
    return caller.post("topics", {"name": name, "broker": "functions", **changes})


def test_a_topic_gets_the_dead_letter_queue_of_the_convention(
    admin: Caller, functions: Broker
) -> None:
    existing = declared(admin, "orders")
    observed = declared(admin, "bills", mode="observe")
    renamed = declared(admin, "mine", native_name="letters", owner="Team A")
    later = patch(admin, "topics", {"name": "orders", "mode": "capture", "reason": "x"})

    replies = [existing, observed, renamed, later]
    assert [each.status for each in replies] == [201, 201, 201, 200]
    queues = [each.json["dead_letter_queue"] for each in replies]
    assert queues == [
        *("orders-poison", "bills-poison", "letters-poison", "orders-poison"),
    ]
    assert existing.json["lane"] is None
    assert observed.json["lane"]["mode"] == "observe"
    entries = Entry.objects.filter(action="topic.registered").order_by("seq")
    assert entries[0].detail["dead_letter_queue"] == "orders-poison"


def test_a_dead_letter_queue_that_is_named_wins_over_the_convention(
    admin: Caller, functions: Broker
) -> None:
    named = declared(admin, "orders", dead_letter_queue="failed-orders")
    none = declared(admin, "bills", dead_letter_queue=None)
    blank = declared(admin, "letters", dead_letter_queue="")
    watched = patch(admin, "topics", {"name": "bills", "mode": "observe"})

    assert named.json["dead_letter_queue"] == "failed-orders"
    assert none.json["dead_letter_queue"] == blank.json["dead_letter_queue"] == ""
    assert watched.json["dead_letter_queue"] == "bills-poison"


@pytest.mark.parametrize(
    ("name", "pointer", "why"),
    [
        ("a" * 57, "/dead_letter_queue", "57 characters leaves no room for -poison"),
        ("orders-poison", "/dead_letter_queue", "looks like one itself"),
        ("Orders", "/native_name", "no queue name"),
    ],
)
def test_a_name_that_the_convention_leaves_without_a_queue_is_refused(
    admin: Caller, functions: Broker, name: str, pointer: str, why: str
) -> None:
    refused = declared(admin, name)

    assert (refused.status, refused.pointers) == (422, [pointer])
    assert why in refused.json["detail"]
    assert not Topic.objects.exists()


def test_a_name_without_room_is_taken_with_another_queue_or_none(
    admin: Caller, functions: Broker
) -> None:
    longest = declared(admin, "a" * 56)
    named = declared(admin, "b" * 57, dead_letter_queue="failed")
    none = declared(admin, "orders-poison", dead_letter_queue=None)
    refused = patch(admin, "topics", {"name": "orders-poison", "mode": "observe"})

    assert longest.json["dead_letter_queue"] == "a" * 56 + "-poison"
    assert [reply.status for reply in (named, none)] == [201, 201]
    assert (refused.status, refused.pointers) == (422, ["/dead_letter_queue"])
    assert "looks like one itself" in refused.json["detail"]


def test_a_topic_of_a_kind_without_convention_gets_no_queue(
    admin: Caller, ours: int
) -> None:
    reply = admin.post("topics", {"name": "orders", "broker": "ours"})
    refused = patch(admin, "topics", {"name": "orders", "mode": "observe"})

    assert (reply.status, reply.json["dead_letter_queue"]) == (201, "")
    assert refused.status == 409
    assert "name its broker and its dead-letter queue first" in refused.json["detail"]


def test_a_mode_without_a_dead_letter_queue_is_refused(
    admin: Caller, functions: Broker
) -> None:
    refused = declared(admin, "orders", dead_letter_queue=None, mode="observe")

    assert (refused.status, refused.pointers) == (422, ["/dead_letter_queue"])
    assert not Topic.objects.exists()


def test_registering_twice_under_one_key_registers_once(
    admin: Caller, ours: int
) -> None:
    request = {"name": "orders", "broker": "ours", "dead_letter_queue": "q"}

    answers = [
        admin.post("topics", request, Idempotency_Key=key) for key in ("a", "a", "b")
    ]

    assert [answer.status for answer in answers] == [201, 201, 409]
    assert "PATCH" in answers[2].detail
    assert Topic.objects.count() == 1


def test_a_topic_known_by_report_gets_its_broker(
    admin: Caller, ours: int, now: datetime
) -> None:
    poisons(now, 1)

    reply = registered(admin)

    assert (reply.status, reply.json["broker"]) == (201, "ours")
    assert Topic.objects.count() == 1


def test_a_topic_of_another_broker_is_not_taken_over(admin: Caller, ours: int) -> None:
    admin.post("brokers", new(name="other"))
    registered(admin)

    refused = registered(admin, broker="other")
    twice = registered(admin, name="again", native_name="orders")
    nowhere = registered(admin, name="x", broker="nowhere")

    assert [refused.status, twice.status, nowhere.status] == [409, 409, 422]
    assert nowhere.pointers == ["/broker"]
    assert Topic.objects.get().broker_id == ours


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": "a\0b"}, "/name"),
        ({"name": "x" * 256}, "/name"),
        ({"broker": None}, "/broker"),
        ({"broker": ""}, "/broker"),
        ({"max_dequeue_count": 0}, "/max_dequeue_count"),
        ({"max_dequeue_count": 10_001}, "/max_dequeue_count"),
        ({"max_dequeue_count": True}, "/max_dequeue_count"),
        ({"max_dequeue_count": "7"}, "/max_dequeue_count"),
        ({"max_dequeue_count": None}, "/max_dequeue_count"),
        ({"visibility_timeout": -1}, "/visibility_timeout"),
        ({"visibility_timeout": 604_801}, "/visibility_timeout"),
        ({"visibility_timeout": None}, "/visibility_timeout"),
        ({"visibility_timeout": "later"}, "/visibility_timeout"),
        ({"retention_days": "soon"}, "/retention_days"),
        ({"retention_days": 36_501}, "/retention_days"),
        ({"owner": 7}, "/owner"),
        ({"owner": "a\u202eb"}, "/owner"),
        ({"owner": "x" * 201}, "/owner"),
        ({"runbook": "javascript:alert(1)"}, "/runbook"),
        ({"runbook": "https://" + "x" * 2_000}, "/runbook"),
        ({"options": "x"}, "/options"),
        ({"options": {"body_field": "x" * 10_000}}, "/options"),
        ({"options": {"colour": 1}}, "/options"),
        ({"mode": "steal"}, "/mode"),
        ({"mode": "tee"}, "/tee_queue"),
        ({"tee_queue": "copies"}, "/tee_queue"),
        ({"paused": "yes"}, "/paused"),
        ({"reason": 7}, "/reason"),
        ({"reason": "x" * 2_001}, "/reason"),
        ({"depth": 7}, "/depth"),
    ],
)
def test_an_invalid_topic_is_a_422_that_names_the_member(
    admin: Caller, ours: int, change: Member, pointer: str
) -> None:
    reply = registered(admin, **change)

    assert (reply.status, reply.pointers) == (422, [pointer])
    assert (Topic.objects.count(), Lane.objects.count()) == (0, 0)


def test_all_members_of_a_topic_that_are_invalid_are_named_at_once(
    admin: Caller, ours: int
) -> None:
    wrong = {"max_dequeue_count": 0, "runbook": "ftp://x", "options": [], "reason": 7}

    reply = registered(admin, **wrong)

    assert reply.status == 422
    assert sorted(reply.pointers) == sorted(f"/{name}" for name in wrong)


def test_null_clears_a_policy(admin: Caller, ours: int) -> None:
    policies: Member = {
        "owner": "Team A",
        "runbook": "https://wiki.example/",
        "options": {"body_field": "b"},
        "retention_days": 14,
        "dead_letter_queue": "q",
    }
    registered(admin, **policies)

    cleared = patch(
        admin, "topics", {"name": "orders", **dict.fromkeys(policies, None)}
    )

    assert cleared.status == 200, cleared.json
    assert {name: cleared.json[name] for name in policies} == {
        "owner": "",
        "runbook": "",
        "options": {},
        "retention_days": None,
        "dead_letter_queue": "",
    }


def test_a_topic_that_its_broker_named_by_invisible_characters_is_changed(
    admin: Caller, ours: int
) -> None:
    name = "a\x1b\u202eb "
    Topic.objects.create(name=name, native_name=name, broker_id=ours)

    changed = patch(admin, "topics", {"name": name, "owner": "Team A"})
    removed = delete(admin, "topics", {"name": name})

    assert (changed.status, changed.json["owner"]) == (200, "Team A")
    assert (removed.status, Topic.objects.count()) == (200, 0)


def test_a_change_is_all_or_nothing(admin: Caller, ours: int) -> None:
    registered(admin, mode="observe")

    refused = patch(admin, "topics", {"name": "orders", "owner": "me", "mode": "tee"})
    after_refusal = Topic.objects.get().owner
    done = patch(
        admin,
        "topics",
        {"name": "orders", "owner": "me", "mode": "capture", "paused": True},
    )
    cleared = patch(admin, "topics", {"name": "orders", "owner": None, "paused": False})

    assert (refused.status, refused.pointers) == (422, ["/tee_queue"])
    assert after_refusal == ""
    assert (done.json["owner"], done.json["lane"]["mode"]) == ("me", "capture")
    assert done.json["lane"]["paused"] is True
    assert (cleared.json["owner"], cleared.json["lane"]["paused"]) == ("", False)


def test_a_lane_needs_a_dead_letter_queue(admin: Caller, ours: int) -> None:
    registered(admin, dead_letter_queue="")

    reply = patch(admin, "topics", {"name": "orders", "mode": "observe"})

    assert reply.status == 409
    assert admin.get("topics").results[0]["lane"] is None


def test_a_topic_shows_the_state_of_its_lane(
    admin: Caller, ours: int, now: datetime
) -> None:
    registered(admin, mode="observe")
    Lane.objects.update(state="running", seen_at=now, depth=312, error="away")
    HeldDeadLetter.objects.create(
        topic=Topic.objects.get(), bookmark="1-0", reason="r", size=1, seen_at=now
    )

    (topic,) = admin.get("topics", broker="ours").results

    lane = topic["lane"]
    assert (lane["state"], lane["heard"], lane["depth"]) == ("running", True, 312)
    assert (lane["held"], lane["error"]) == (1, "away")
    assert admin.get("topics", broker="other").results == []


def test_a_filter_of_topics_without_text_matches_all(admin: Caller, ours: int) -> None:
    registered(admin)

    everything = admin.get("topics", topic="", broker="")
    long = admin.get("topics", topic="x" * 256, broker="x" * 101)

    assert [topic["name"] for topic in everything.results] == ["orders"]
    assert (long.status, sorted(long.pointers)) == (422, ["/broker", "/topic"])


def test_topics_are_paged(admin: Caller, ours: int) -> None:
    for number in range(5):
        registered(admin, name=f"t{number}")

    first = admin.get("topics", limit=3).json
    second = admin.get("topics", limit=3, cursor=first["next"]).json

    names = [each["name"] for each in (*first["results"], *second["results"])]
    assert names == [f"t{number}" for number in range(5)]
    assert second["next"] is None


def test_a_key_sees_and_changes_only_its_topics(admin: Caller, ours: int) -> None:
    registered(admin)
    mine = program(topics=["invoices"])

    answers = [
        registered(mine, name="other"),
        patch(mine, "topics", {"name": "orders", "owner": "me"}),
        mine.post("brokers", new(name="b")),
        patch(mine, f"brokers/{ours}", {"name": "b"}),
        patch(mine, "brokers/0", {"name": "b"}),
        mine.send("DELETE", f"brokers/{ours}"),
    ]

    assert [answer.status for answer in answers] == [403, 404, 403, 404, 404, 404]
    assert mine.get("topics").results == []
    assert Topic.objects.get().owner == ""


def test_a_key_for_some_topics_sees_only_the_brokers_that_carry_any(
    admin: Caller, ours: int
) -> None:
    other = admin.post("brokers", new(name="other")).json["id"]
    registered(admin)
    mine, stranger = program(topics=["orders"]), program(topics=["invoices"])

    assert [each["id"] for each in mine.get("brokers").results] == [ours]
    assert stranger.get("brokers").results == []
    for broker, status in ((ours, 200), (other, 404)):
        assert mine.get(f"brokers/{broker}").status == status
        assert mine.post(f"brokers/{broker}/test").status == status
    assert mine.get(f"brokers/{other}/discover").status == 404
    assert patch(mine, f"brokers/{ours}", {"name": "b"}).status == 403


def test_an_operator_reads_and_an_admin_writes() -> None:
    operator = person(Role.OPERATOR)

    assert operator.get("brokers").status == 200
    assert operator.post("brokers", new()).status == 403
    assert person(Role.ADMIN).post("brokers", new()).status == 201


def test_ordered_must_be_true_or_false(now: datetime) -> None:
    caller = program()
    (poison,) = poisons(now, 1)
    request = {"verb": "redrive", "ids": [poison.pk]}

    plain = caller.post("operations/preview", request)
    ordered = caller.post("operations/preview", {**request, "ordered": True})
    wrong = caller.post("operations/preview", {**request, "ordered": "yes"})
    drop = caller.post(
        "operations/preview", {**request, "verb": "drop", "ordered": True}
    )

    assert (plain.status, plain.json["ordered"]) == (200, False)
    # Without a broker its ordering is unknown.
    assert ordered.status in {200, 409, 422}
    assert (wrong.status, wrong.pointers) == (422, ["/ordered"])
    assert (drop.status, drop.pointers) == (422, ["/ordered"])


def test_a_key_may_name_only_queues_of_its_patterns(admin: Caller, ours: int) -> None:
    registered(admin, name="mine.a", dead_letter_queue="mine.a-dead")
    mine = program(topics=["mine.*"])
    topic: Member = {"name": "mine.a"}

    answers = [
        registered(mine, name="mine.b", native_name="victim"),
        registered(mine, name="mine.b", dead_letter_queue="victim-dead"),
        registered(mine, name="mine.b", dead_letter_queue="mine.a-dead"),
        patch(mine, "topics", {**topic, "dead_letter_queue": "victim-dead"}),
        patch(mine, "topics", {**topic, "mode": "tee", "tee_queue": "victim"}),
        patch(mine, "topics", {**topic, "mode": "tee", "tee_queue": "mine.c"}),
    ]

    assert [answer.status for answer in answers] == [403, 403, 422, 403, 403, 200]
    assert answers[2].pointers == ["/dead_letter_queue"]
    assert "the topic mine.a reads mine.a-dead" in answers[2].detail
    assert Topic.objects.get().dead_letter_queue == "mine.a-dead"
