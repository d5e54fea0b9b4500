"""The list of operations: running ones first, with their outcomes."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timedelta

import pytest
from django.db.models import F
from django.test import Client

from apps.core.actor import Actor
from apps.core.errors import Absent
from apps.dashboard.keyset_pagination import PAGE_SIZE
from apps.dashboard.presentation.operation_words import PAST_VERBS
from apps.dashboard.selectors import operation_progress, triage_operations
from apps.poison.models import ItemWindow, Poison, Redrive
from apps.team.rights import Principal, Role, Scope
from apps.triage.models import Item, Operation, SkippedItem
from apps.triage.operation_states import LAYOUT_OF, VERBS, Verb
from tests.failure_report_builders import poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get

pytestmark = pytest.mark.django_db

EVERYONE = Principal(actor=Actor.user("anna"), scopes=frozenset(Scope))
EU = Principal(actor=Actor.key("eu"), scopes=frozenset(Scope), topics=("orders.eu",))


def decided(now: datetime, **changes: object) -> Operation:
    fields: dict[str, object] = {
        "verb": "redrive",
        "state": "done",
        "actor": "user:anna",
        "source": "ui",
        "query": "is:open topic:orders",
        "topics": ["*"],
        "taken": True,
        "created_at": now,
        "expires_at": now,
        "confirmed_at": now,
        "finished_at": now,
        **changes,
    }
    if fields["state"] != "done":
        fields["finished_at"] = None
    return Operation.objects.create(**fields)


def waiting(operation: Operation, poison: Poison) -> int:
    """Let the operation have one more item, and return its number."""
    number = operation.items.count()
    Item.objects.create(operation=operation, number=number, poison=poison)
    return number


def counted(operation: Operation, poison: Poison, standing: str) -> int:
    """Let the operation have one more item that its window counts like this."""
    number = waiting(operation, poison)
    ItemWindow.objects.get_or_create(
        operation=operation.pk, first=0, defaults={"items": operation.total}
    )
    window = ItemWindow.objects.filter(operation=operation.pk, first=0)
    window.update(**{standing: F(standing) + 1})
    return number


def item(operation: Operation, poison: Poison, outcome: str, now: datetime) -> None:
    arrived = outcome in {"sent", "confirmed", "recurred", "moved"}
    times = {"sent_at": now} if arrived else {}
    answered = {"answered_at": now} if outcome in {"confirmed", "recurred"} else {}
    Redrive.objects.create(
        id=uuid.uuid4(),
        poison=poison,
        n=1,
        operation=operation.pk,
        item=counted(operation, poison, outcome),
        topic=poison.topic,
        outcome=outcome,
        epoch=1,
        claimed_at=now,
        **times,
        **answered,
    )


def numbers(page: str) -> list[int]:
    return [int(pk) for pk in re.findall(r'what"><a href="/operations/(\d+)"', page)]


def test_without_a_decision_it_says_how_one_is_made(anna: Client) -> None:
    page = get(anna, "/operations")

    assert "No operation yet" in page
    assert "choose Requeue or Drop" in page


def test_a_search_without_a_match_says_so_and_leads_back(anna: Client) -> None:
    page = get(anna, "/operations?q=topik%3Aorders&show=done")

    assert "No operation matches" in page
    assert "<code>topik:orders</code>" in page
    assert '<a class="button" href="/operations">Clear the search</a>' in page
    assert "choose Requeue or Drop" not in page


def test_an_empty_tab_leads_to_all_operations(anna: Client) -> None:
    page = get(anna, "/operations?show=needs-you")

    assert "No operation here" in page
    assert '<a class="button" href="/operations">See all operations</a>' in page
    assert "--data-urlencode show=needs-you" in page


def test_what_runs_comes_before_what_is_newer_and_done(
    anna: Client, now: datetime
) -> None:
    runs = decided(now - timedelta(hours=1), state="running", total=3)
    old = decided(now - timedelta(minutes=9))
    new = decided(now)
    decided(now, state="preview", confirmed_at=None)

    page = get(anna, "/operations")

    assert numbers(page) == [runs.pk, new.pk, old.pk]
    assert "<title>(1) Operations" in page
    assert '<progress max="3" value="0"' in page


@pytest.mark.parametrize(
    ("outcomes", "pill", "heading"),
    [
        (("refused", "refused"), "Refused", "2 of 2 refused"),
        (("refused", "confirmed"), "Partly refused", "1 of 2 refused"),
        (("confirmed", "confirmed"), "Done", "2 of 2"),
    ],
)
def test_what_was_refused_does_not_read_as_done(
    anna: Client, now: datetime, outcomes: tuple[str, ...], pill: str, heading: str
) -> None:
    operation = decided(now, total=2)
    for poison, outcome in zip(poisons(now, 2), outcomes, strict=True):
        item(operation, poison, outcome, now)

    own, listed, overview = (
        get(anna, path) for path in (f"/operations/{operation.pk}", "/operations", "/")
    )

    assert f'class="grow">{heading}</h2>' in own
    assert f"<title>Requeue: {pill.lower()}" in own
    assert all(f"</span>{pill}</span>" in page for page in (own, listed, overview))
    assert ("</span>Done</span>" in own + listed + overview) is (pill == "Done")
    assert (f"{outcomes.count('refused')} refused ·" in overview) is (pill != "Done")


@pytest.mark.parametrize(
    ("outcomes", "pill", "colour"),
    [
        (("recurred", "recurred"), "Done, 2 came back", "danger"),
        (("confirmed", "recurred"), "Done, 1 came back", "warn"),
        (("refused", "recurred"), "Partly refused, 1 came back", "warn"),
    ],
)
def test_an_operation_whose_messages_came_back_is_not_green(
    anna: Client, now: datetime, outcomes: tuple[str, ...], pill: str, colour: str
) -> None:
    operation = decided(now, total=2)
    for poison, outcome in zip(poisons(now, 2), outcomes, strict=True):
        item(operation, poison, outcome, now)

    pages = [get(anna, path) for path in (f"/operations/{operation.pk}", "/operations")]

    pattern = rf'<span class="pill {colour}"><span aria-hidden="true">.</span>{pill}<'
    assert all(re.search(pattern, page) for page in (*pages, get(anna, "/")))
    assert f"<title>Requeue: {pill.lower()}" in pages[0]


def test_an_operation_is_named_by_what_it_did_and_not_by_what_was_selected(
    anna: Client, now: datetime
) -> None:
    first, *others = poisons(now, 5)
    operation = decided(now, verb="drop", reason="old", total=5)
    counted(operation, first, "dropped")
    skipped(operation, *others)

    own, listed, overview = (
        get(anna, path) for path in (f"/operations/{operation.pk}", "/operations", "/")
    )

    assert f"Operation {operation.pk}: dropped 1 message\n" in own.replace("<", "\n<")
    assert 'class="grow">1 of 1 · 4 skipped</h2>' in own
    assert all(">Dropped 1 message</a>" in page for page in (listed, overview))
    assert "5 messages" not in own + listed + overview


def test_skipped_items_do_not_count_as_progress(anna: Client, now: datetime) -> None:
    first, second, *others = poisons(now, 5)
    operation = decided(now, state="running", total=5)
    item(operation, first, "sent", now)
    waiting(operation, second)
    skipped(operation, *others)

    pages = [
        get(anna, path) for path in (f"/operations/{operation.pk}", "/operations", "/")
    ]

    assert all('<progress max="2" value="1"' in page for page in pages)
    assert "requeue 2 messages" in pages[0]
    assert all("Requeue 2 messages</a>" in page for page in pages[1:])


def test_an_operation_that_only_skipped_says_so(anna: Client, now: datetime) -> None:
    operation = decided(now, total=2)
    skipped(operation, *poisons(now, 2))

    page = get(anna, "/operations")

    assert "</span>Done, all skipped</span>" in page
    assert "Requeued 0 messages" in page


def test_a_give_back_names_the_queue_and_what_was_captured_again(
    anna: Client, now: datetime
) -> None:
    first, second = poisons(now, 2)
    operation = decided(now, verb="give_back", total=2, target_topic=first.topic)
    item(operation, first, "moved", now)
    item(operation, second, "recurred", now)
    Redrive.objects.update(queue="orders-dead-then")

    own, listed = (
        get(anna, path) for path in (f"/operations/{operation.pk}", "/operations")
    )

    assert "<dt>Given back to</dt><dd><code>orders-dead-then</code>" in own
    assert "Sent to" not in own
    assert "</span>Done, 1 captured again</span>" in own
    assert "→ the dead-letter queue of orders" in listed
    for page in (own, listed):
        assert "Gave back 2 messages" in page.replace("gave", "Gave")
        assert ("</span>Given back</span>" in page, "Came back" in page) == (
            True,
            False,
        )


def skipped(operation: Operation, *others: Poison) -> None:
    for poison in others:
        SkippedItem.objects.create(
            operation=operation,
            number=counted(operation, poison, "skipped"),
            reason="held elsewhere",
        )


def test_an_operation_with_only_refused_and_skipped_items_is_refused(
    anna: Client, now: datetime
) -> None:
    first, second = poisons(now, 2)
    operation = decided(now, total=2)
    item(operation, first, "refused", now)
    skipped(operation, second)

    page = get(anna, "/operations")

    assert "</span>Refused</span>" in page
    assert "Partly refused" not in page


def test_while_it_runs_it_says_so_and_what_was_refused_so_far(
    anna: Client, now: datetime
) -> None:
    first, second = poisons(now, 2)
    operation = decided(now, total=2, state="running")
    item(operation, first, "refused", now)
    waiting(operation, second)

    page = get(anna, f"/operations/{operation.pk}")

    assert "</span>Running</span>" in page
    assert "1 of 2 · 1 refused" in page


def test_a_row_tells_who_what_why_and_what_became_of_it(
    anna: Client, now: datetime
) -> None:
    first, second, third = poisons(now, 3)
    operation = decided(now, total=3, reason="fixed in 2.1")
    item(operation, first, "confirmed", now)
    item(operation, second, "recurred", now)
    skipped(operation, third)

    page = get(anna, "/operations")
    (row,) = triage_operations.find(None, EVERYONE).rows

    assert row.nonzero_counts == [
        ("confirmed", 1),
        ("recurred", 1),
        ("skipped", 1),
    ]
    facts = (
        "Requeued 2 messages",
        "is:open topic:orders",
        "“fixed in 2.1”",
        "user:anna",
    )
    assert [part for part in facts if part not in page] == []


@pytest.mark.parametrize("verb", Verb)
def test_each_verb_has_a_word_on_every_page_that_tells_it(
    anna: Client, now: datetime, verb: Verb
) -> None:
    kind = next(kind for kind, verbs in VERBS.items() if verb in verbs)
    operation = decided(
        now,
        kind=kind.value,
        layout=LAYOUT_OF[kind],
        verb=verb.value,
        reason="mended",
        total=3,
    )

    pages = [
        get(anna, path) for path in ("/", "/operations", f"/operations/{operation.pk}")
    ]

    assert all(PAST_VERBS[verb].lower() in page.lower() for page in pages)


def test_the_pages_hold_every_operation_once_and_what_runs_only_on_the_first(
    anna: Client, now: datetime
) -> None:
    runs = decided(now, state="queued")
    finished = [
        decided(now - timedelta(seconds=number)) for number in range(PAGE_SIZE + 5)
    ]

    first = get(anna, "/operations")
    following = re.search(r'rel="next" href="([^"]+)"', first)
    assert following
    second = get(anna, f"/operations{following[1]}")

    assert numbers(first)[0] == runs.pk
    assert numbers(first)[1:] + numbers(second) == [each.pk for each in finished]


def test_a_list_counts_a_million_items_as_it_counts_ten(
    anna: Client, now: datetime
) -> None:
    huge = decided(now, total=1_000_000)
    ItemWindow.objects.bulk_create(
        ItemWindow(operation=huge.pk, first=first, items=500, sent=400, refused=100)
        for first in range(0, 1_000_000, 500)
    )

    (row,) = triage_operations.find(None, EVERYONE).rows

    assert row.nonzero_counts == [("sent", 800_000), ("refused", 200_000)]
    assert "1,000,000 of 1,000,000" in get(anna, "/operations")


def test_decisions_over_other_topics_are_not_there(now: datetime) -> None:
    ours = decided(now, topics=["orders.eu"], state="running")
    theirs = decided(now, topics=["orders.eu", "orders.us"])
    everyones = decided(now)

    rows = triage_operations.find(None, EU).rows

    assert [row.operation.pk for row in rows] == [ours.pk]
    assert operation_progress.progress(ours.pk, EU, now=now).operation == ours
    for other in (theirs, everyones):
        with pytest.raises(Absent):
            operation_progress.progress(other.pk, EU, now=now)


def test_a_viewer_may_open_the_list(sign_in: SignIn, now: datetime) -> None:
    operation = decided(now)

    assert numbers(get(sign_in(Role.VIEWER), "/operations")) == [operation.pk]


def test_an_invalid_cursor_is_refused(anna: Client) -> None:
    assert "no such place" in get(anna, "/operations?cursor=newer.1", 422)


def test_no_text_of_a_decision_breaks_the_list(anna: Client, now: datetime) -> None:
    hostile = "</td><script>alert(1)</script>\u202e"
    decided(now, query=hostile, reason=hostile, actor=hostile)

    page = get(anna, "/operations")

    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_many_operations_are_counted_at_once(
    anna: Client, now: datetime, django_assert_max_num_queries: object
) -> None:
    for poison in poisons(now, 40):
        item(decided(now, total=1), poison, "sent", now)

    with django_assert_max_num_queries(8):  # type: ignore[operator]
        page = get(anna, "/operations")

    assert page.count("</span>Sent</span> 1") == 40


def test_a_poll_gets_the_rows_alone(anna: Client, now: datetime) -> None:
    operation = decided(now)

    part = anna.get("/operations", headers={"hx-request": "true"}).content.decode()

    assert "<html" not in part
    assert numbers(part) == [operation.pk]
