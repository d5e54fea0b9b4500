"""Brokers are added, tested, discovered and observed; no page shows a secret."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from django.test import Client

from apps.audit.models import Entry
from apps.brokers import sealed_addresses
from apps.brokers.adapter_contract import FoundTopic
from apps.brokers.adapters import KINDS, BrokerKind, adapter
from apps.brokers.adapters.redis_streams.inspection import RedisBrokerAdmin
from apps.brokers.models import Broker, Topic
from apps.brokers.services import broker_registration
from apps.brokers.services.topics_and_routing_publisher import settings_of
from apps.capture.models import Lane, LaneState
from apps.core.errors import Refused
from apps.dashboard.selectors import brokers
from apps.team.rights import Principal, Role
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.page_forms import form_on
from tests.integration.dashboard.pages import get, post, words

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script>\u202e'\"&"


@pytest.fixture
def viewer(sign_in: SignIn) -> Client:
    return sign_in(Role.VIEWER)


@pytest.fixture
def ours(redis_url: str, operator: Principal, now: datetime) -> Broker:
    return broker_registration.add(
        name="ours",
        kind="redis_streams",
        url=redis_url,
        options={},
        principal=operator,
        now=now,
    )


def password_of(url: str) -> str:
    password = urlsplit(url).password
    assert password
    return password


def filled(address: str, **changes: str) -> dict[str, str]:
    return {"name": "ours", "kind": "redis_streams", "url": address, **changes}


def all_buttons(response: Any) -> list[str]:
    """List the values of a page's button that observes all that is new."""
    buttons = form_on(response, button="Observe all").buttons
    return [each["value"] or "" for each in buttons if each.get("name") == "everything"]


def mark_of_all(client: Client, broker: Broker) -> str:
    (mark,) = all_buttons(client.post(f"/brokers/{broker.pk}/discover"))
    return mark


def test_a_broker_is_added_and_its_secret_is_on_no_page(
    admin: Client, redis_url: str
) -> None:
    place = post(admin, "/brokers/new", 302, **filled(redis_url))
    broker = Broker.objects.get()
    paths = [place, "/brokers", f"/brokers/{broker.pk}/edit", "/audit", "/topics"]

    pages = [get(admin, path) for path in paths]
    again = get(admin, f"{place}?added=1&observed=7&removed=7")

    assert place == f"/brokers/{broker.pk}"
    assert sealed_addresses.reveal(broker.url) == redis_url
    assert [p for p in pages if password_of(redis_url) in p or broker.url in p] == []
    assert "The broker is added." in words(pages[0])
    assert not re.search("The broker is added|Observed from now|Removed:", words(again))
    assert "kept, sealed" in words(pages[1])


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_each_kind_can_do_is_a_table(
    admin: Client, now: datetime, kind: str
) -> None:
    broker = Broker.objects.create(name=kind, kind=kind, url="env:BROKER_NOWHERE")

    page = words(get(admin, f"/brokers/{broker.pk}"))

    assert f"What {KINDS[kind].title} can do" in page
    assert "Largest message" in page or "is not installed here" in page


def test_which_headers_are_never_sent_is_in_the_table(admin: Client) -> None:
    rabbit = Broker.objects.create(name="r", kind="rabbitmq", url="env:BROKER_NOWHERE")
    stream = Broker.objects.create(
        name="s", kind="redis_streams", url="env:BROKER_NOWHERE"
    )

    some, none = (words(get(admin, f"/brokers/{b.pk}")) for b in (rabbit, stream))

    names = "BCC, CC, amqp.expiration, amqp.user_id, x-delivery-count"
    assert f"Headers never sent{names}" in some
    assert "Headers never sentnone" in none


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> BrokerKind:
    """Return a kind of broker whose client is not installed."""
    kind = BrokerKind(
        name="absent", title="Absent MQ", client="apps", url="absent://host"
    )
    monkeypatch.setitem(KINDS, "absent", kind)
    return kind


REMEDY = (
    "The client of Absent MQ is not installed here: run pip install -r "
    "apps/brokers/requirements/absent.txt, then start Poisonweb again."
)


def test_a_kind_without_its_client_is_disabled_with_the_remedy_beside_it(
    admin: Client, absent: BrokerKind
) -> None:
    page = get(admin, "/brokers/new?kind=absent")

    (choice,) = re.findall(r'<input[^>]*value="absent"[^>]*>', page)
    assert " disabled" in choice
    assert " checked" not in choice
    assert 'aria-describedby="remedy-for-absent"' in choice
    assert words(page).count(REMEDY) == 1
    for kind in KINDS.keys() - {"absent"}:
        (offered,) = re.findall(rf'<input[^>]*value="{kind}"[^>]*>', page)
        assert "disabled" not in offered


def test_a_broker_of_a_kind_without_its_client_is_not_added(
    admin: Client, absent: BrokerKind
) -> None:
    page = post(admin, "/brokers/new", 422, **filled("absent://host", kind="absent"))

    assert REMEDY in words(page)
    assert not Broker.objects.exists()


def test_a_broker_whose_client_is_gone_says_so_once_and_offers_nothing_that_needs_it(
    admin: Client, absent: BrokerKind
) -> None:
    broker = Broker.objects.create(name="a", kind="absent", url="env:BROKER_NOWHERE")

    pages = [
        get(admin, f"/brokers/{broker.pk}"),
        post(admin, f"/brokers/{broker.pk}/test", 200),
    ]

    for page in pages:
        assert words(page).count("The client of Absent MQ is not installed") == 1
        assert "cannot be reached" not in words(page)
        for name in ("Discover", "Test connection"):
            button = rf'<button[^>]*aria-disabled="true"[^>]*>{name}</button>'
            assert re.search(button, page), name
        assert not re.search(r'class="button primary"[^>]*>\s*Discover', page)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("redis_streams", "body_field"),
        ("rabbitmq", "management_url"),
        ("azure_queue", "messageEncoding"),
        ("sqs", "endpoint_url"),
    ],
)
def test_options_that_are_no_json_are_answered_with_an_example_of_that_kind(
    admin: Client, kind: str, option: str
) -> None:
    broker = Broker.objects.create(name=kind, kind=kind, url="env:BROKER_NOWHERE")
    slip = {"name": "x", "url": "env:BROKER_NOWHERE", "options": "{"}

    added = words(post(admin, "/brokers/new", 422, kind=kind, **slip))
    altered = words(post(admin, f"/brokers/{broker.pk}/edit", 422, **slip))

    example = f"Give a JSON object, such as {KINDS[kind].broker_options}, or nothing."
    assert f'"{option}"' in KINDS[kind].broker_options
    assert example in added
    assert example in altered


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"kind": "pigeon"}, "kind"),
        ({"url": "redis://169.254.169.254"}, "url"),
        ({"url": "redis://:sesame@127.0.0.1:0x"}, "url"),
        ({"options": "{"}, "options"),
        ({"options": '{"colour": 1}'}, "options"),
    ],
)
def test_an_invalid_broker_form_shows_the_error_beside_the_field(
    admin: Client, change: dict[str, str], field: str
) -> None:
    form = filled("redis://:sesame@127.0.0.1:9", **change)

    page = post(admin, "/brokers/new", 422, **form)

    assert 'role="alert"' in page
    assert field == "kind" or re.search(
        rf'name="{field}"[^>]*aria-invalid="true"', page
    )
    assert "sesame" not in page
    assert Broker.objects.count() == 0


def test_a_variable_of_the_environment_is_no_secret(admin: Client) -> None:
    form = filled("env:BROKER_OURS", name="")

    page = post(admin, "/brokers/new", 422, **form)
    post(admin, "/brokers/new", 302, **{**form, "name": "ours"})

    assert 'value="env:BROKER_OURS"' in page
    assert "enter it once more" not in page
    assert "env:BROKER_OURS" in get(admin, "/brokers")


def test_a_change_without_an_address_keeps_it(admin: Client, ours: Broker) -> None:
    path = f"/brokers/{ours.pk}/edit"

    page = words(get(admin, path))
    post(admin, path, 302, name="renamed", url="", options='{"body_field": "b"}')
    refused = post(admin, path, 422, name="renamed", url="redis://[fe80::1]")

    changed = Broker.objects.get()
    assert "stays with Redis Streams" in page
    assert "as in redis://:password@host:6379/0" in page
    assert (changed.name, changed.url) == ("renamed", ours.url)
    assert changed.options == {"body_field": "b"}
    assert "The address is not shown again" in words(refused)


@pytest.mark.parametrize("peeks", [True, False])
def test_observing_promises_what_this_kind_of_broker_shows(
    admin: Client, ours: Broker, monkeypatch: pytest.MonkeyPatch, peeks: bool
) -> None:
    can = replace(adapter(ours.kind).capabilities, peeks=peeks)
    monkeypatch.setattr(type(adapter(ours.kind)), "capabilities", can)
    topic = FoundTopic(name="a", depth=1, dead_letter_queue="b", dead_letters=1)
    monkeypatch.setattr(RedisBrokerAdmin, "discover", lambda _: [topic])

    page = words(post(admin, f"/brokers/{ours.pk}/discover", 200))

    assert ("depth, and age and samples, too" in page) is peeks
    assert ("nothing else: this kind of broker" in page) is not peeks


def test_a_connection_test_says_when_only_part_is_refused(
    admin: Client, ours: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_: object) -> str:
        raise Refused("Redis 7. But its other half refused the login.")

    monkeypatch.setattr(RedisBrokerAdmin, "ping", half)

    page = words(post(admin, f"/brokers/{ours.pk}/test", 200))

    assert re.search(r"It answers, but not as it should after \d+ ms: Redis 7", page)
    assert "cannot be reached" not in page


def test_a_connection_test_reaches_the_broker(admin: Client, ours: Broker) -> None:
    path = f"/brokers/{ours.pk}/test"

    good = words(post(admin, path, 200))
    Broker.objects.update(url=sealed_addresses.seal("redis://:sesame@127.0.0.1:9"))
    bad = words(post(admin, path, 200))

    assert re.search(r"It answers after \d+ ms: Redis \d", good)
    assert re.search(r"It cannot be reached after \d+ ms: .*127\.0\.0\.1:9", bad)
    assert "sesame" not in bad
    assert admin.get(path).status_code == 302


def test_what_a_broker_has_is_found_and_observed_as_chosen(
    admin: Client, ours: Broker, stream: redis.Redis
) -> None:
    for name in ("orders", "orders-poison", "bills", "bills-poison", "plain"):
        stream.xadd(name, {"body": b"1"})
    path = f"/brokers/{ours.pk}"

    page = post(admin, f"{path}/discover", 200)
    (mark,) = re.findall(r'value="(\w{32})"><span class="only-heard">orders<', page)
    place = post(admin, f"{path}/observe", 302, topics=mark)
    text = words(get(admin, place))
    again = words(post(admin, f"{path}/discover", 200))

    assert "2 dead-letter queues not watched yet of 3 topics that it has" in words(page)
    assert "Observe all 2 with a dead-letter queue" in words(page)
    assert "Observed from now on: 1" in text
    assert list(Lane.objects.values_list("topic__name", "mode")) == [
        ("orders", "observe")
    ]
    assert "Observe all 1 with a dead-letter queue" in again
    assert stream.xlen("orders-poison") == 1


def test_a_queue_of_the_convention_is_observed_before_it_is_made(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker.objects.create(
        name="functions", kind="azure_queue", url="UseDevelopmentStorage=true"
    )
    names = ("orders", "a" * 57, "bills-poison")
    there = [
        FoundTopic(name=name, depth=0, dead_letter_queue="", dead_letters=None)
        for name in names
    ]
    monkeypatch.setattr(
        type(adapter(broker.kind).broker_admin(settings_of(broker))),
        "discover",
        lambda _: there,
    )
    path = f"/brokers/{broker.pk}"

    page = post(admin, f"{path}/discover", 200)
    marks = [brokers.mark_of(each) for each in there]
    place = post(admin, f"{path}/observe", 302, topics=marks)

    assert "orders-poison by convention; not made yet" in words(page)
    assert "leaves no room for -poison" in words(page)
    assert "bills-poison looks like one itself" in words(page)
    assert "No dead-letter queue is left to watch" in words(page)
    assert "Observed from now on: 1." in words(get(admin, place))
    lane = Lane.objects.select_related("topic").get()
    assert (lane.mode, lane.topic.dead_letter_queue) == ("observe", "orders-poison")
    queues = dict(Topic.objects.values_list("name", "dead_letter_queue"))
    assert queues == {"orders": "orders-poison", "a" * 57: "", "bills-poison": ""}


def test_all_with_a_dead_letter_queue_are_observed_at_once(
    admin: Client, ours: Broker, stream: redis.Redis
) -> None:
    for name in ("orders", "orders-poison", "bills", "bills-poison", "plain"):
        stream.xadd(name, {"body": b"1"})
    path, mark = f"/brokers/{ours.pk}/observe", mark_of_all(admin, ours)

    said = [words(get(admin, post(admin, path, 302, everything=mark))) for _ in "ab"]

    assert "Observed from now on: 2." in said[0]
    assert "Nothing new to observe" in said[1]
    assert set(Lane.objects.values_list("topic__name", flat=True)) == {
        "orders",
        "bills",
    }
    assert not Topic.objects.filter(name="plain").exists()
    assert Entry.objects.filter(action="topic.registered").count() == 2


def offered(name: str, queue: str) -> FoundTopic:
    return FoundTopic(name=name, depth=1, dead_letter_queue=queue, dead_letters=1)


@pytest.mark.parametrize(
    "by_then",
    [
        [offered("a", "a-poison"), offered("b", "b-poison"), offered("c", "c-poison")],
        [offered("a", "a-poison"), offered("b", "b-errors")],
        [offered("a", "a-poison")],
    ],
    ids=["one more", "another queue", "one less"],
)
def test_all_is_refused_with_the_list_of_now_where_that_is_another_than_was_shown(
    admin: Client,
    ours: Broker,
    monkeypatch: pytest.MonkeyPatch,
    by_then: list[FoundTopic],
) -> None:
    on_page = [offered("a", "a-poison"), offered("b", "b-poison"), offered("plain", "")]
    monkeypatch.setattr(RedisBrokerAdmin, "discover", lambda _: on_page)
    path, mark = f"/brokers/{ours.pk}/observe", mark_of_all(admin, ours)
    monkeypatch.setattr(RedisBrokerAdmin, "discover", lambda _: by_then)

    refused = admin.post(path, {"everything": mark})
    lanes, page = Lane.objects.count(), words(refused.content.decode())
    (button,) = all_buttons(refused)
    post(admin, path, 302, everything=button)

    assert (refused.status_code, lanes) == (409, 0)
    assert "are not those that you looked at" in page
    assert f"Observe all {len(by_then)} with a dead-letter queue" in page
    queues = Lane.objects.values_list("topic__dead_letter_queue", flat=True)
    assert set(queues) == {each.dead_letter_queue for each in by_then}


def test_all_means_the_shown_ones_in_whatever_order_and_depth_by_then(
    admin: Client, ours: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_page = [offered("a", "a-poison"), offered("b", "b-poison")]
    monkeypatch.setattr(RedisBrokerAdmin, "discover", lambda _: on_page)
    path, mark = f"/brokers/{ours.pk}/observe", mark_of_all(admin, ours)
    by_then = [replace(each, depth=7, dead_letters=8) for each in reversed(on_page)]
    monkeypatch.setattr(RedisBrokerAdmin, "discover", lambda _: by_then)

    post(admin, path, 302, everything=mark)

    assert Lane.objects.count() == 2


def test_observing_without_a_choice_shows_an_error(admin: Client, ours: Broker) -> None:
    page = post(admin, f"/brokers/{ours.pk}/observe", 422, topics="0" * 32)

    assert "Choose at least one of them" in words(page)


def test_a_search_narrows_what_is_shown_and_not_what_all_means(
    admin: Client, ours: Broker, stream: redis.Redis
) -> None:
    for name in ("orders", "orders-poison", "bills", "bills-poison"):
        stream.xadd(name, {"body": b"1"})

    path = f"/brokers/{ours.pk}/discover"
    page = post(admin, path, 200, name="ORD")
    none = post(admin, path, 200, name="nowhere")

    assert ">orders<" in page
    assert ">bills<" not in page
    assert "Observe all 2" in words(page)
    assert "No topic matches" in words(none)


def test_a_link_asks_no_broker_and_a_button_does(admin: Client, ours: Broker) -> None:
    """Only a POST asks the broker: a link on another site is sent with the session."""
    Broker.objects.update(url=sealed_addresses.seal("redis://:sesame@127.0.0.1:9"))
    path = f"/brokers/{ours.pk}"

    page = get(admin, f"{path}/discover")
    reloaded = admin.get(f"{path}/observe")

    assert f'<form method="post" action="{path}/discover">' in page
    assert reloaded["Location"] == f"{path}/discover"


def test_a_broker_that_is_away_says_so_on_the_page(admin: Client, ours: Broker) -> None:
    Broker.objects.update(url=sealed_addresses.seal("redis://:sesame@127.0.0.1:9"))
    path = f"/brokers/{ours.pk}"

    pages = [
        post(admin, f"{path}/discover", 503),
        post(admin, f"{path}/observe", 503, everything="1"),
    ]

    again = f'<form method="post" action="{path}/discover">'
    assert all(again in page and "sesame" not in page for page in pages)
    assert all("Ask again" in page for page in pages)


def test_a_hostile_name_is_shown_and_carried_as_it_is(
    admin: Client, ours: Broker, stream: redis.Redis
) -> None:
    stream.xadd(HOSTILE, {"body": b"1"})
    stream.xadd(HOSTILE + "-poison", {"body": b"1"})
    stream.xadd(b"\xff\x00", {"body": b"1"})
    path = f"/brokers/{ours.pk}"

    page = post(admin, f"{path}/discover", 200)
    mark = mark_of_all(admin, ours)
    post(admin, f"{path}/observe", 302, everything=mark)
    topic = Topic.objects.get()
    pages = [page, post(admin, f"{path}/discover", 200)]
    pages += [get(admin, each) for each in ("/topics", f"/topics/{topic.pk}")]

    assert topic.name == HOSTILE
    assert [page for page in pages if "<script>alert" in page] == []
    assert "U+202E" in page
    assert "its name is not valid text" in page


def test_a_topic_with_an_invalid_name_does_not_stop_the_others(
    ours: Broker, operator: Principal, stream: redis.Redis, now: datetime
) -> None:
    stream.xadd(b"\xff\x00", {"body": b"1"})
    stream.xadd(b"\xff\x00-poison", {"body": b"1"})
    stream.xadd("orders", {"body": b"1"})
    stream.xadd("orders-poison", {"body": b"1"})

    mark = brokers.discover_topics(ours, "", operator, now=now).mark
    chosen = brokers.all_new(ours, mark, operator, now=now)

    assert [each.name for each in chosen] == ["orders"]


def test_a_list_says_how_a_brokers_lanes_are(
    viewer: Client, ours: Broker, now: datetime
) -> None:
    for number, state in enumerate(("running", "running", "away")):
        topic = Topic.objects.create(
            name=f"t{number}",
            native_name=f"t{number}",
            broker=ours,
            dead_letter_queue=f"q{number}",
        )
        Lane.objects.create(topic=topic, state=state, seen_at=now)

    page = words(get(viewer, "/brokers"))

    assert "Broker away 1" in page
    assert "Running 2" in page


def test_readers_see_brokers_and_change_nothing(
    viewer: Client, ours: Broker, stream: redis.Redis
) -> None:
    stream.xadd("orders", {"body": b"1"})
    stream.xadd("orders-poison", {"body": b"1"})
    root = f"/brokers/{ours.pk}"

    pages = [get(viewer, path) for path in ("/brokers", root)]
    pages.append(post(viewer, f"{root}/discover", 200))
    refused = [
        viewer.post("/brokers/new", filled("redis://x")).status_code,
        viewer.get("/brokers/new").status_code,
        viewer.post(f"{root}/edit", {"name": "x"}).status_code,
        viewer.post(f"{root}/test").status_code,
        viewer.post(f"{root}/remove").status_code,
        viewer.post(f"{root}/observe", {"everything": "1"}).status_code,
    ]

    assert refused == [403] * 6
    assert all("brokers:write" in page for page in pages)
    assert (Broker.objects.count(), Topic.objects.count()) == (1, 0)


@pytest.mark.parametrize("path", ["", "/edit", "/discover"])
def test_a_broker_that_is_not_there_is_a_404(admin: Client, path: str) -> None:
    get(admin, f"/brokers/12345{path}", 404)


def test_an_empty_list_says_how_to_add_a_broker(admin: Client) -> None:
    assert "No broker yet" in words(get(admin, "/brokers"))


def test_a_form_needs_its_token(sign_in: SignIn, ours: Broker) -> None:
    client = Client(enforce_csrf_checks=True)
    client.cookies = sign_in(Role.ADMIN).cookies

    answers = [
        client.post(path, {"name": "x"}).status_code
        for path in ("/brokers/new", f"/brokers/{ours.pk}/test")
    ]

    assert answers == [403, 403]


def test_names_are_told_apart_by_their_marks() -> None:
    names = ("a", "a ", "A", "\udcff", "a\nb", "é", "e\u0301")

    marks = {
        brokers.mark_of(
            FoundTopic(name=name, depth=0, dead_letter_queue="", dead_letters=None)
        )
        for name in names
    }

    assert len(marks) == len(names)
    assert all(re.fullmatch(r"[0-9a-f]{32}", mark) for mark in marks)


def test_the_state_of_a_broker_is_that_of_its_worst_lane(
    now: datetime, ours: Broker
) -> None:
    row = brokers.BrokerRow(
        broker=ours,
        topics=[
            brokers.BrokerTopic(topic=Topic(), lane_state=lane)
            for lane in ("running", LaneState.PAUSED.value, "silent")
        ],
    )

    assert (row.state, list(row.lanes)) == ("silent", ["silent", "paused", "running"])


def test_admins_confirm_and_strike_entries_of_allow_lists(
    admin: Client, viewer: Client, ours: Broker
) -> None:
    entries = ["10.0.0.5:6379", "env:CORP_MQ", "<b>:1"]
    Broker.objects.filter(pk=ours.pk).update(allowed_unconfirmed=entries)
    ticked = [f"{ours.pk} {entry}" for entry in entries]

    page = get(admin, "/brokers")
    confirmed = admin.post("/brokers/allowed", {"entries": ticked[:2], "confirm": 1})
    struck = admin.post("/brokers/allowed", {"entries": ticked[1:], "strike": 1})

    broker = Broker.objects.get(pk=ours.pk)
    assert words(page).count("to confirm") == 3
    assert "<b>:1" not in page
    assert (confirmed.status_code, struck.status_code) == (302, 302)
    assert broker.allowed_confirmed == ["10.0.0.5:6379"]
    assert broker.allowed_unconfirmed == []
    assert "confirmed" in words(get(admin, "/brokers"))
    assert "10.0.0.5" not in get(viewer, "/brokers")


@pytest.mark.parametrize("ticked", [[], ["x"], ["7"], [f"{'9' * 30} a"]])
def test_a_decision_on_no_entry_says_what_to_do(
    admin: Client, ours: Broker, ticked: list[str]
) -> None:
    answer = admin.post("/brokers/allowed", {"entries": ticked})

    assert answer.status_code in {404, 422}
    assert admin.get("/brokers/allowed").status_code == 302


def test_only_admins_decide_on_allow_lists(viewer: Client, ours: Broker) -> None:
    ticked = {"entries": [f"{ours.pk} env:A"], "strike": 1}
    Broker.objects.filter(pk=ours.pk).update(allowed_unconfirmed=["env:A"])

    assert viewer.post("/brokers/allowed", ticked).status_code == 403
    assert Broker.objects.get(pk=ours.pk).allowed_unconfirmed == ["env:A"]
