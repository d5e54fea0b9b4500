"""One number has one meaning: every page and the API tell the same for the same words.

One scenario has all that ever made them differ: messages that failed twice, failures
from before counting began and from before yesterday, messages dropped, skipped, sent,
refused, confirmed, come back and given back.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import Sum
from django.test import Client

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.models import Topic
from apps.capture.models import Lane
from apps.dashboard.presentation.definitions import CHAPTERS, DEFINITIONS
from apps.poison.models import Failure, Poison, Problem
from apps.poison.query_language import Query
from apps.poison.services import redrive_confirmations_by_token
from apps.poison.states import DISPLAY_STATES, DisplayState, PoisonState
from apps.team.rights import Principal
from apps.triage.item_standings import standings_of
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services import start_of_give_back_operation
from tests.failure_report_builders import capture, count_up, counter, failure, repeats
from tests.in_memory_queue_broker import SENT, Queues
from tests.integration.dashboard.pages import get
from tests.lane_crash_simulation import drain_all, topic_on_queues
from tests.triage_operation_runner import confirm, preview, run

pytestmark = pytest.mark.django_db(transaction=True)

REFUSED = PublishOutcome(kind=OutcomeKind.REFUSED, detail="too large")
MARK = b"x-poisonweb-redrive"
TEMPLATES = Path(__file__).parents[3] / "templates"
# What needs no definition: when something happened, how large it is, what it is called.
TIMES_SIZES_AND_NAMES = {
    *("Answered", "As of", "Came", "Confirmed", "Ended", "Expires", "Failed", "First"),
    *("Heard", "Last", "Last move", "Last sign-in", "Last used", "Next try"),
    *("Quarantined", "Seen", "Sent", "Since", "Took", "When", "Written"),
    *("Size", "No.", "Place", "Row", "Last status"),
    # The hour of a day, as a number.
    '{{ forloop.counter0|stringformat:"02d" }}',
}
DAY, HOUR = timedelta(hours=24), timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class WorkedTopic:
    """A topic after a day's work, and the operations that did it."""

    topic: Topic
    requeue: Operation
    drop: Operation
    give_back: Operation


@pytest.fixture
def scene(broker: Queues, operator: Principal, now: datetime) -> WorkedTopic:
    topic = topic_on_queues(now)
    reported(now - 30 * HOUR, number=2)
    reported(now - 5 * HOUR, number=4)
    count_up(now, counter(topic="mail", minute=minute(now - HOUR), handled=9, failed=1))
    for body in (b"a", b"b", b"c"):
        broker.put("mail-dead", body)
    drain_all(topic, now)
    dropped = drop_some(operator, now)
    requeued = requeue_all(broker, operator, now)
    come_back(broker, now)
    Lane.objects.update(paused=True)
    back = start_of_give_back_operation.give_back(
        topic=topic, reason="x", principal=operator, now=now
    )
    assert back is not None
    run(back, now)
    reported(now - HOUR, number=1)
    return WorkedTopic(topic=topic, requeue=requeued, drop=dropped, give_back=back)


def reported(at: datetime, *, number: int) -> None:
    """Let messages fail at this time, the first of them twice."""
    members = [failure(at, topic="mail") for _ in range(number)]
    again = {**members[0], "report_id": failure(at)["report_id"]}
    capture(at, *members, again)


def minute(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M}:00Z"


def drop_some(who: Principal, now: datetime) -> Operation:
    """Drop one; then drop the same selection and two more, so that one is skipped."""
    chosen = list(Poison.objects.order_by("id").values_list("pk", flat=True)[:3])
    first = confirm(who, preview(who, now, verb=Verb.DROP, ids=(chosen[0],)), now)
    run(first, now)
    ask = preview(who, now, verb=Verb.DROP, ids=tuple(chosen))
    operation = confirm(who, ask, now)
    run(operation, now)
    return operation


def requeue_all(broker: Queues, who: Principal, now: datetime) -> Operation:
    """Requeue everything: what is dropped is skipped, and one message is refused."""
    broker.answer = lambda message: REFUSED if message.body == b"a" else SENT
    ask = preview(who, now, query=Query.parse("topic:mail"))
    operation = confirm(who, ask, now)
    run(operation, now)
    broker.answer = lambda _: SENT
    return operation


def come_back(broker: Queues, now: datetime) -> None:
    """Let the first two messages that were sent fail again, and confirm the third."""
    marks = [dict(headers)[MARK].decode() for _, headers in broker.contents("mail")]
    for mark in marks[:2]:
        capture(now, failure(now, topic="mail", redrive=mark))
    redrive_confirmations_by_token.confirm(tokens=[(marks[2], "mail")], now=now)


def ask_api(client: Client, path: str, **query: str) -> Any:
    response = client.get(f"/api/v1/{path}", query)
    assert response.status_code == 200, path
    return response.json()


def counts_on(page: str) -> dict[str, int]:
    """Return the numbers under the pills of a page."""
    pattern = r"</span>([A-Z][\w ]*)</span></a></dt><dd>(?:<a [^>]*>)?([\d,]+)"
    return {word: int(n.replace(",", "")) for word, n in re.findall(pattern, page)}


def counts_in_tabs(page: str) -> dict[str, int]:
    """Return the numbers beside the tabs, without the last tab (all)."""
    pattern = r'title="[^"]+">([A-Z]\w+) <span class="count">([\d,]+)'
    counts = {word: int(n.replace(",", "")) for word, n in re.findall(pattern, page)}
    assert counts.pop("All") == sum(counts.values())
    return counts


def listed(client: Client, query: str) -> int:
    """Return the number of messages that a list shows."""
    page = client.get("/messages", {"q": query}).content.decode()
    match = re.search(r'id="list-count"[^>]*>(\d+) message', page)
    assert match
    return int(match[1])


def test_the_states_of_messages_have_the_same_numbers_everywhere(
    anna: Client, scene: WorkedTopic
) -> None:
    states = Counter(
        DISPLAY_STATES[PoisonState(state)]
        for state in Poison.objects.values_list("state", flat=True)
    )
    expected = {word.value.capitalize(): states[word] for word in DisplayState}
    assert min(expected.values()) > 0, "the scene has every state"
    problems = list(Problem.objects.all())

    on_topic = counts_on(get(anna, f"/topics/{scene.topic.pk}"))
    on_problems, in_api = Counter[str](), Counter[str]()
    for problem in problems:
        on_problems.update(counts_in_tabs(get(anna, f"/problems/{problem.pk}")))
    for row in ask_api(anna, "problems")["results"]:
        in_api.update({word.capitalize(): n for word, n in row["counts"].items()})
    in_lists = {word.capitalize(): listed(anna, f"is:{word}") for word in DisplayState}

    assert on_topic == on_problems == in_api == in_lists == expected
    title = f"<title>({expected['Open']}) Overview"
    assert title in get(anna, "/")
    for path in ("/", "/topics"):
        assert f">{expected['Open']}<span" in get(anna, path)


def test_failures_of_24_hours_are_the_same_number_everywhere(
    anna: Client, scene: WorkedTopic, now: datetime
) -> None:
    capture(now, *repeats(now - HOUR, 150, topic="mail"))
    lately = Failure.objects.filter(failed_at__gt=now - DAY)
    number = lately.aggregate(number=Sum("times"))["number"]
    assert number > lately.count(), "one stands for several"
    assert number > lately.values("poison").distinct().count(), "one failed twice"
    assert lately.count() < Failure.objects.count(), "some failed before"

    words = f"{number} failures in the last 24 hours"
    of_problems = sum(
        int(match[1])
        for problem in Problem.objects.all()
        if (
            match := re.search(
                r"(\d+) failures? in the last 24 hours",
                get(anna, f"/problems/{problem.pk}"),
            )
        )
    )

    assert words in get(anna, f"/topics/{scene.topic.pk}")
    assert of_problems == number
    for path in ("/", "/topics"):
        page = get(anna, path)
        assert f'data-label="failures, 24 h">{number}<' in page
        assert f'aria-label="{number} failures"' in page


def test_the_share_that_failed_is_of_what_the_same_source_counted(
    anna: Client, scene: WorkedTopic
) -> None:
    pages = [get(anna, path) for path in (f"/topics/{scene.topic.pk}", "/topics", "/")]

    assert "1, 10\u00a0% of what was delivered" in pages[0]
    assert all('<span class="strong">10\u00a0%</span>' in page for page in pages[1:])


def test_what_the_lane_captured_is_the_same_on_the_page_and_in_the_api(
    anna: Client, scene: WorkedTopic
) -> None:
    (topic,) = ask_api(anna, "topics")["results"]

    assert topic["lane"]["captured"] == 3
    assert "<dd>3 so far" in get(anna, f"/topics/{scene.topic.pk}")


@pytest.mark.parametrize("name", ["requeue", "drop", "give_back"])
def test_an_operation_tells_the_same_on_its_page_in_the_lists_and_in_the_api(
    anna: Client, scene: WorkedTopic, name: str
) -> None:
    operation: Operation = getattr(scene, name)
    deed = {"requeue": "Requeued", "drop": "Dropped", "give_back": "Gave back"}[name]
    data = ask_api(anna, f"operations/{operation.pk}")
    counts = data["counts"]

    own = get(anna, f"/operations/{operation.pk}")

    assert sum(counts.values()) == data["total"]
    assert data["acts_on"] == data["total"] - counts["skipped"]
    assert data["acted"] == data["acts_on"] - counts["refused"]
    words = f"{deed} {data['acted']} message"
    assert words.lower() in own.lower()
    assert all(f">{words}" in get(anna, path) for path in ("/operations", "/"))
    size = data["acts_on"]
    assert f'<progress max="{size}" value="{size}"' in own
    assert sum(counts_on(own).values()) == data["total"]


def test_the_requeue_names_each_of_its_outcomes(
    anna: Client, scene: WorkedTopic
) -> None:
    own = get(anna, f"/operations/{scene.requeue.pk}")

    assert counts_on(own) == {
        "Waiting": 0,
        "Sent": 2,
        "Handled": 1,
        "Came back": 2,
        "Refused": 1,
        "Skipped": 3,
    }
    assert "</span>Partly refused, 2 came back</span>" in own


def test_a_message_that_was_given_back_is_told_so_and_is_not_offered_for_a_requeue(
    anna: Client, scene: WorkedTopic, broker: Queues, operator: Principal, now: datetime
) -> None:
    back = Poison.objects.given_back().first()
    assert back is not None
    own = get(anna, f"/messages/{back.pk}")
    data = ask_api(anna, f"poisons/{back.pk}")
    operation = ask_api(anna, f"operations/{scene.give_back.pk}")

    assert "<dt>Given back</dt><dd>to <code>mail-dead</code>" in own
    assert "given back to <code>mail-dead</code>" in own
    assert "</span>Given back</span>" in own
    assert ('name="verb"' in own, "would make a second copy" in own) == (False, True)
    assert "Sent to" not in own
    assert (data["shown"], data["given_back"]) == ("sent", True)
    assert data["redrives"][0]["queue"] == "mail-dead"
    assert operation["given_back_to"] == "mail-dead"
    assert "</span>Given back</span>" in get(anna, "/messages")
    given_back = Poison.objects.given_back().count()
    assert f"{given_back} of those sent" in get(anna, f"/topics/{scene.topic.pk}")

    before = len(broker.contents("mail"))
    again = preview(operator, now, ids=(back.pk,))
    (item,) = standings_of(again, limit=10)
    assert (item.standing, "second copy" in item.explanation) == ("skipped", True)
    assert len(broker.contents("mail")) == before


def test_a_number_s_definition_is_the_same_on_hover_and_in_help(
    anna: Client, scene: WorkedTopic
) -> None:
    paths = (
        *("/", "/topics", "/problems", "/messages", "/operations"),
        *(f"/topics/{scene.topic.pk}", f"/operations/{scene.requeue.pk}"),
        f"/problems/{Problem.objects.earliest('pk').pk}",
    )
    in_help = get(anna, "/help")
    places = dict(
        re.findall(r'<dt id="(means-[\w-]+)">[^<]*</dt><dd>(.*?)\.</dd>', in_help)
    )

    assert len(places) == len(DEFINITIONS) == sum(len(c.definitions) for c in CHAPTERS)
    for path in paths:
        hints = re.findall(
            r'<a class="term" href="/help#([\w-]+)" title="([^"]*)"', get(anna, path)
        )
        assert hints, path
        for place, title in hints:
            assert places[place].lower() == title.lower()


def test_each_head_of_a_column_of_numbers_leads_to_its_definition() -> None:
    heads = re.compile(r'<th scope="col" class="num[^"]*">(.*?)</th>', re.DOTALL)

    undefined = {
        (path.relative_to(TEMPLATES).as_posix(), head)
        for path in TEMPLATES.rglob("*.html")
        for head in heads.findall(path.read_text())
        if not re.search("{% (term|pill|counted_pill) ", head)
        and head not in TIMES_SIZES_AND_NAMES
    }

    assert not undefined
