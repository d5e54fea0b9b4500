"""The topic pages: traffic, open messages, consumers and lanes."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timedelta

import pytest
from django.test import Client

from apps.bookmarks import services as bookmarks
from apps.brokers.adapter_contract import ConsumerPosition
from apps.brokers.models import Broker, Topic
from apps.capture.models import Counter, HeldDeadLetter, Lane
from apps.core.actor import Actor
from apps.core.errors import Absent
from apps.core.statement_timeouts import TooSlow
from apps.dashboard.keyset_pagination import PAGE_SIZE
from apps.dashboard.selectors import topics
from apps.dashboard.selectors.topics import ListedBacklog, TopicFilter, Traffic
from apps.poison.models import Poison, Problem, SkipList, WaitingSkip
from apps.poison.states import DisplayState
from apps.team.rights import Principal, Scope
from tests.failure_report_builders import capture, drop, failure, poisons
from tests.in_memory_queue_broker import Queues
from tests.integration.dashboard.pages import get
from tests.integration.outbox.outbox_builders import outbox_at
from tests.position_opening_and_settling import told_by_broker

pytestmark = pytest.mark.django_db

EVERYONE = Principal(actor=Actor.user("anna"), scopes=frozenset(Scope))
EU = Principal(actor=Actor.key("eu"), scopes=frozenset(Scope), topics=("orders.eu",))


def counted(topic: Topic, minute: datetime, **changes: object) -> None:
    numbers = {"handled": 0, "failed": 0, "skipped": 0, "retried": 0, **changes}
    Counter.objects.create(
        id=uuid.uuid4().int % 2**62,
        day=minute.date(),
        reporter=uuid.uuid4(),
        sequence=1,
        topic=topic,
        consumer_group="billing",
        client_name="billing-1",
        minute=minute.replace(second=0, microsecond=0),
        captured_at=minute,
        **numbers,
    )


def traffic_of(topic: Topic, now: datetime) -> Traffic:
    traffic = topics.one(topic.pk, EVERYONE, now=now).row.traffic
    assert isinstance(traffic, Traffic)
    return traffic


def reader(group: str) -> ConsumerPosition:
    return told_by_broker(group, seq=17 << 20, head_seq=19 << 20)


def topic_named(name: str) -> Topic:
    return Topic.objects.create(name=name, native_name=name)


def test_consumers_say_what_was_delivered_and_failed(now: datetime) -> None:
    topic = topic_named("orders")
    counted(topic, now - timedelta(hours=3), handled=90, failed=10)
    counted(topic, now - timedelta(hours=25), handled=1000, failed=1000)

    traffic = traffic_of(topic, now)

    assert (traffic.source, traffic.delivered, traffic.failed) == ("sdk", 100, 10)
    assert traffic.share == pytest.approx(0.1)


def test_failures_from_before_counting_began_are_in_no_share(
    anna: Client, now: datetime
) -> None:
    topic = topic_named("orders")
    poisons(now - timedelta(hours=2), 20)
    counted(topic, now - timedelta(hours=1), handled=4, failed=1)

    traffic, page = traffic_of(topic, now), get(anna, f"/topics/{topic.pk}")

    assert (traffic.failed, traffic.share) == (1, 0.2)
    assert "1, 20\u00a0% of what was delivered" in page
    assert "20 failures in the last 24 hours" in page


def test_there_is_no_share_where_only_the_broker_counts_and_the_page_says_why(
    anna: Client, now: datetime
) -> None:
    topic = topic_named("orders")
    counted(topic, now - timedelta(hours=3), handled=3, source="broker")
    poisons(now - timedelta(hours=1, minutes=30), 5)

    traffic = traffic_of(topic, now)
    pages = [get(anna, path) for path in ("/", "/topics", f"/topics/{topic.pk}")]

    assert (traffic.source, traffic.delivered) == ("broker", 3)
    assert (traffic.failed, traffic.share) == (None, None)
    why = "no share: its broker counts deliveries, not failures"
    assert all(why in page for page in pages)
    assert not any("100\u00a0%" in page for page in pages)


def test_a_message_that_failed_twice_is_two_failures_on_every_page(
    anna: Client, now: datetime
) -> None:
    early, late = now - timedelta(hours=5, minutes=1), now - timedelta(minutes=61)
    first = failure(early, bookmark="7-0")
    capture(early, first)
    capture(late, {**first, **failure(late, bookmark="7-0")})
    (problem,) = Problem.objects.all()
    topic = problem.topic

    failures = topics.one(topic.pk, EVERYONE, now=now).row.failures

    assert not isinstance(failures, TooSlow)
    assert (failures.hours[-6], failures.hours[-2], failures.number) == (1, 1, 2)
    paths = (f"/topics/{topic.pk}", f"/problems/{problem.pk}")
    pages = [get(anna, path) for path in paths]
    assert all("2 failures in the last 24 hours" in page for page in pages)
    lists = [get(anna, path) for path in ("/", "/topics", "/problems")]
    assert all('aria-label="2 failures"' in page for page in lists)


def test_what_consumers_count_goes_before_what_the_broker_counts(now: datetime) -> None:
    topic = topic_named("orders")
    counted(topic, now - timedelta(hours=3), handled=50, source="broker")
    counted(topic, now - timedelta(hours=3), handled=45, failed=4)

    traffic = traffic_of(topic, now)

    assert (traffic.source, traffic.delivered, traffic.failed) == ("sdk", 49, 4)


def test_there_is_no_share_where_deliveries_are_not_counted(now: datetime) -> None:
    poisons(now - timedelta(minutes=1), 2)

    traffic = traffic_of(Topic.objects.get(), now)

    assert (traffic.delivered, traffic.share, traffic.failed) == (None, None, None)
    assert traffic.why_no_share == "no share: deliveries are not counted"


def test_the_rate_covers_the_last_ten_full_minutes(now: datetime) -> None:
    topic = topic_named("orders")
    for minute in range(30):
        counted(topic, now - timedelta(minutes=minute), handled=6)

    assert traffic_of(topic, now).per_minute == pytest.approx(6)


def test_its_messages_are_counted_by_state(anna: Client, now: datetime) -> None:
    messages = poisons(now - timedelta(hours=2), 4)
    poisons(now, 1, topic="other")
    drop(now, messages[0])

    detail = topics.one(messages[0].topic_id, EVERYONE, now=now)
    page = get(anna, f"/topics/{messages[0].topic_id}")

    assert detail.counts == {
        DisplayState.OPEN: 3,
        DisplayState.SENT: 0,
        DisplayState.HANDLED: 0,
        DisplayState.DROPPED: 1,
    }
    assert isinstance(detail.row.backlog, ListedBacklog)
    assert detail.row.backlog.open == 3
    assert detail.row.backlog.oldest == messages[0].last_failed_at
    assert 'href="/messages?q=is%3Aopen+topic%3Aorders">3</a>' in page


def test_its_consumers_lane_letters_and_policy_are_told(
    anna: Client, orders: Topic, now: datetime
) -> None:
    bookmarks.observe(topic=orders, consumers=[reader("billing")], now=now)
    HeldDeadLetter.objects.create(
        topic=orders, bookmark="9-9", reason="too large", size=10**9, seen_at=now
    )
    Lane.objects.update(state="running", seen_at=now)

    page = get(anna, f"/topics/{orders.pk}")

    facts = ("billing", "Behind", "orders-poison", "Running", "too large", "0.2 s")
    assert [part for part in facts if part not in page] == []
    assert topics.one(orders.pk, EVERYONE, now=now).row.lag == 2


def test_a_topic_known_by_report_says_so(anna: Client, now: datetime) -> None:
    (poison,) = poisons(now, 1)

    page = get(anna, f"/topics/{poison.topic_id}")

    assert "known by report only" in page
    assert "come only by the API" in page


def test_invisible_topics_are_not_listed(now: datetime) -> None:
    ours, theirs = topic_named("orders.eu"), topic_named("orders.us")

    result = topics.find(TopicFilter(), EU, now=now)

    assert [row.topic for row in result.rows] == [ours]
    assert topics.one(ours.pk, EU, now=now).row.topic == ours
    with pytest.raises(Absent):
        topics.one(theirs.pk, EU, now=now)


def test_the_pages_of_the_list_hold_every_topic_once(anna: Client) -> None:
    names = sorted(f"topic {number:03}" for number in range(PAGE_SIZE + 7))
    for name in names:
        topic_named(name)

    first = get(anna, "/topics")
    following = re.search(r'rel="next" href="([^"]+)"', first)
    assert following
    second = get(anna, f"/topics{following[1]}")

    assert re.findall(r">(topic \d+)</a>", first + second) == names
    assert 'rel="next"' not in second


def test_a_topic_is_found_by_part_of_its_name(
    anna: Client,
) -> None:
    topic_named("orders.eu")
    topic_named("100%")

    page = get(anna, "/topics?name=ERS.E")
    exact = get(anna, "/topics?name=%25")
    none = get(anna, "/topics?name=nowhere")

    assert "orders.eu" in page
    assert "orders.eu" not in exact
    assert "No topic matches" in none
    assert "<code>nowhere</code>" in none


@pytest.mark.parametrize("query", ["name=%00", "after=%00", "name=%ED%A0%80"])
def test_a_name_that_no_topic_can_have_breaks_nothing(anna: Client, query: str) -> None:
    get(anna, f"/topics?{query}")


def test_no_name_breaks_its_pages(anna: Client, now: datetime) -> None:
    topic = topic_named("</a><script>alert(1)</script>\u202e/ % &?#" + "A" * 300)
    bookmarks.observe(topic=topic, consumers=[reader(topic.name)], now=now)

    pages = [get(anna, path) for path in ("/topics", f"/topics/{topic.pk}")]

    assert all("<script>alert" not in page for page in pages)
    assert all("\u202e" not in page for page in pages)


def test_the_sample_is_marked(anna: Client, orders: Topic) -> None:
    Broker.objects.update(is_sample=True)

    pages = [get(anna, path) for path in ("/topics", f"/topics/{orders.pk}")]

    assert all('<span class="badge">sample</span>' in page for page in pages)


def test_the_topic_of_the_samples_outbox_is_marked(
    anna: Client, broker: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_NOWHERE", "redis://127.0.0.1:1/0")
    shop = outbox_at("postgresql://sweeper:x@127.0.0.1:1/shop")
    path = f"/topics/{shop.topic_id}"
    badge = '<span class="badge">sample</span>'
    assert badge not in get(anna, path)
    Broker.objects.filter(name="events").update(is_sample=True)

    pages = [get(anna, "/topics"), get(anna, path)]

    assert all(badge in page for page in pages)


def test_the_list_needs_no_more_queries_for_many_topics(
    anna: Client, now: datetime, django_assert_max_num_queries: object
) -> None:
    for number in range(30):
        poisons(now, 1, topic=f"topic {number}")

    with django_assert_max_num_queries(24):  # type: ignore[operator]
        get(anna, "/topics")

    assert Poison.objects.count() == 30


def test_a_full_skip_list_is_shown_only_on_the_page_of_its_topic(
    anna: Client, now: datetime
) -> None:
    full, calm, long_ago = (
        Topic.objects.create(name=name, native_name=name)
        for name in ("orders", "stock", "prices")
    )
    SkipList.objects.create(topic=full, revision=7, withheld=3, withheld_at=now)
    SkipList.objects.create(
        topic=long_ago, revision=7, withheld=3, withheld_at=now - timedelta(days=2)
    )

    named = {
        topic.name: "3 messages got no automatic skip"
        in get(anna, f"/topics/{topic.pk}")
        for topic in (full, calm, long_ago)
    }

    assert named == {"orders": True, "stock": False, "prices": False}


def test_messages_that_are_too_large_are_named_with_where_they_are(
    anna: Client, now: datetime
) -> None:
    report = failure(now, bookmark="<7-0>", host="host-3", cause="crash")
    del report["body"]
    report["oversize_body"] = {"size": 90 * 2**20, "sha256": "ab" * 32}
    capture(now, report, {**report, "bookmark": "8-0"})
    topic = Topic.objects.get(name="orders")
    calm = Topic.objects.create(name="stock", native_name="stock")

    page, other = (get(anna, f"/topics/{each.pk}") for each in (topic, calm))

    overview = get(anna, "/")

    facts = ("&lt;7-0&gt;", "90.0", "ab" * 32, "billing-1 on host-3", "crash")
    assert [fact for fact in facts if fact not in page] == []
    assert "2 messages that consumers gave up on are too large" in page
    assert "too large" not in other
    assert "2 messages of orders</a> are too large to be kept here" in overview


def test_waiting_skips_are_counted_on_the_skip_page_and_the_topic_page(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    SkipList.objects.create(topic=poison.topic, revision=7)
    calm = Topic.objects.create(name="stock", native_name="stock")
    for n in range(2):
        WaitingSkip.objects.create(
            topic=poison.topic,
            consumer_group="billing",
            bookmark=b"%d" % n,
            redrive=uuid.uuid4(),
            poison=poison,
            reason="crash",
            is_killer=True,
            at=now,
        )

    pages = ("/skips", f"/topics/{poison.topic_id}", f"/topics/{calm.pk}")
    named = [
        "2 messages wait for an automatic skip" in get(anna, page) for page in pages
    ]

    assert named == [True, True, False]
