"""Admins set the mode of a lane, with a reason; samples are shown safely."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.brokers.adapter_contract import LIMITS
from apps.brokers.models import Broker, Topic
from apps.capture.models import LANE_LIVES, HeldDeadLetter, Lane, Mode, Sample
from apps.core import clock
from apps.core.actor import Actor
from apps.dashboard.selectors import health
from apps.team.rights import Principal, Role
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get, post, words
from tests.integration.redelivery.endpoint_and_delivery_builders import endpoint

pytestmark = pytest.mark.django_db

HOSTILE = b"<script>alert(1)</script>\xe2\x80\xae"


@pytest.fixture
def topic() -> Topic:
    broker = Broker.objects.create(
        name="ours", kind="redis_streams", url="redis://127.0.0.1:9"
    )
    return Topic.objects.create(
        name="orders",
        native_name="orders",
        broker=broker,
        dead_letter_queue="orders-poison",
    )


@pytest.fixture
def lane(topic: Topic, now: datetime) -> Lane:
    return Lane.objects.create(topic=topic, state="running", seen_at=now, depth=312)


def sample(topic: Topic, now: datetime, **changes: object) -> Sample:
    facts: dict[str, object] = {
        "place": 0,
        "bookmark": "7-0",
        "start": b'{"id": 13}',
        "size": 10 + 39,
        "headers": [b"tenant", b"acme", b"authorization", b"sesame" + b"!" * 10],
        "dequeue_count": 3,
        "seen_at": now,
    }
    return Sample.objects.create(topic=topic, **{**facts, **changes})


def policies_form(topic: Topic, **changes: str) -> dict[str, str]:
    """Return the data of the policies form of a topic, with changes."""
    return {
        "dead_letter_queue": topic.dead_letter_queue,
        "max_dequeue_count": "5",
        "visibility_timeout": "60",
        "retention_days": "",
        "request_endpoints": "",
        "owner": "",
        "runbook": "",
        "options": "",
        "reason": "",
        **changes,
    }


def test_the_page_of_a_topic_shows_all_data_of_its_lane(
    ada: Client, lane: Lane, now: datetime
) -> None:
    Lane.objects.update(
        mode=Mode.CAPTURE.value,
        captured=4_711,
        rate=12.5,
        oldest_at=now - timedelta(hours=3, minutes=1),
        error="Redis at 127.0.0.1:9 is away",
        error_at=now - timedelta(hours=2, minutes=1),
    )
    HeldDeadLetter.objects.create(
        topic=lane.topic, bookmark="9-0", reason="too large", size=10, seen_at=now
    )

    page = words(get(ada, f"/topics/{lane.topic_id}"))

    for said in (
        "capture: dead letters are kept here",
        "312, the oldest came 3h ago",
        "4,711 so far, 12.5 a minute",
        "2h ago: Redis at 127.0.0.1:9 is away",
        "9-0",
        "too large",
    ):
        assert said in page


@pytest.mark.parametrize(
    ("state", "pill", "remedy"),
    [
        ("missing", "Queue missing", "Create it at the broker"),
        ("holding", "Holding", "pause and resume the lane"),
    ],
)
def test_a_lane_in_trouble_is_shown_on_every_page_with_lanes(
    ada: Client, lane: Lane, state: str, pill: str, remedy: str
) -> None:
    detail = "There is no queue orders-poison."
    Lane.objects.update(state=state, detail=detail, seen_at=clock.now())

    topic = words(get(ada, f"/topics/{lane.topic_id}"))
    pages = [words(get(ada, path)) for path in ("/", "/topics", "/brokers")]

    assert detail in topic
    assert remedy in topic
    assert "Broker away" not in topic
    assert all(pill in page for page in (topic, *pages))
    # In its row, and with the reason among the alarms.
    assert pages[0].count(pill) == 2
    assert detail in pages[0]


@pytest.fixture
def by_convention() -> Topic:
    """Return a topic whose dead-letter queue is only named by convention."""
    broker = Broker.objects.create(
        name="functions", kind="azure_queue", url="UseDevelopmentStorage=true"
    )
    return Topic.objects.create(name="mail", native_name="mail", broker=broker)


def test_a_queue_that_is_made_later_is_said_to_be_missing_and_is_no_trouble(
    ada: Client, lane: Lane
) -> None:
    detail = "There is no queue orders-poison yet."
    Lane.objects.update(
        state="expected", detail=detail, depth=None, seen_at=clock.now()
    )

    topic = words(get(ada, f"/topics/{lane.topic_id}"))
    overview, topics, brokers_ = (
        words(get(ada, path)) for path in ("/", "/topics", "/brokers")
    )

    assert detail in topic
    assert "starts by itself once the queue exists" in topic
    assert "Dead letters in it—" in topic
    assert all("Queue missing" in page for page in (topic, topics, brokers_))
    assert "Queue missing" not in overview
    assert detail not in overview
    assert "1 of 1 run" in overview


def test_a_topic_shows_and_takes_the_queue_of_the_convention(
    ada: Client, by_convention: Topic
) -> None:
    path = f"/topics/{by_convention.pk}"

    before = words(get(ada, path))
    mode_page = words(get(ada, f"{path}/mode?mode=observe"))
    post(ada, f"{path}/mode", 302, mode="observe")
    after = words(get(ada, path))

    assert "No queue is set: failures" in before
    assert "By convention it is mail-poison" in before
    assert "mail-poison on functions by convention" in mode_page
    assert "Queuemail-poison by convention" in after
    assert Topic.objects.get().dead_letter_queue == "mail-poison"
    assert Lane.objects.get().mode == "observe"


def test_the_queue_of_the_convention_can_be_changed_and_taken_away(
    ada: Client, by_convention: Topic
) -> None:
    Topic.objects.update(dead_letter_queue="mail-poison")
    path = f"/topics/{by_convention.pk}"
    form = {"max_dequeue_count": "5", "visibility_timeout": "60"}

    page = get(ada, f"{path}/policies")
    post(ada, f"{path}/policies", 302, dead_letter_queue="failed", **form)
    named = words(get(ada, path))
    post(ada, f"{path}/policies", 302, dead_letter_queue="", **form)

    assert 'value="mail-poison"' in page
    assert "By convention it is mail-poison. Leave it empty to watch none." in words(
        page
    )
    assert "Queuefailed" in named
    assert "by convention" not in named
    assert Topic.objects.get().dead_letter_queue == ""


def test_a_topic_that_the_convention_leaves_without_a_queue_says_why(
    ada: Client, by_convention: Topic
) -> None:
    Topic.objects.update(native_name="mail-poison")

    page = words(get(ada, f"/topics/{by_convention.pk}"))

    assert "Mail-poison looks like one itself" in page
    assert "Observe…" not in page


def test_a_lane_of_an_invisible_topic_raises_no_alarm(
    ada: Client, lane: Lane, now: datetime
) -> None:
    Lane.objects.update(state="missing", seen_at=now)
    anna, eve = (
        Principal(actor=Actor.user("any"), scopes=frozenset(), topics=topics)
        for topics in (("orders",), ("mail",))
    )

    def named(principal: Principal, at: datetime) -> bool:
        alarms = health.check(principal, now=at).alarms
        return "Lane orders" in {alarm.component for alarm in alarms}

    assert named(anna, now)
    assert not named(eve, now)
    # Now no lane is heard, and a single alarm covers all of them.
    assert not named(anna, now + LANE_LIVES * 2)


@pytest.mark.parametrize(
    ("state", "depth"), [("running", "312"), ("holding", "312"), ("away", "—")]
)
def test_the_depth_of_the_dead_letter_queue_is_told_in_lists(
    ada: Client, lane: Lane, state: str, depth: str
) -> None:
    Lane.objects.update(state=state, seen_at=clock.now())

    pages = [get(ada, path) for path in ("/", "/topics")]

    for page in pages:
        _, _, cell = page.partition('data-label="dead letters">')
        assert cell.partition("<")[0] == depth
        assert ">Dead letters</a></th>" in page
        assert ">Consumer lag</a></th>" in page


def test_a_mode_is_reviewed_then_set_with_a_reason(ada: Client, lane: Lane) -> None:
    path = f"/topics/{lane.topic_id}/mode"

    page = words(get(ada, f"{path}?mode=capture"))
    refused = words(post(ada, path, 422, mode="capture", reason=" "))
    place = post(ada, path, 302, mode="capture", reason="we take over")

    entry = Entry.objects.get(action="lane.set")
    assert "312" in page
    assert "removes it from the queue" in page
    assert "Capture orders-poison" in page
    assert "Say why" in refused
    assert place == f"/topics/{lane.topic_id}"
    assert Lane.objects.get().mode == "capture"
    assert (entry.subject, entry.reason) == ("lane:orders", "we take over")


def test_a_tee_needs_its_queue(ada: Client, lane: Lane) -> None:
    path = f"/topics/{lane.topic_id}/mode"

    refused = [
        post(ada, path, 422, mode="tee", reason="r", tee_queue=queue)
        for queue in ("", "orders", "orders-poison")
    ]
    post(ada, path, 302, mode="tee", reason="r", tee_queue="copies")
    page = words(get(ada, f"/topics/{lane.topic_id}"))
    post(ada, path, 302, mode="observe")

    assert all('aria-invalid="true"' in page for page in refused)
    assert "with a copy to copies" in page
    assert (Lane.objects.get().mode, Lane.objects.get().tee_queue) == ("observe", "")


def test_a_topic_without_a_lane_gets_one(ada: Client, topic: Topic) -> None:
    page = words(get(ada, f"/topics/{topic.pk}"))
    looks = {
        mode: words(get(ada, f"/topics/{topic.pk}/mode?mode={mode}"))
        for mode in ("observe", "capture", "tee")
    }

    post(ada, f"/topics/{topic.pk}/mode", 302, mode="observe")

    assert "none: the queue is not read" in page
    assert all("not looked at yet" in look for look in looks.values())
    assert Lane.objects.get().mode == "observe"


@pytest.mark.parametrize("mode", ["", "steal", "<script>"])
def test_an_unknown_mode_is_refused(ada: Client, lane: Lane, mode: str) -> None:
    for answer in (
        ada.get(f"/topics/{lane.topic_id}/mode", {"mode": mode}),
        ada.post(f"/topics/{lane.topic_id}/mode", {"mode": mode}),
    ):
        assert answer.status_code == 422


def test_a_topic_without_a_dead_letter_queue_has_no_mode(ada: Client) -> None:
    topic = Topic.objects.create(name="told", native_name="told")

    page = words(get(ada, f"/topics/{topic.pk}"))
    get(ada, f"/topics/{topic.pk}/mode?mode=capture", 404)
    answer = ada.post(f"/topics/{topic.pk}/mode", {"mode": "observe"})

    assert "No queue is set: failures" in page
    assert answer.status_code == 409
    assert Lane.objects.count() == 0


def test_a_lane_is_paused_and_resumed(ada: Client, lane: Lane) -> None:
    path = f"/topics/{lane.topic_id}/pause"

    post(ada, path, 302, pause="1")
    paused = words(get(ada, f"/topics/{lane.topic_id}"))
    post(ada, path, 302, resume="1")
    resumed = words(get(ada, f"/topics/{lane.topic_id}"))
    nothing = ada.get(path)

    assert "Resume" in paused
    assert "Pause" in resumed
    assert not Lane.objects.get().paused
    assert nothing.status_code == 302
    assert list(Entry.objects.order_by("seq").values_list("action", flat=True)) == [
        "user.created",
        "user.signed_in",
        "lane.paused",
        "lane.resumed",
    ]


def test_policies_are_filled_in_and_shown(ada: Client, topic: Topic) -> None:
    path = f"/topics/{topic.pk}/policies"
    form = policies_form(
        topic,
        max_dequeue_count="3",
        visibility_timeout="00:00:30",
        retention_days="14",
        owner="Team A",
        runbook="https://wiki.example/orders?a=b",
        options='{"body_field": "payload"}',
        reason="ours now",
    )

    blank = get(ada, path)
    post(ada, path, 302, **form)
    page = get(ada, f"/topics/{topic.pk}")
    again = get(ada, path)

    assert 'name="visibility_timeout" value="60"' in blank
    assert "30 s" in words(page)
    assert "14 days" in words(page)
    assert 'href="https://wiki.example/orders?a=b" rel="noreferrer' in page
    assert 'value="30"' in again
    assert "payload" in again
    assert Entry.objects.get(action="topic.altered").reason == "ours now"


def test_a_topic_of_requests_is_set_up_in_its_form_and_its_pages_say_so(
    ada: Client, lane: Lane
) -> None:
    topic = lane.topic
    path = f"/topics/{topic.pk}"
    stock = endpoint()
    queue = topic.native_name
    form = policies_form(topic, request_endpoints="stock-* , other")

    wrong = post(ada, f"{path}/policies", 422, **form)
    post(ada, f"{path}/policies", 302, **{**form, "dead_letter_queue": queue})
    page = get(ada, path)
    again = get(ada, f"{path}/policies")
    ask = get(ada, f"{path}/mode?mode=capture")
    of_endpoint = get(ada, f"/endpoints/{stock.pk}")
    Lane.objects.update(mode="capture", captured=13)
    captured = get(ada, path)

    assert 'name="dead_letter_queue"' in wrong
    assert 'value="stock-* , other"' in wrong
    assert "reads the topic itself" in words(wrong)
    assert 'value="stock-*, other"' in again
    assert "Requests forstock-*, other" in words(page)
    assert 'id="lane">Requests<' in page
    assert "takes each message as a request for an endpoint" in words(ask)
    assert f'href="{path}">orders</a>' in of_endpoint
    assert "its lane takes nothing" in words(of_endpoint)
    assert "each message becomes a delivery" in words(captured)
    assert "its lane takes nothing" not in words(get(ada, f"/endpoints/{stock.pk}"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"request_endpoints": "http://evil.example"}, "request_endpoints"),
        ({"request_endpoints": "stock-*"}, "dead_letter_queue"),
        ({"max_dequeue_count": "0"}, "max_dequeue_count"),
        ({"visibility_timeout": "soon"}, "visibility_timeout"),
        ({"retention_days": "-1"}, "retention_days"),
        ({"owner": "x" * 201}, "owner"),
        ({"runbook": "javascript:alert(1)"}, "runbook"),
        ({"options": "["}, "options"),
        ({"options": '{"colour": 1}'}, "options"),
        ({"dead_letter_queue": "orders"}, "dead_letter_queue"),
        ({"owner": "me", "reason": "x" * 2_001}, "reason"),
        ({"host_json": "{}"}, ""),
    ],
)
def test_an_invalid_policy_shows_the_error_beside_its_field(
    ada: Client, topic: Topic, change: dict[str, str], field: str
) -> None:
    page = post(
        ada, f"/topics/{topic.pk}/policies", 422, **policies_form(topic, **change)
    )

    before, _, after = page.partition(f'name="{field}"' if field else 'role="alert"')
    assert before
    assert not field or 'aria-invalid="true"' in after.partition(">")[0]
    assert not Entry.objects.filter(action="topic.altered").exists()


@pytest.mark.parametrize(
    ("kind", "url", "limits"),
    [
        ("redis_streams", "redis://h", {"max_dequeue_count", "visibility_timeout"}),
        ("rabbitmq", "amqp://h", set()),
        ("sqs", "sqs://eu-central-1", {"visibility_timeout"}),
    ],
)
def test_only_the_limits_that_its_kind_goes_by_are_shown_and_kept(
    ada: Client, topic: Topic, kind: str, url: str, limits: set[str]
) -> None:
    pytest.importorskip(f"apps.brokers.adapters.{kind}")
    Broker.objects.update(kind=kind, url=url)
    path = f"/topics/{topic.pk}/policies"
    form = policies_form(
        topic, max_dequeue_count="7", visibility_timeout="90", owner="A"
    )

    own, blank = words(get(ada, f"/topics/{topic.pk}")), get(ada, path)
    left_out = {name: form.pop(name) for name in LIMITS - limits}
    post(ada, path, 302, **form)
    saved = Topic.objects.get()
    post(ada, path, 302, **form, **left_out)

    assert {name for name in LIMITS if f'name="{name}"' in blank} == limits
    assert ("Max dequeue count" in own) is ("max_dequeue_count" in limits)
    assert ("Visibility timeout" in own) is ("visibility_timeout" in limits)
    assert saved.max_dequeue_count == (7 if "max_dequeue_count" in limits else 5)
    assert saved.visibility_timeout == (90 if "visibility_timeout" in limits else 60)
    assert (saved.owner, Topic.objects.get()) == ("A", saved)
    assert Entry.objects.filter(action="topic.altered").count() == 1


def test_a_host_json_is_pasted_where_the_kind_has_one(ada: Client) -> None:
    pytest.importorskip("apps.brokers.adapters.azure_queue.adapter")
    broker = Broker.objects.create(
        name="azure", kind="azure_queue", url="UseDevelopmentStorage=true"
    )
    topic = Topic.objects.create(
        name="request-queue-1",
        native_name="request-queue-1",
        broker=broker,
        dead_letter_queue="request-queue-1-poison",
    )
    path = f"/topics/{topic.pk}/policies"
    pasted = """{"extensions": {"queues": {  // as the portal shows it
        "maxDequeueCount": 7, "visibilityTimeout": "00:00:10", "batchSize": 8}}}"""

    offered = get(ada, path)
    refused = post(
        ada, path, 422, **policies_form(topic, host_json='{"version": "2.0"}')
    )
    post(ada, path, 302, **policies_form(topic, host_json=pasted))

    saved = Topic.objects.get(pk=topic.pk)
    assert 'name="host_json"' in offered
    assert "extensions" in refused
    assert saved.max_dequeue_count == 7
    assert saved.options == {"visibilityTimeout": "00:00:10", "batchSize": 8}


def test_samples_are_revealed_by_a_post_of_a_reader_of_bodies(
    ada: Client, sign_in: SignIn, lane: Lane, now: datetime
) -> None:
    sample(lane.topic, now)
    path = f"/topics/{lane.topic_id}/samples"

    link = get(ada, f"/topics/{lane.topic_id}")
    before = words(get(ada, path))
    after = words(post(ada, path, 200))
    refused = sign_in(Role.ADMIN).post(path)

    entry = Entry.objects.get(action="body.revealed")
    assert f'href="{path}"' in link
    assert "tenant" in before
    assert "acme" not in before
    assert '"id": 13' not in before
    assert "acme" in after
    assert '"id": 13' in after
    assert "sesame" not in after
    assert "The first" not in after
    assert refused.status_code == 403
    assert (entry.subject, entry.detail["samples"]) == ("topic:orders", 1)


@pytest.mark.parametrize(
    "start",
    [HOSTILE, b"", b"\0\xff", b"{" * 5_000, b'{"a": 1e400}', b"9" * 5_000],
)
def test_nothing_that_a_sample_holds_breaks_its_page(
    ada: Client, lane: Lane, now: datetime, start: bytes
) -> None:
    sample(
        lane.topic,
        now,
        start=start,
        size=len(start) + 7,
        bookmark=HOSTILE.decode(),
        headers=[HOSTILE, HOSTILE * 1_000, b"", b"\xff\0"],
        dequeue_count=None,
    )

    page = post(ada, f"/topics/{lane.topic_id}/samples", 200)

    assert "<script>alert" not in page


def test_a_page_without_samples_says_why(ada: Client, lane: Lane) -> None:
    page = words(post(ada, f"/topics/{lane.topic_id}/samples", 200))

    assert "None was seen" in page
    assert not Entry.objects.filter(action="body.revealed").exists()


def test_who_only_reads_sees_a_lane_and_changes_nothing(
    sign_in: SignIn, lane: Lane
) -> None:
    viewer, root = sign_in(Role.OPERATOR), f"/topics/{lane.topic_id}"

    page = get(viewer, root)
    answers = [
        viewer.get(f"{root}/mode?mode=capture"),
        viewer.post(f"{root}/mode", {"mode": "capture", "reason": "r"}),
        viewer.post(f"{root}/pause", {"pause": "1"}),
        viewer.get(f"{root}/policies"),
        viewer.post(f"{root}/policies", {"owner": "me"}),
    ]

    assert "brokers:write" in page
    assert "Capture…" not in page
    assert [answer.status_code for answer in answers] == [403] * 5
    assert (Lane.objects.get().mode, Lane.objects.get().paused) == ("observe", False)


@pytest.mark.parametrize("path", ["mode?mode=capture", "policies", "samples"])
def test_a_topic_that_is_not_there_is_a_404(ada: Client, path: str) -> None:
    get(ada, f"/topics/12345/{path}", 404)


def test_a_topic_whose_queue_was_taken_away_raises_no_alarm(
    ada: Client, lane: Lane, now: datetime
) -> None:
    Lane.objects.update(state="away", seen_at=now - 2 * LANE_LIVES)
    everybody = Principal(actor=Actor.system("test"), scopes=frozenset())
    alarmed = health.check(everybody, now=now)
    form = policies_form(lane.topic, dead_letter_queue="", reason="it is gone")

    post(ada, f"/topics/{lane.pk}/policies", 302, **form)

    quiet = health.check(everybody, now=now)
    assert [each.component for each in alarmed.alarms] == ["Lanes"]
    assert [each.component for each in quiet.alarms] == []
    assert quiet.statuses[0].state != "stopped"
    assert "orders-poison" not in get(ada, "/positions")
    ready = ada.get("/readyz").json()["dependencies"]
    assert (ready["lanes"], ready["brokers"]) == ("up", {})


def test_the_page_refuses_a_queue_that_another_topic_reads(
    ada: Client, topic: Topic
) -> None:
    other = Topic.objects.create(name="bills", native_name="bills", broker=topic.broker)

    page = post(
        ada,
        f"/topics/{other.pk}/policies",
        422,
        **policies_form(other, dead_letter_queue="orders-poison"),
    )

    assert "topic orders reads orders-poison already" in words(page)
    assert Topic.objects.get(name="bills").dead_letter_queue == ""


def test_the_page_of_a_topic_names_the_other_reader_of_its_queue(
    ada: Client, topic: Topic
) -> None:
    other = Topic.objects.create(
        name="bills",
        native_name="bills",
        broker=topic.broker,
        dead_letter_queue="orders-poison",
        shares_queue=True,
    )

    warned = words(get(ada, f"/topics/{other.pk}"))
    fine = words(get(ada, f"/topics/{topic.pk}"))

    assert "The topic orders reads the dead-letter queue orders-poison, too" in warned
    assert "reads the dead-letter queue" not in fine
