"""A problem's page: what fails and where, then when, then its open messages."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.audit.models import Entry
from apps.dashboard.selectors import problem_message_comparison, problems
from apps.poison.models import Poison, Problem
from apps.team.rights import Role
from apps.triage.models import Operation
from tests.failure_report_builders import drop, poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get
from tests.integration.dashboard.test_counts_that_time_out import HINT, slow

pytestmark = pytest.mark.django_db

HOSTILE = "</a><script>alert(1)</script>\u202e"


def raised(message: str, kind: str = "ValueError") -> dict[str, str]:
    return {"type": kind, "message": message, "traceback": ""}


def rows(page: str) -> list[str]:
    """Return the text of each row of messages."""
    table = page[page.index('id="messages"') :]
    cells = re.findall(r'<tr data-key="\d+">(.*?)</tr>', table, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in cells]


def names(page: str) -> list[str]:
    return re.findall(r'<td class="what"><a href="/messages/\d+">([^<]*)</a>', page)


def heads(page: str) -> list[str]:
    table = page[page.index('id="messages"') :]
    cells = re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', table)
    return [head.strip() for head in cells]


def revealed() -> QuerySet[Entry]:
    return Entry.objects.filter(action="body.revealed")


def test_the_stack_and_the_breakdown_come_before_trend_and_messages(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1, host="pay-1", handler_version="2.4.1")

    page = get(anna, f"/problems/{poison.problem_id}")

    parts = ["summary", "sample", "breakdown", "trend", "messages"]
    places = [page.index(f'id="{part}"') for part in parts]
    assert places == sorted(places)
    assert places[-1] < page.index("Why one problem?")


def test_the_page_tells_the_version_and_host_of_the_first_failure(
    anna: Client, now: datetime
) -> None:
    poisons(now - timedelta(hours=2), 1, host="pay-1", handler_version="2.4.0")
    (poison,) = poisons(now, 1, host="pay-2", handler_version="2.4.1")

    page = get(anna, f"/problems/{poison.problem_id}")

    first = page[page.index("First failed") :].partition("</div>")[0]
    assert "2h ago" in first
    assert "<code>2.4.0</code> on <code>pay-1</code>" in first


def newest(page: str) -> int:
    """Return the message that the page calls the newest."""
    (message,) = re.findall(r"Message (\d+), the newest", page)
    return int(message)


def test_the_newest_failure_is_looked_for_in_the_days_that_can_have_it(
    anna: Client, now: datetime
) -> None:
    poisons(now - timedelta(days=3), 1)
    (poison,) = poisons(now, 1)

    with CaptureQueriesContext(connection) as queries:
        page = get(anna, f"/problems/{poison.problem_id}")

    (reading,) = (
        query["sql"] for query in queries if '"traceback_shown"' in query["sql"]
    )
    yesterday = (now - timedelta(days=1)).date()
    assert f'"poison_failure"."day" >= \'{yesterday}\'' in reading
    assert newest(page) == poison.pk


def test_a_problem_without_its_last_failures_shows_the_newest_that_is_left(
    anna: Client, now: datetime
) -> None:
    newest_left, _ = (
        *poisons(now - timedelta(days=3), 1),
        *poisons(now, 1, failed_at=(now - timedelta(days=5)).isoformat()),
    )

    for later in (timedelta(0), timedelta(days=9)):
        Problem.objects.update(last_seen=now + later)
        page = get(anna, f"/problems/{newest_left.problem_id}")
        assert newest(page) == newest_left.pk


def test_a_breakdown_is_of_all_failures_not_of_its_commonest_values(
    now: datetime,
) -> None:
    for host in range(8):
        poisons(now, 1 + (host == 0), host=f"host-{host}")

    tops = problems._breakdown(Problem.objects.get().pk).tops

    hosts = next(top for top in tops if top.title == "Hosts")
    assert hosts.values[0] == ("host-0", 2)
    assert (len(hosts.values), hosts.whole) == (problems.TOP_VALUES, 9)
    assert [top.title for top in tops] == ["Hosts", "Consumers", "Causes"]


def test_the_trend_prints_its_sum_and_its_peak(anna: Client, now: datetime) -> None:
    poisons(now - timedelta(hours=5), 1)
    (poison, *_) = poisons(now, 2)

    page = get(anna, f"/problems/{poison.problem_id}")

    assert "3 failures in the last 24 hours, at most 2 in an hour" in page


def test_open_messages_are_listed_and_the_other_states_are_links_with_counts(
    anna: Client, now: datetime
) -> None:
    messages = poisons(now, 3)
    drop(now, messages[0])
    path = f"/problems/{messages[0].problem_id}"

    page = get(anna, path)
    dropped = get(anna, f"{path}?q=is:dropped")
    every = get(anna, f"{path}?q=")

    assert len(rows(page)) == 2
    states = re.findall(
        r'<a href="([^"]+)"[^>]*>(\w+) <span class="count">(\d+)<', page
    )
    assert states == [
        ("?q=is%3Aopen", "Open", "2"),
        ("?q=is%3Asent", "Sent", "0"),
        ("?q=is%3Ahandled", "Handled", "0"),
        ("?q=is%3Adropped", "Dropped", "1"),
        ("?q=", "All", "3"),
    ]
    assert (len(rows(dropped)), len(rows(every))) == (1, 3)
    assert ("State" in heads(page), "State" in heads(every)) == (False, True)


def test_a_state_without_messages_says_so(anna: Client, now: datetime) -> None:
    (poison,) = poisons(now, 1)

    page = get(anna, f"/problems/{poison.problem_id}?q=is:sent")

    assert "None of this problem&#x27;s messages matches" in page or (
        "None of this problem's messages matches" in page
    )


def test_an_invalid_search_is_refused_above_the_open_messages(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)

    page = get(anna, f"/problems/{poison.problem_id}?q=colour:red", status=422)

    assert "there is no colour:" in page
    assert len(rows(page)) == 1


# --- what tells the messages apart


def test_rows_show_message_ids_and_only_the_words_that_differ(
    anna: Client, now: datetime
) -> None:
    for number in (41, 42):
        poisons(
            now + timedelta(seconds=number),
            1,
            message_id=f"ord-{number}",
            exception=raised(f"order {number}000 failed 3 times at pay-1"),
        )

    page = get(anna, f"/problems/{Problem.objects.get().pk}")

    assert names(page) == ["ord-42", "ord-41"]
    differing = re.findall(r'<td class="differs[^>]*>([^<]*)</td>', page)
    assert differing == ["42000", "41000"]
    assert "orders" not in " ".join(rows(page))
    assert "Topic" not in heads(page)


def test_messages_whose_errors_are_alike_have_no_column_of_differences(
    anna: Client, now: datetime
) -> None:
    (poison, _) = poisons(now, 2)

    page = get(anna, f"/problems/{poison.problem_id}")

    assert "What differs in the error" not in page


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        ([], []),
        (["order 7 failed"], [()]),
        (["a 1 of 9", "a 2 of 9"], [("1",), ("2",)]),
        # A list of numbers is one placeholder, whatever its length.
        (["ids 1, 2, 3", "ids 1, 4"], [("2", "3"), ("4",)]),
        (["at 'x y'", "at 'z w'"], [("'x y'",), ("'z w'",)]),
        (["no value", "no value"], [(), ()]),
    ],
)
def test_values_that_all_messages_share_are_left_out(
    texts: list[str], values: list[tuple[str, ...]]
) -> None:
    assert problem_message_comparison.varying_values(texts) == values


def test_values_are_bounded_in_number_and_length() -> None:
    long = [f"{letter} " + f"'{letter} {'y' * 200}' " * 40 for letter in "ab"]

    values = problem_message_comparison.varying_values(long)

    assert [len(each) for each in values] == [
        problem_message_comparison.MOST_VALUES
    ] * 2
    assert max(map(len, values[0])) == problem_message_comparison.LONGEST_VALUE


def test_a_message_id_in_a_header_names_the_row_for_everyone_who_lists_messages(
    sign_in: SignIn, now: datetime
) -> None:
    headers = [("amqp.message_id", b"m-5218"), ("tenant", b"acme")]
    (poison,) = poisons(now, 1, headers=headers)

    page = get(sign_in(Role.VIEWER), f"/problems/{poison.problem_id}")

    assert names(page) == ["m-5218"]
    assert "acme" not in page


def test_a_message_without_an_id_is_named_by_its_bookmark(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1, bookmark="1795394930517-0")

    assert names(get(anna, f"/problems/{poison.problem_id}")) == ["1795394930517-0"]


def test_the_type_is_shown_to_everyone_where_it_differs(
    sign_in: SignIn, now: datetime
) -> None:
    for kind in ("Charged", "Refunded"):
        poisons(now, 1, headers=[("Type", kind.encode()), ("v", b"1")])
    viewer, path = sign_in(Role.VIEWER), f"/problems/{Problem.objects.get().pk}"

    page = get(viewer, path)
    Poison.objects.order_by("pk")[:1].get().bodies.update(
        headers=[b"type", b"Refunded"]
    )
    alike = get(viewer, path)

    assert "type" in heads(page)
    assert sorted(row.split()[4] for row in rows(page)) == ["Charged", "Refunded"]
    assert "type" not in heads(alike)


def test_a_chosen_header_is_shown_once_its_reader_is_on_record(
    anna: Client, sign_in: SignIn, now: datetime
) -> None:
    (poison,) = poisons(now, 1, headers=[("Tenant", b"acme")])
    path = f"/problems/{poison.problem_id}"

    plain = get(anna, path)
    before = get(anna, f"{path}?header=tenant")
    assert not revealed().exists()
    after = anna.post(action(before), follow=True).content.decode()
    pages = [get(anna, f"{path}?header=tenant") for _ in range(3)]
    other = get(sign_in(Role.VIEWER, reads_bodies=True), f"{path}?header=tenant")

    assert "acme" not in plain + before + other
    assert '<option value="Tenant">Tenant</option>' in plain
    assert "••••••" in rows(before)[0]
    assert all("acme" in page for page in (after, *pages))
    assert "Show its values" not in after
    # One entry: the page refreshes itself every few seconds.
    entry = revealed().get()
    assert entry.actor == "user:operatorTrue"
    assert entry.subject == f"problem:{poison.problem_id}"
    assert entry.detail == {"how": "header in a list", "header": "tenant"}


def action(page: str) -> str:
    """Return the address of the button *Show its values*."""
    (address,) = re.findall(r'action="(/problems/\d+/header\?[^"]*)"', page)
    return str(address).replace("&amp;", "&")


def test_showing_a_header_comes_back_to_the_same_list(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1, headers=[("tenant", b"acme")])
    path = f"/problems/{poison.problem_id}?from=overview&q=is%3Aopen&header=tenant"

    address = action(get(anna, path))
    # A person who had to sign in again in between arrives with a GET.
    places = [call(address)["Location"] for call in (anna.get, anna.post)]

    assert places == [path, path]
    assert "acme" in get(anna, path)


def test_a_header_is_shown_for_an_hour(
    anna: Client, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (poison,) = poisons(now, 1, headers=[("tenant", b"acme")])
    path = f"/problems/{poison.problem_id}?header=tenant"
    again = action(get(anna, path))
    anna.post(again)
    later = now + timedelta(minutes=61)
    monkeypatch.setattr("apps.core.clock.now", lambda: later)

    after = get(anna, path)
    anna.post(again)

    assert "acme" not in after
    assert "acme" in get(anna, path)
    assert revealed().count() == 2


@pytest.mark.parametrize("header", ["type", "authorization", "nowhere", "%00", ""])
def test_what_cannot_be_revealed_leaves_no_entry(
    anna: Client, now: datetime, header: str
) -> None:
    headers = [("type", b"Charged"), ("Authorization", b"Bearer hunter2")]
    (poison,) = poisons(now, 1, headers=headers)
    path = f"/problems/{poison.problem_id}"

    page = anna.post(f"{path}/header?header={header}", follow=True)

    assert page.status_code == 200
    assert "hunter2" not in page.content.decode()
    assert not revealed().exists()


def test_a_chosen_header_stays_masked_without_the_right_to_read_bodies(
    sign_in: SignIn, now: datetime
) -> None:
    (poison,) = poisons(now, 1, headers=[("tenant", b"acme")])

    page = get(sign_in(Role.ADMIN), f"/problems/{poison.problem_id}?header=tenant")

    assert "acme" not in page
    assert "••••••" in rows(page)[0]
    assert "bodies:read" in page
    assert "Show its values" not in page
    assert not revealed().exists()


def test_a_secret_header_stays_masked_for_everyone(anna: Client, now: datetime) -> None:
    (poison,) = poisons(now, 1, headers=[("Authorization", b"Bearer hunter2")])

    page = get(anna, f"/problems/{poison.problem_id}?header=authorization")

    assert "hunter2" not in page
    assert "its name says that it is a secret" in page


@pytest.mark.parametrize("header", ["nowhere", "%00", "%ed%a0%80", "x" * 5000])
def test_a_header_that_no_message_has_is_answered_with_a_sentence(
    anna: Client, now: datetime, header: str
) -> None:
    (poison,) = poisons(now, 1, headers=[("tenant", b"acme")])

    page = get(anna, f"/problems/{poison.problem_id}?header={header}")

    assert "No message on this page has the header" in page


def test_message_ids_and_types_are_not_masked_on_the_page_of_a_message(
    sign_in: SignIn, now: datetime
) -> None:
    headers = [
        ("amqp.message_id", b"m-1"),
        ("Content-Type", b"text/x"),
        ("a", b"s3-cret"),
    ]
    (poison,) = poisons(now, 1, headers=headers)

    page = get(sign_in(Role.VIEWER), f"/messages/{poison.pk}")

    assert "m-1" in page
    assert "text/x" in page
    # With a sign that no random token of the page has.
    assert "s3-cret" not in page


def test_no_text_of_a_message_breaks_the_page(anna: Client, now: datetime) -> None:
    for number in range(2):
        poisons(
            now,
            1,
            message_id=f"{HOSTILE}\0{number}",
            exception=raised(f"\0{HOSTILE}'{HOSTILE} {number}' {'(' * 5000}", HOSTILE),
            headers=[
                (HOSTILE, b"\xff\x00"),
                ("type", HOSTILE.encode() + b"%d" % number),
                ("", b"nameless"),
            ],
            host=HOSTILE,
            handler_version=HOSTILE,
        )
    path = f"/problems/{Problem.objects.get().pk}"

    pages = [get(anna, path), get(anna, f"{path}?header={HOSTILE}&list=%22&from=x")]

    assert all("<script>alert" not in page for page in pages)
    assert all("\u202e" not in page for page in pages)
    assert all(len(rows(page)) == 2 for page in pages)


# --- the buttons of the header


@pytest.mark.django_db(transaction=True)
def test_the_header_requeues_all_open_messages_through_a_frozen_preview(
    anna: Client, now: datetime
) -> None:
    messages = poisons(now, 5)
    drop(now, messages[0])
    path = f"/problems/{messages[0].problem_id}"
    page = get(anna, path)
    head = page[page.index('id="acts-now"') :].partition("</form>")[0]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', head))
    fields.pop("csrfmiddlewaretoken")

    response = anna.post(
        "/operations/preview", fields | {"verb": "redrive"}, follow=True
    )
    poisons(now, 1)

    assert "Requeue 4 open…" in head
    assert "Requeue 4 messages?" in response.content.decode()
    operation = Operation.objects.get()
    assert (operation.query, operation.total) == (
        f"problem:{messages[0].problem_id} is:open",
        4,
    )
    assert fields["back"] == path


def test_open_messages_are_counted_however_many_there_are(
    anna: Client, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (poison, *_) = poisons(now, 5)
    monkeypatch.setattr("apps.dashboard.keyset_pagination.MOST_COUNTED", 3)

    page = get(anna, f"/problems/{poison.problem_id}")

    assert "Requeue 5 open…" in page


def test_the_buttons_are_disabled_with_the_reason_without_the_right(
    sign_in: SignIn, now: datetime
) -> None:
    (poison, _) = poisons(now, 2)

    page = get(sign_in(Role.VIEWER), f"/problems/{poison.problem_id}")

    head = page[page.index('id="acts-now"') :].partition("<dl")[0]
    assert head.count('aria-disabled="true"') == 2
    assert "Your role only reads." in head
    assert "Requeue 2 open…" in head
    assert "<form" not in head


def test_the_buttons_are_disabled_with_the_reason_where_nothing_is_open(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    drop(now, poison)

    page = get(anna, f"/problems/{poison.problem_id}")

    head = page[page.index('id="acts-now"') :].partition("<dl")[0]
    assert head.count('aria-disabled="true"') == 2
    assert "None of its messages is open." in head


def test_a_refresh_brings_the_buttons_with_their_number(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    path = f"/problems/{poison.problem_id}"
    poisons(now, 1)

    part = anna.get(path, headers={"hx-request": "true"}).content.decode()

    assert 'id="acts-now" hx-swap-oob="outerMorph"' in part
    assert "Requeue 2 open…" in part
    assert "Where it fails" not in part


# --- going on in the list


def test_neighbours_are_those_of_the_list_the_person_came_from(
    anna: Client, now: datetime
) -> None:
    ids = {}
    for age, topic in enumerate(("a", "b", "a", "b", "a")):
        messages = poisons(
            now - timedelta(minutes=age),
            1,
            exception=raised("", f"E{age}"),
            topic=topic,
        )
        ids[messages[0].problem_id] = age
    by_age = {age: pk for pk, age in ids.items()}
    listed = get(anna, "/problems?q=topic:a")
    (link,) = re.findall(rf'href="(/problems/{by_age[2]}[^"]*)"', listed)

    page = get(anna, link.replace("&amp;", "&"))

    links = re.findall(
        r'href="/problems/(\d+)([^"]*)"[^>]*>(?:<span[^>]*>.</span> )?(\w+ problem)',
        page,
    )
    assert links == [
        (str(by_age[0]), "?list=topic%3Aa", "Newer problem"),
        (str(by_age[4]), "?list=topic%3Aa", "Older problem"),
    ]
    assert 'href="/problems?q=topic%3Aa">Problems /' in page


def test_neighbours_from_the_overview_follow_its_order(
    anna: Client, now: datetime
) -> None:
    messages = [
        poisons(
            now - timedelta(minutes=number), number, exception=raised("", f"E{number}")
        )
        for number in (1, 2, 3)
    ]
    few, some, most = (each[0].problem_id for each in messages)

    page = get(anna, f"/problems/{some}?from=overview")
    drop(now, *messages[1])
    done = get(anna, f"/problems/{some}?from=overview")

    neighbour = re.compile(
        r'href="/problems/(\d+)\?from=overview" aria-keyshortcuts="(.)"'
    )
    assert neighbour.findall(page) == [(str(most), "["), (str(few), "]")]
    assert "Previous problem" in page
    assert 'href="/">Overview /' in page
    # With no open message left, the next problem is the first of the ranking.
    assert neighbour.findall(done) == [(str(most), "]")]


# --- speed


def test_the_page_asks_the_database_as_often_for_many_messages_as_for_one(
    anna: Client, now: datetime
) -> None:
    def opened(number: int) -> tuple[int, str]:
        for each in range(number):
            poisons(
                now,
                1,
                exception=raised(f"order {each}1 failed"),
                headers=[("type", b"%d" % each)],
            )
        with CaptureQueriesContext(connection) as queries:
            page = get(anna, f"/problems/{Problem.objects.get().pk}?header=type")
        return len(queries), page

    one, _ = opened(1)
    many, page = opened(30)

    assert one == many <= 60
    assert len(rows(page)) == 31


def test_counts_that_time_out_are_dashes(anna: Client, now: datetime) -> None:
    (poison,) = poisons(now, 1, headers=[("type", b"Charged")])

    with slow(lambda _: True):
        page = get(anna, f"/problems/{poison.problem_id}?from=overview")

    assert "Requeue all open…" in page
    assert page.count("Counting them took too long just now.") == 2
    assert page.count(f'<span class="count">{HINT}</span>') == 5
    assert len(rows(page)) == 1
