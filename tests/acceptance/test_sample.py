"""What a newcomer sees in the first minutes, and that the record of it is true.

The story is told once; each test looks at one thing that it left behind. What is made
up of the weeks before bears a mark, and does not come from the live sample.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis

from poisonweb.embedded import running_servers_file
from poisonweb.sample import billing
from poisonweb.sample.event_ledger import Tally, read, tally
from poisonweb.sample.producer_messages import CONTENT_TOPIC, ORDERS, SHIPMENTS
from tests.acceptance.api_client import ApiClient
from tests.acceptance.product_process import (
    PYTHON,
    START,
    Product,
    clone,
    environment,
    started,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

# In seconds: what is promised, and what a machine at work on other tests needs.
SOON = 15 if "SOAK" in os.environ else 60

SCOPES = ("poisons:read", "problems:read", "operations:read", "operations:write")
MINUTE = 60.0
TOPICS = {CONTENT_TOPIC, ORDERS, SHIPMENTS}
# The past leaves some addresses to be decided, and nothing else.
OF_TODAY = "is:open !error:LookupError"
DEADLY = "topic:shipments cause:crash"
OF_THE_PAST = "SELECT poison_id FROM poison_failure WHERE host = 'sample-history'"

Seen = dict[int, dict[str, Any]]


REFUSAL = re.compile(r"no quote of \w+ now \(HTTP (\d+)\): delivery ([0-9a-f-]{36})")


@dataclass(frozen=True, kw_only=True)
class SampleStory:
    """What was seen, in the order of time; poisons by their ids."""

    seconds_to_first_problem: float
    problems: list[dict[str, Any]]
    set_aside: Seen
    content_before: Seen
    content_after: Seen
    orders_before: Seen
    orders_after: Seen
    shipments_before: Seen
    shipments_after: Seen
    requeued_content: dict[str, Any]
    requeued_orders: dict[str, Any]
    fixable: set[int]
    ledger: dict[str, Tally]
    record: dict[str, Tally]
    counted: dict[str, int]
    past: set[int]
    days_of_the_past: int
    # Of calls that were refused and answered later.
    refusals_of_quotes: set[str]
    verdict: tuple[int, str]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone(tmp_path_factory.mktemp("a clone"))


@pytest.fixture(scope="module")
def story(tree: Path) -> Iterator[SampleStory]:
    with started(tree, *START) as product:
        yield tell(product, SampleInstallation(tree, product))


class SampleInstallation:
    """The places of one installation where something can be looked up."""

    def __init__(self, tree: Path, product: Product) -> None:
        self.tree = tree
        self.var = product.var
        servers = running_servers_file.environment(product.var)
        self.database_url = servers["DATABASE_URL"]
        self.redis_url = servers["POISONWEB_REDIS_URL"]

    def manage(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            (PYTHON, "manage.py", *arguments),
            cwd=self.tree,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.strip()

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(statement).fetchall()

    def ledger(self) -> dict[str, Tally]:
        return tally(read(self.var / "sample-ledger.jsonl"))

    def record(self) -> dict[str, Tally]:
        counted = self.rows(
            "SELECT topic.name, count(*), sum(poison.recurrences),"
            " (SELECT count(*) FROM poison_redrive redrive"
            "  WHERE redrive.topic_id = topic.id AND redrive.outcome = 'confirmed'"
            f" AND redrive.poison_id NOT IN ({OF_THE_PAST}))"
            " FROM poison_poison poison JOIN brokers_topic topic"
            " ON topic.id = poison.topic_id"
            f" WHERE poison.id NOT IN ({OF_THE_PAST}) GROUP BY topic.id"
        )
        return {
            name: Tally(poisons=poisons, recurrences=again, confirmations=confirmed)
            for name, poisons, again, confirmed in counted
            if name in TOPICS  # the consumers': the gateway may give up a quote
        }

    def is_at_rest(self) -> bool:
        """Tell whether nothing is on its way, to a consumer or to the record."""
        with Redis.from_url(self.redis_url, protocol=2) as redis:
            return all(_is_settled(redis, topic) for topic in TOPICS)

    def fixable(self) -> set[int]:
        """Find the orders that the new release could bill."""
        orders = self.rows(
            "SELECT poison.id, body.content FROM poison_poison poison"
            " JOIN poison_body body ON body.poison_id = poison.id"
            " JOIN brokers_topic topic ON topic.id = poison.topic_id"
            " WHERE topic.name = 'orders'"
            f" AND poison.id NOT IN ({OF_THE_PAST})"
        )
        return {poison for poison, body in orders if _can_be_billed(body)}

    def past(self) -> set[int]:
        return {poison for (poison,) in self.rows(OF_THE_PAST)}

    def days_of_the_past(self) -> int:
        """Count the days for which a report was asked, once all of them were made."""
        query = "SELECT last_day - first_day + 1 FROM reports_run WHERE asked_by = "
        return sum(days for (days,) in self.rows(f"{query} 'system:sample'"))

    def counted(self) -> dict[str, int]:
        counters = self.rows(
            "SELECT topic.name, sum(handled + failed) FROM capture_counter counter"
            " JOIN brokers_topic topic ON topic.id = counter.topic_id"
            " WHERE client_name NOT LIKE '%(sample history)' GROUP BY 1"
        )
        return {name: int(number) for name, number in counters}


def _is_settled(redis: Redis, topic: str) -> bool:
    groups: Any = redis.xinfo_groups(topic)
    newest: Any = redis.xrevrange(topic, count=1)
    (group,) = groups
    sent_at, _, _ = newest[0][0].partition(b"-")
    # The producer may send once more before it hears that it is to stop.
    is_old = int(sent_at) < 1000 * (redis.time()[0] - 3)
    is_read = group["last-delivered-id"] == newest[0][0]
    return is_old and is_read and not group["pending"]


def _can_be_billed(body: bytes) -> bool:
    try:
        billing.invoice(billing.read(body), release=2)
    except (ValueError, KeyError, ZeroDivisionError):
        return False
    return True


def tell(product: Product, town: SampleInstallation) -> SampleStory:
    began = time.monotonic()
    _, key = town.manage("create_api_key", "visitor", *scopes(*SCOPES))
    visitor = ApiClient(url=product.url, key=key)
    wait_until(lambda: bool(visitor.get("problems", q=OF_TODAY)["results"]))
    first_problem = time.monotonic() - began

    log = town.var / "log" / "sample.log"
    release = "billing-1 runs release 2"
    wait_until(lambda: release in log.read_text(), seconds=3 * MINUTE)
    os.kill(product.pid("sample"), signal.SIGUSR1)
    wait_until(town.is_at_rest, seconds=MINUTE)
    wait_until(lambda: town.days_of_the_past() > 0, seconds=6 * MINUTE)
    problems = list(visitor.all("problems", OF_TODAY))

    content_before = by_id(visitor, "topic:ContentTopic is:open")
    content = visitor.requeue("topic:ContentTopic is:open", reason="once more")
    orders_before = by_id(visitor, "topic:orders is:open")
    orders = visitor.requeue("topic:orders is:open", reason="the fix is out")
    shipments_before = by_id(visitor, f"{DEADLY} is:open")
    visitor.requeue(f"{DEADLY} is:open", reason="to see what they do")

    wait_until(lambda: town.record() == town.ledger(), seconds=3 * MINUTE)
    # The minute that runs is told of when it is over.
    wait_until(lambda: set(town.counted()) == TOPICS, seconds=3 * MINUTE)
    wait_until(lambda: len(refusals_answered_later(log)) > 1, seconds=3 * MINUTE)
    return SampleStory(
        seconds_to_first_problem=first_problem,
        problems=problems,
        set_aside=by_id(visitor, "topic:outbox/sample-shop"),
        content_before=content_before,
        content_after=by_id(visitor, "topic:ContentTopic", but=town.past()),
        orders_before=orders_before,
        orders_after=by_id(visitor, "topic:orders", but=town.past()),
        shipments_before=shipments_before,
        shipments_after=by_id(visitor, DEADLY),
        requeued_content=content,
        requeued_orders=orders,
        fixable=town.fixable(),
        ledger=town.ledger(),
        record=town.record(),
        counted=town.counted(),
        past=town.past(),
        days_of_the_past=town.days_of_the_past(),
        refusals_of_quotes=refusals_answered_later(log),
        verdict=town.manage("verify_audit"),
    )


def refusals_answered_later(log: Path) -> set[str]:
    """Return the statuses of the quotes' client whose delivery was delivered later."""
    text = log.read_text()
    return {
        status
        for status, delivery in REFUSAL.findall(text)
        if f"delivery {delivery} is delivered" in text
    }


def scopes(*names: str) -> list[str]:
    return [part for name in names for part in ("--scope", name)]


def by_id(client: ApiClient, q: str, *, but: Collection[int] = ()) -> Seen:
    poisons = {poison["id"]: poison for poison in client.all("poisons", q)}
    return {number: poison for number, poison in poisons.items() if number not in but}


def test_problems_appear_by_themselves_within_seconds(story: SampleStory) -> None:
    titles = {(problem["topic"], problem["title"]) for problem in story.problems}

    assert story.seconds_to_first_problem < SOON
    assert titles == {
        ("ContentTopic", "ValueError"),
        ("orders", "KeyError"),
        ("orders", "TimeoutError"),
        ("orders", "UnicodeDecodeError"),
        ("orders", "ValueError"),
        ("orders", "ZeroDivisionError"),
        ("shipments", "ProcessDied"),
        ("outbox/sample-shop", "QuarantinedOutboxRow"),
    }


def test_the_row_that_a_script_corrupted_is_set_aside_with_its_name(
    story: SampleStory,
) -> None:
    set_aside = [poison["error_message"] for poison in story.set_aside.values()]

    assert any("receipt-correction.sh" in text for text in set_aside)
    assert all("two messages under one id" in text for text in set_aside)


def test_there_are_four_weeks_of_a_past_and_it_is_settled(story: SampleStory) -> None:
    assert story.days_of_the_past == 28
    assert len(story.past) > 2_000
    assert story.past.isdisjoint({*story.content_before, *story.orders_before})


def test_after_a_minute_there_is_something_to_do(story: SampleStory) -> None:
    assert 10 <= len(story.content_before) <= 40
    assert len(story.orders_before) >= 10


def test_every_superstition_comes_back_as_the_message_it_was(
    story: SampleStory,
) -> None:
    poisons = story.content_after

    assert story.requeued_content["total"] == len(story.content_before)
    assert story.requeued_content["counts"]["recurred"] == len(story.content_before)
    assert set(poisons) == set(story.content_before)
    assert {poison["state"] for poison in poisons.values()} == {"open"}
    assert {poison["counts"]["recurrences"] for poison in poisons.values()} == {1}
    assert {poison["counts"]["failures"] for poison in poisons.values()} == {2}


def test_orders_that_the_new_release_can_handle_are_handled_after_a_requeue(
    story: SampleStory,
) -> None:
    poisons = story.orders_after
    handled = {n for n, poison in poisons.items() if poison["state"] == "confirmed"}

    assert set(poisons) == set(story.orders_before)
    assert handled == story.fixable
    assert story.requeued_orders["counts"]["confirmed"] == len(handled)
    back = {n: poison["counts"]["recurrences"] for n, poison in poisons.items()}
    assert back == {n: int(n not in handled) for n in poisons}


def test_the_release_mends_half_of_the_bug(story: SampleStory) -> None:
    (bug,) = (p for p in story.problems if p["title"] == "ZeroDivisionError")
    became = {
        poison["state"]
        for n, poison in story.orders_after.items()
        if story.orders_before[n]["problem"] == bug["id"]
    }

    assert became == {"confirmed", "open"}


def test_a_message_that_kills_its_consumer_is_poison_with_cause_crash(
    story: SampleStory,
) -> None:
    before, after = story.shipments_before, story.shipments_after
    (crash,) = (p for p in story.problems if p["title"] == "ProcessDied")

    assert {poison["problem"] for poison in before.values()} == {crash["id"]}
    said = {poison["error_message"] for poison in before.values()}
    assert said == {"The process ended with exit code 134"}
    assert {poison["counts"]["crashes"] for poison in before.values()} == {2}
    assert set(after) == set(before)
    assert {poison["counts"]["recurrences"] for poison in after.values()} == {1}
    assert {poison["counts"]["crashes"] for poison in after.values()} == {4}


def test_the_record_says_what_the_consumers_say(story: SampleStory) -> None:
    assert story.record == story.ledger
    assert story.record["ContentTopic"].recurrences == len(story.content_before)
    assert story.record["orders"].confirmations == len(story.fixable)


def test_consumers_count_what_they_do(story: SampleStory) -> None:
    assert story.counted["ContentTopic"] > 100
    assert story.counted["orders"] > 50
    assert story.counted["shipments"] > 0


def test_a_client_that_got_a_fault_gets_its_quote_later(story: SampleStory) -> None:
    # SOAP has a fault, JSON a problem.
    assert "500" in story.refusals_of_quotes
    assert story.refusals_of_quotes & {"502", "503", "504"}


def test_the_trail_is_whole(story: SampleStory) -> None:
    code, said = story.verdict

    assert code == 0
    assert "ok" in said
