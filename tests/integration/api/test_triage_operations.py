"""Operations over the API: preview, confirm, follow and undo; stale tokens."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import pytest

from apps.brokers.models import Broker, Topic
from apps.brokers.services.topics_and_routing_publisher import RoutingPublisher
from apps.core import clock
from apps.core.actor import Actor
from apps.core.statement_timeouts import TOO_SLOW
from apps.poison import skip_addition_and_removal
from apps.poison.models import Hold, ItemWindow, Poison, Skip
from apps.poison.skip_matching import Matcher
from apps.team.rights import Principal, Role, Scope
from apps.triage.models import Operation
from apps.triage.services import (
    preview_breakdown_counting,
    previews,
    requeues_in_vain,
    running,
)
from tests.failure_report_builders import poisons
from tests.integration.api.schema_checking_client import Caller, Reply, person, program

pytestmark = pytest.mark.django_db(transaction=True)


def preview(caller: Caller, **selection: object) -> Reply:
    if not {"q", "ids"} & selection.keys():
        selection["q"] = "topic:orders"
    return caller.post("operations/preview", {"verb": "drop", **selection})


def confirm(caller: Caller, token: str, reason: str = "a test") -> Reply:
    return caller.post("operations", {"token": token, "reason": reason})


def drop(caller: Caller, **selection: object) -> int:
    """Preview, confirm and run a drop; give its id."""
    reply = confirm(caller, preview(caller, **selection).json["token"])
    number: int = reply.json["id"]
    run(number)
    return number


def run(number: int) -> None:
    with RoutingPublisher() as publisher:
        running.run(operation_id=number, publisher=publisher, clock=clock.now)


def test_a_preview_shows_what_would_be_done_and_does_nothing(
    operations_caller: Caller, now: datetime
) -> None:
    created = poisons(now, 5)
    Poison.objects.filter(pk=created[0].pk).update(state="dropped", dropped_at=now)

    data = preview(operations_caller).json

    assert (data["total"], data["will_act"], data["taken"]) == (5, 4, True)
    assert data["skipped"] == [{"reason": "already dropped", "count": 1}]
    assert data["breakdown"] == {
        "topics": [{"name": "orders", "count": 4}],
        "consumer_groups": [{"name": "billing", "count": 4}],
        "other_topics": 0,
        "other_consumer_groups": 0,
    }
    assert len(data["sample"]) == 3
    assert Poison.objects.open().count() == 4


def test_a_preview_names_the_headers_that_are_left_out(
    operations_caller: Caller, now: datetime
) -> None:
    rabbit = Broker.objects.create(
        name="rabbit", kind="rabbitmq", url="env:BROKER_NOWHERE"
    )
    poisons(now, 2, headers=[("CC", b'["audit"]'), ("tenant", b"a")])
    Topic.objects.filter(name="orders").update(broker=rabbit)

    redrive, drop_ = (
        preview(operations_caller, verb=verb).json for verb in ("redrive", "drop")
    )
    again = operations_caller.get("operations/preview", token=redrive["token"]).json

    assert redrive["left_out"] == [{"name": "CC", "count": 2}] == again["left_out"]
    assert drop_["left_out"] == []


def test_a_preview_names_what_failed_in_another_queue(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 2, headers=[("NServiceBus.FailedQ", b"Sales.Billing")])
    poisons(now, 1, headers=[("NServiceBus.FailedQ", b"orders@host")])
    broker = Broker.objects.create(
        name="r", kind="redis_streams", url="env:BROKER_NOWHERE"
    )
    Topic.objects.create(name="aside", native_name="aside", broker=broker)

    redrive, drop_ = (
        preview(operations_caller, verb=verb).json for verb in ("redrive", "drop")
    )
    again = operations_caller.get("operations/preview", token=redrive["token"]).json
    chosen = preview(operations_caller, verb="redrive", target_topic="aside").json

    elsewhere = [{"failed_in": "Sales.Billing", "sent_to": "orders", "count": 2}]
    assert redrive["elsewhere"] == elsewhere == again["elsewhere"]
    assert drop_["elsewhere"] == chosen["elsewhere"] == []


def skip_of_tenant(
    tenant: str,
    now: datetime,
    topic: str = "orders",
    handler_version: str | None = None,
) -> Skip:
    """Add a skip of all messages of a tenant, by a rule."""
    rule = {"header": "tenant", "equals": tenant}
    addition = skip_addition_and_removal.add(
        topic=Topic.objects.get(name=topic),
        consumer_group=None,
        matcher=Matcher.parse({"kind": "rule", "value": rule}),
        handler_version=handler_version,
        reason="it kills",
        principal=Principal(actor=Actor.user("anna"), scopes=frozenset(Scope)),
        now=now,
    )
    return addition.skip


def test_a_preview_counts_the_messages_that_a_rule_skips_again(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 2, headers=[("tenant", b"acme")])
    poisons(now, 1, headers=[("tenant", b"zeta")])
    poisons(now, 1, headers=[("tenant", b"else")])
    zeta = skip_of_tenant("zeta", now, handler_version="2")
    acme = skip_of_tenant("acme", now)

    redrive, drop_ = (
        preview(operations_caller, verb=verb).json for verb in ("redrive", "drop")
    )
    again = operations_caller.get("operations/preview", token=redrive["token"]).json

    assert redrive["skipped_again"] == again["skipped_again"]
    assert redrive["skipped_again"] == {
        "count": 3,
        "looked_at": 4,
        "unread": 0,
        "skips": [
            {"id": acme.pk, "topic": "orders", "handler_version": None, "count": 2},
            {"id": zeta.pk, "topic": "orders", "handler_version": "2", "count": 1},
        ],
    }
    assert drop_["skipped_again"] == {
        "count": 0,
        "looked_at": 0,
        "unread": 0,
        "skips": [],
    }


def test_a_preview_looks_for_rules_where_the_policy_of_a_topic_sends_its_messages(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 1, headers=[("tenant", b"acme")])
    later = Topic.objects.create(name="later", native_name="later")
    Topic.objects.filter(name="orders").update(requeue_topic=later)
    skip_of_tenant("acme", now, topic="orders")

    at_first = preview(operations_caller, verb="redrive").json["skipped_again"]
    there = skip_of_tenant("acme", now, topic="later")
    at_last = preview(operations_caller, verb="redrive").json["skipped_again"]

    assert at_first["count"] == 0
    assert [(each["id"], each["topic"]) for each in at_last["skips"]] == [
        (there.pk, "later")
    ]


def test_a_preview_under_a_key_for_a_topic_names_no_skip_of_another_topic(
    now: datetime,
) -> None:
    poisons(now, 1, headers=[("tenant", b"acme")])
    later = Topic.objects.create(name="later", native_name="later")
    Topic.objects.filter(name="orders").update(requeue_topic=later)
    skip_of_tenant("acme", now, topic="later")
    scopes = (Scope.OPERATIONS_WRITE, Scope.SKIPS_READ)
    caller = program(*scopes, topics=("orders",))

    assert preview(caller, verb="redrive").json["skipped_again"]["count"] == 0


def test_a_preview_tells_nothing_of_skips_to_a_key_that_may_not_read_them(
    operations_caller: Caller, now: datetime
) -> None:
    (poison,) = poisons(now, 1, headers=[("tenant", b"acme")])
    skip_of_tenant("acme", now)
    caller = program(Scope.OPERATIONS_READ, Scope.OPERATIONS_WRITE)

    stale = preview(caller, verb="redrive").json
    again = caller.get("operations/preview", token=stale["token"]).json
    Operation.objects.update(expires_at=now - timedelta(seconds=1))
    renewed = confirm(caller, stale["token"]).json["preview"]
    operation = confirm(caller, renewed["token"]).json["id"]
    run(operation)
    refused = {"standings": ["refused"]}
    retry = caller.post(f"operations/{operation}/retry-failed", refused).json

    for each in (stale, again, renewed, retry):
        assert each["will_act"] == 1
        assert each["skipped_again"] is None
    allowed = preview(operations_caller, verb="redrive", ids=[poison.pk]).json
    assert allowed["skipped_again"]["count"] == 1


def test_a_new_preview_for_a_stale_one_counts_what_a_rule_skips_again(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 1, headers=[("tenant", b"acme")])
    skip_of_tenant("acme", now)
    token = preview(operations_caller, verb="redrive").json["token"]
    Operation.objects.update(expires_at=now - timedelta(seconds=1))

    renewed = confirm(operations_caller, token).json["preview"]

    assert renewed["skipped_again"]["count"] == 1


def test_skips_that_take_too_long_to_match_are_null_in_a_preview(
    operations_caller: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisons(now, 1)
    monkeypatch.setattr(requeues_in_vain, "unless_slow", lambda *_: TOO_SLOW)

    assert preview(operations_caller, verb="redrive").json["skipped_again"] is None


def test_a_preview_can_be_read_again_by_its_owner_only(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 2)
    data = preview(operations_caller).json
    poisons(now, 1)

    again = operations_caller.get("operations/preview", token=data["token"])
    other = person().get("operations/preview", token=data["token"])

    assert again.json == {**data, "newer": 1}
    assert other.status == 404
    assert operations_caller.get("operations/preview", token="x").pointers == ["/token"]


@pytest.mark.parametrize(
    ("verb", "at_first", "at_last"),
    [("drop", "dropped", "dropped"), ("redrive", "waiting", "refused")],
)
def test_a_confirmed_operation_is_followed_to_its_end(
    operations_caller: Caller, now: datetime, verb: str, at_first: str, at_last: str
) -> None:
    created = poisons(now, 3)
    ids = [p.pk for p in created[:2]]
    reply = confirm(
        operations_caller, preview(operations_caller, verb=verb, ids=ids).json["token"]
    )
    assert reply.status == 202
    where = reply.response["Location"]

    waiting = operations_caller.get(where).json
    run(reply.json["id"])
    done = operations_caller.get(where).json

    assert where == f"/api/v1/operations/{reply.json['id']}"
    assert (waiting["state"], waiting["counts"][at_first]) == ("queued", 2)
    assert (done["state"], done["counts"][at_last]) == ("done", 2)
    for each in (waiting, done):
        assert sum(each["counts"].values()) == each["total"] == 2
    assert done["reason"] == "a test"
    assert (done["rate"] > 0, done["eta"]) == (True, None)


def test_refused_and_skipped_poisons_are_listed_with_their_reasons(
    operations_caller: Caller, now: datetime
) -> None:
    created = poisons(now, 3)
    Poison.objects.filter(pk=created[0].pk).update(state="dropped", dropped_at=now)
    reply = confirm(
        operations_caller, preview(operations_caller, verb="redrive").json["token"]
    )

    run(reply.json["id"])

    done = operations_caller.get(f"operations/{reply.json['id']}").json
    assert done["skipped"] == [
        {"poison": created[0].pk, "reason": "dropped: restore it first"}
    ]
    assert {each["poison"] for each in done["refused"]} == {p.pk for p in created[1:]}
    assert "no broker" in done["refused"][0]["reason"]
    assert done["counts"]["refused"] == 2
    detail = operations_caller.get(f"poisons/{created[1].pk}").json
    assert [each["outcome"] for each in detail["redrives"]] == ["refused"]
    assert detail["redrives"][0]["operation"] == done["id"]
    assert (detail["redrives"][0]["queue"], done["given_back_to"]) == (None, None)
    assert [each["id"] for each in detail["operations"]] == [done["id"]]


def test_what_was_refused_is_acknowledged_once_the_operation_is_over(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 2)
    token = preview(operations_caller, verb="redrive").json["token"]
    number = confirm(operations_caller, token).json["id"]
    where = f"operations/{number}"

    too_early = operations_caller.post(f"{where}/acknowledge", {})
    run(number)
    before = operations_caller.get(where).json["acknowledged"]
    needing = operations_caller.get("operations", show="needs-you").results
    reply = operations_caller.post(f"{where}/acknowledge", {"reason": "known"})
    after = operations_caller.get(where).json["acknowledged"]
    quiet = operations_caller.get("operations", show="needs-you").results

    assert (too_early.status, reply.status) == (409, 200)
    assert reply.json["id"] == number
    assert before is None
    assert ([row["id"] for row in needing], quiet) == ([number], [])
    assert reply.json["acknowledged"] == after
    assert (after["actor"][:4], after["messages"]) == ("key:", 2)


def test_a_preview_names_the_topics_whose_messages_will_be_refused(
    operations_caller: Caller, now: datetime, orders: Topic
) -> None:
    poisons(now, 1)
    poisons(now, 1, topic="outbox/shop")

    requeue = preview(operations_caller, verb="redrive", q="").json
    elsewhere = preview(
        operations_caller, verb="redrive", q="", target_topic="orders"
    ).json
    dropping = preview(operations_caller, q="").json

    assert requeue["without_sender"] == ["outbox/shop"]
    assert elsewhere["without_sender"] == dropping["without_sender"] == []


def test_a_redrive_goes_to_the_broker_and_may_be_silent(
    operations_caller: Caller, now: datetime, orders: Topic
) -> None:
    poisons(now, 2)
    token = preview(operations_caller, verb="redrive").json["token"]
    Operation.objects.update(window_size=1)
    reply = confirm(operations_caller, token)
    run(reply.json["id"])
    operation = operations_caller.get(f"operations/{reply.json['id']}").json
    long_ago = now - timedelta(minutes=11)
    ItemWindow.objects.filter(first=0).update(marked_at=long_ago)

    later = operations_caller.get(f"operations/{reply.json['id']}").json

    assert (operation["counts"]["sent"], operation["silent"], later["silent"]) == (
        2,
        0,
        1,
    )


def test_operations_are_listed_newest_first_without_previews(
    operations_caller: Caller, now: datetime
) -> None:
    ids = [poisons(now, 1)[0].pk for _ in range(3)]
    numbers = [drop(operations_caller, ids=[pk]) for pk in ids]
    preview(operations_caller)

    first = operations_caller.get("operations", limit=2)
    rest = operations_caller.get("operations", limit=2, cursor=first.json["next"])

    listed = [row["id"] for row in (*first.results, *rest.results)]
    assert listed == numbers[::-1]
    assert rest.json["next"] is None


@pytest.mark.parametrize(
    ("show", "listed"),
    [
        ("running", ["running"]),
        ("needs-you", ["refused"]),
        ("done", ["refused", "done"]),
    ],
)
def test_operations_of_a_group_are_listed(
    operations_caller: Caller, now: datetime, show: str, listed: list[str]
) -> None:
    ids = [poisons(now, 1)[0].pk for _ in range(3)]
    numbers = {"done": drop(operations_caller, ids=[ids[0]])}
    for name, pk in zip(("refused", "running"), ids[1:], strict=True):
        token = preview(operations_caller, verb="redrive", ids=[pk]).json["token"]
        numbers[name] = confirm(operations_caller, token).json["id"]
    run(numbers["refused"])

    reply = operations_caller.get("operations", show=show)

    assert [row["id"] for row in reply.results] == [numbers[name] for name in listed]


def test_an_undo_restores_what_was_dropped(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 2)
    dropped = drop(operations_caller)

    reply = operations_caller.post(f"operations/{dropped}/undo")
    run(reply.json["id"])

    undone = operations_caller.get(reply.response["Location"]).json
    assert (reply.status, undone["verb"], undone["undo_of"]) == (
        202,
        "restore",
        dropped,
    )
    assert undone["counts"]["restored"] == 2
    assert Poison.objects.open().count() == 2
    assert operations_caller.post(f"operations/{dropped}/undo").status == 409


def test_only_a_drop_can_be_undone(operations_caller: Caller, now: datetime) -> None:
    poisons(now, 1)
    reply = confirm(
        operations_caller, preview(operations_caller, verb="redrive").json["token"]
    )

    assert operations_caller.post(f"operations/{reply.json['id']}/undo").status == 404
    assert operations_caller.post("operations/99/undo").status == 404
    assert operations_caller.get("operations/99").status == 404


def test_a_used_token_is_a_409_that_names_its_operation(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 1)
    token = preview(operations_caller).json["token"]
    first = confirm(operations_caller, token)

    second = confirm(operations_caller, token)

    assert (first.status, second.status) == (202, 409)
    assert second.json["type"] == "urn:poisonweb:problem:stale"
    assert f"operation {first.json['id']}" in second.detail
    assert second.json["preview"]["will_act"] == 0


def test_an_expired_token_is_a_409_with_a_new_preview_that_works(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 2)
    token = preview(operations_caller).json["token"]
    Operation.objects.update(expires_at=now - timedelta(seconds=1))

    reply = confirm(operations_caller, token)

    renewed = reply.json["preview"]
    assert (reply.status, renewed["will_act"]) == (409, 2)
    assert renewed["token"] != token
    assert confirm(operations_caller, renewed["token"]).status == 202


@pytest.mark.parametrize(
    ("verb", "why"),
    [("drop", "already dropped"), ("redrive", "operation {} has it")],
)
def test_a_newer_preview_of_the_same_selection_keeps_the_older_one_valid(
    operations_caller: Caller, now: datetime, verb: str, why: str
) -> None:
    poisons(now, 2)
    older, newer = (
        preview(operations_caller, verb=verb).json["token"] for _ in range(2)
    )

    accepted = confirm(operations_caller, older)
    late = confirm(operations_caller, newer)

    assert accepted.status == 202
    why = why.format(accepted.json["id"])
    assert late.status == 409
    assert late.detail == f"Nothing is left to act on: 2 skipped, {why}."
    reasons = [each["reason"] for each in late.json["preview"]["skipped"]]
    assert reasons == [why]


def test_a_refused_confirmation_keeps_the_actors_other_previews_valid(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 2)
    stale, good = (preview(operations_caller).json["token"] for _ in range(2))
    Operation.objects.filter(token=stale).update(expires_at=now)

    refused = confirm(operations_caller, stale)
    accepted = confirm(operations_caller, good)

    assert (refused.status, accepted.status) == (409, 202)


def test_two_scripts_with_one_key_that_take_turns_both_get_their_operation(
    operations_caller: Caller, now: datetime
) -> None:
    first, second = poisons(now, 2)
    mine = preview(operations_caller, verb="redrive").json["token"]
    theirs = preview(operations_caller, verb="redrive").json["token"]
    Operation.objects.update(expires_at=now)

    refusals = [
        confirm(operations_caller, token).json["preview"] for token in (mine, theirs)
    ]
    done = [confirm(operations_caller, each["token"]).status for each in refusals]

    # The first operation took the messages of the second: it needs no further run.
    assert done == [202, 409]
    assert set(Hold.objects.values_list("poison", flat=True)) == {first.pk, second.pk}


def test_the_previews_of_an_actor_are_limited_without_effect_on_others(
    operations_caller: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "MOST_PREVIEWS", 2)
    poisons(now, 1)
    tokens = [preview(operations_caller).json["token"] for _ in range(2)]

    refused = preview(operations_caller)
    other = preview(person())
    confirm(operations_caller, tokens[0])
    after_one_was_used = preview(operations_caller)

    assert (refused.status, "2 previews open" in refused.detail) == (409, True)
    assert (other.status, after_one_was_used.status) == (200, 200)


@pytest.mark.parametrize("member", ["target_topic", "ordered", "q"])
def test_a_confirmation_refuses_members_that_belong_to_the_preview(
    operations_caller: Caller, now: datetime, member: str
) -> None:
    poisons(now, 1)
    token = preview(operations_caller).json["token"]

    reply = operations_caller.post(
        "operations", {"token": token, "reason": "r", member: "x"}
    )

    assert (reply.status, reply.pointers) == (422, [f"/{member}"])
    assert not Operation.objects.confirmed().exists()


def test_a_foreign_token_is_a_409_that_shows_nothing(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 1)
    token = preview(operations_caller).json["token"]

    replies = [confirm(person(), token), confirm(operations_caller, str(uuid.uuid4()))]

    assert [each.status for each in replies] == [409, 409]
    assert [each.json["preview"] for each in replies] == [None, None]


def test_nothing_left_to_act_on_is_a_409(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 1)
    token = preview(operations_caller, q="topic:orders is:open").json["token"]
    drop(operations_caller)

    reply = confirm(operations_caller, token)

    assert (reply.status, reply.json["preview"]["will_act"]) == (409, 0)


def test_a_preview_of_nothing_cannot_be_confirmed(operations_caller: Caller) -> None:
    token = preview(operations_caller, q="topic:nowhere").json["token"]

    reply = confirm(operations_caller, token)

    assert (reply.status, reply.json["preview"]["total"]) == (409, 0)


def test_a_preview_of_ids_that_are_not_there_cannot_be_confirmed(
    operations_caller: Caller,
) -> None:
    token = preview(operations_caller, ids=[1, 2**63 - 1]).json["token"]

    assert confirm(operations_caller, token).status == 409


@pytest.mark.parametrize(
    ("verb", "why"),
    [("drop", "already dropped"), ("redrive", "operation {} has it")],
)
def test_two_operations_over_one_selection_act_once_and_say_why(
    operations_caller: Caller, now: datetime, verb: str, why: str
) -> None:
    created = poisons(now, 2)
    ids = [poison.pk for poison in created]
    tokens = [
        preview(operations_caller, verb=verb, ids=ids[:size]).json["token"]
        for size in (1, 2)
    ]

    first, second = (confirm(operations_caller, token) for token in tokens)

    assert (first.status, second.status) == (202, 202)
    skipped = operations_caller.get(f"operations/{second.json['id']}").json["skipped"]
    assert skipped == [{"poison": ids[0], "reason": why.format(first.json["id"])}]


def test_a_preview_says_that_its_selection_is_still_being_frozen(
    operations_caller: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "TAKEN_AT_ONCE", 1)
    poisons(now, 2)
    data = preview(operations_caller).json

    early = confirm(operations_caller, data["token"])
    previews.take(operation_id=Operation.objects.get().pk, now=now)
    current = operations_caller.get("operations/preview", token=data["token"]).json

    assert (data["taken"], data["total"]) == (False, 0)
    assert (early.status, early.json["type"].rpartition(":")[2]) == (409, "not-taken")
    assert (current["taken"], current["will_act"]) == (True, 2)
    assert confirm(operations_caller, data["token"]).status == 202


@pytest.mark.parametrize(
    ("selection", "pointer"),
    [
        ({}, "/verb"),
        ({"verb": "erase", "q": ""}, "/verb"),
        ({"verb": ["drop"], "q": ""}, "/verb"),
        ({"verb": "give_back", "q": "", "target_topic": "orders"}, "/target_topic"),
        ({"verb": "give_back", "q": ""}, "/target_topic"),
        ({"verb": "drop"}, "/q"),
        ({"verb": "drop", "q": 13}, "/q"),
        ({"verb": "drop", "q": "zebra:x"}, "/q"),
        ({"verb": "drop", "q": "\ud800"}, "/q"),
        ({"verb": "drop", "q": "x" * 2_001}, "/q"),
        ({"verb": "drop", "q": "", "ids": [1]}, "/q"),
        ({"verb": "drop", "ids": []}, "/q"),
        ({"verb": "drop", "ids": 1}, "/ids"),
        ({"verb": "drop", "ids": [True]}, "/ids"),
        ({"verb": "drop", "ids": [1.0]}, "/ids"),
        ({"verb": "drop", "ids": ["1"]}, "/ids"),
        ({"verb": "drop", "ids": [0]}, "/ids"),
        ({"verb": "drop", "ids": [2**63]}, "/ids"),
        ({"verb": "drop", "ids": [float("nan")]}, "/ids"),
        ({"verb": "drop", "ids": list(range(1, 10_002))}, "/ids"),
        ({"verb": "drop", "q": "", "target_topic": "a"}, "/target_topic"),
        ({"verb": "redrive", "q": "", "target_topic": "a\0"}, "/target_topic"),
        ({"verb": "redrive", "q": "", "target_topic": 1}, "/target_topic"),
        ({"verb": "redrive", "q": "", "target_topic": "a" * 300}, "/target_topic"),
        ({"verb": "redrive", "q": "", "ordered": 1}, "/ordered"),
        ({"verb": "drop", "q": "", "zebra": None}, "/zebra"),
    ],
)
def test_an_invalid_preview_is_a_422_that_names_the_member(
    operations_caller: Caller, selection: dict[str, object], pointer: str
) -> None:
    reply = operations_caller.post("operations/preview", selection)

    assert (reply.status, reply.pointers) == (422, [pointer])


@pytest.mark.parametrize("without_ramp", [False, True])
def test_what_its_ramp_has_paused_is_resumed_with_its_ramp_or_without(
    operations_caller: Caller, now: datetime, without_ramp: bool
) -> None:
    poisons(now, 3)
    ramp = {"steps": [1], "confirmed": 95, "came_back": 0, "wait": 60}
    token = preview(operations_caller, verb="redrive", ramp=ramp).json["token"]
    number = confirm(operations_caller, token).json["id"]
    Operation.objects.update(state="paused", paused_because="1 of 1 were refused")

    resumed = operations_caller.post(
        f"operations/{number}/resume", {"without_ramp": without_ramp}
    )

    state = (resumed.json["state"], resumed.json["ramp"])
    assert state == ("queued", None if without_ramp else ramp)


def test_a_ramp_by_confirmations_is_a_422_where_all_messages_are_moved(
    operations_caller: Caller, orders: Topic, now: datetime
) -> None:
    poisons(now, 2)
    Topic.objects.create(name="later", native_name="later", broker=orders.broker)
    elsewhere = {"verb": "redrive", "target_topic": "later"}

    # Without `confirmed`, it is 95 %.
    refused = preview(operations_caller, **elsewhere, ramp={"steps": [1]})
    quiet = preview(
        operations_caller, **elsewhere, ramp={"steps": [1], "confirmed": None}
    )

    assert (refused.status, refused.pointers) == (422, ["/ramp/confirmed"])
    assert (quiet.status, quiet.json["ramp"]["confirmed"]) == (200, None)


def test_a_refused_preview_names_all_members_that_are_wrong(
    operations_caller: Caller,
) -> None:
    reply = preview(
        operations_caller, verb="erase", q="is:gone", ids=[0], target_topic=1
    )

    assert reply.status == 422
    assert reply.pointers == ["/verb", "/q", "/ids", "/target_topic"]


def test_a_member_of_a_preview_that_is_null_counts_as_left_out(
    operations_caller: Caller, now: datetime
) -> None:
    [poison] = poisons(now, 1)

    by_query = preview(
        operations_caller, q="", ids=None, target_topic=None, ordered=None
    )
    by_ids = preview(operations_caller, q=None, ids=[poison.pk], target_topic="")

    assert (by_query.json["total"], by_ids.json["total"]) == (1, 1)
    assert by_query.json["ordered"] is False


def test_headers_that_take_too_long_to_count_are_null_in_a_preview(
    operations_caller: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisons(now, 1)
    monkeypatch.setattr(
        preview_breakdown_counting, "unless_slow", lambda *_, **__: TOO_SLOW
    )

    assert preview(operations_caller).json["left_out"] is None


@pytest.mark.parametrize("body", [[], 1, None, "x"])
@pytest.mark.parametrize("path", ["operations", "operations/preview"])
def test_a_body_that_is_no_object_is_a_400(
    operations_caller: Caller, path: str, body: object
) -> None:
    assert operations_caller.post(path, body).status == 400


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/token"),
        ({"token": 1}, "/token"),
        ({"token": "\0"}, "/token"),
        ({"token": f"{{{uuid.UUID(int=1)}}}"}, "/token"),
        ({"token": uuid.UUID(int=1).hex}, "/token"),
        ({"token": str(uuid.UUID(int=1)), "reason": 1}, "/reason"),
    ],
)
def test_an_invalid_confirmation_is_a_422(
    operations_caller: Caller, body: dict[str, object], pointer: str
) -> None:
    assert operations_caller.post("operations", body).pointers == [pointer]


def test_a_drop_without_reason_is_refused_and_its_token_stays_valid(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 1)
    token = preview(operations_caller).json["token"]

    replies = [
        confirm(operations_caller, token, why) for why in ("", " \n", "x" * 2_001)
    ]

    assert [each.pointers for each in replies] == [["/reason"]] * 3
    assert confirm(operations_caller, token, "\0\ud800 because").status == 202


def test_an_unknown_target_topic_is_a_422(
    operations_caller: Caller, now: datetime
) -> None:
    poisons(now, 1)
    reply = preview(operations_caller, verb="redrive", target_topic="nowhere")

    assert (reply.status, reply.pointers) == (422, ["/target_topic"])


def test_a_key_for_some_topics_acts_on_them_only(now: datetime) -> None:
    [own] = poisons(now, 1, topic="orders.eu")
    [other] = poisons(now, 1, topic="invoices")
    caller = program(topics=["orders.*"])

    data = preview(caller, ids=[own.pk, other.pk]).json
    everything = preview(caller, q="").json

    assert (data["total"], everything["total"]) == (1, 1)
    assert [each["id"] for each in data["sample"]] == [own.pk]


def test_a_key_for_some_topics_sees_no_operation_over_others(now: datetime) -> None:
    poisons(now, 1, topic="orders.eu")
    poisons(now, 1, topic="invoices")
    wide, narrow = program(), program(topics=["orders.*"])
    theirs = drop(wide, q="topic:invoices")
    own = drop(narrow, q="")

    assert [row["id"] for row in narrow.get("operations").results] == [own]
    assert narrow.get(f"operations/{theirs}").status == 404
    assert narrow.post(f"operations/{theirs}/undo").status == 404
    assert len(wide.get("operations").results) == 2


def test_an_operation_has_the_name_of_the_operator(now: datetime) -> None:
    poisons(now, 1)
    caller = person(Role.OPERATOR)

    data = caller.get(f"operations/{drop(caller)}").json

    assert (data["actor"], data["source"]) == ("user:operator", "ui")
