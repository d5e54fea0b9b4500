"""Pages of messages, problems, positions and the trail: rights, search, safety."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from html import unescape

import pytest
from django.db import OperationalError
from django.test import Client, RequestFactory

from apps.audit.models import Entry
from apps.bookmarks import services as bookmarks
from apps.brokers.models import Topic
from apps.capture.models import HeldDeadLetter
from apps.dashboard.views import django_error_handlers
from apps.poison.models import Poison
from apps.poison.states import PoisonState
from apps.team.rights import Role
from tests.failure_report_builders import capture, drop, failure, poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get
from tests.position_opening_and_settling import told_by_broker

pytestmark = pytest.mark.django_db

PAGES = (
    *("/", "/problems", "/messages", "/topics", "/positions", "/operations"),
    *("/skips", "/skips/new", "/audit", "/help", "/endpoints", "/deliveries"),
    *("/people", "/people/new", "/keys", "/keys/new", "/account"),
)
HOSTILE_BODIES = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"null",
    b"1e400",
    b"[" * 1000 + b"]" * 1000,
    b"</script><script>alert(1)</script>",
    "\u202e right to left \u2066".encode(),
    b'{"id": null, "n": 12345678901234567890123}',
    b"x" * 5_000_000,
)
HOSTILE_TEXT = "</td><script>alert(1)</script>\u202e\x00\x1b[31m\ud800" + "A" * 500


def keys(page: str) -> list[int]:
    return [int(key) for key in re.findall(r'<tr data-key="(\d+)"', page)]


def test_a_claimed_redrive_is_shown_as_sending_and_not_as_sent(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    Poison.objects.update(state=PoisonState.REDRIVING.value, redrives=1)

    own, listed = (get(anna, path) for path in (f"/messages/{poison.pk}", "/messages"))
    filtered = get(anna, "/messages?q=is:sent")
    Poison.objects.update(state=PoisonState.REDRIVEN.value, sent_at=now)
    after = get(anna, f"/messages/{poison.pk}")

    for page in (own, listed, filtered):
        assert "</span>Sending</span>" in page
        assert "</span>Sent</span>" not in page
    assert "</span>Sent</span>" in after


@pytest.mark.parametrize(
    "path", [*PAGES, "/messages/1", "/problems/1", "/topics/1", "/operations/1"]
)
def test_a_stranger_is_asked_to_sign_in(path: str) -> None:
    response = Client().get(path)

    assert response.status_code == 302
    assert response["Location"] == f"/sign-in?next={path}"


def test_the_sign_in_leads_to_where_one_was_going(sign_in: SignIn) -> None:
    sign_in()
    form = {"username": "operatorFalse", "password": "correct horse", "next": "/audit"}

    response = Client().post("/sign-in", form)

    assert (response.status_code, response["Location"]) == (302, "/audit")


def test_a_wrong_password_is_told_without_saying_which_part_is_wrong(
    sign_in: SignIn,
) -> None:
    sign_in()

    page = Client().post("/sign-in", {"username": "operatorFalse", "password": "no"})

    assert "do not belong together" in page.content.decode()


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/", "No message yet"),
        ("/problems", "No problem yet"),
        ("/messages", "No message yet"),
        ("/topics", "No topic yet"),
        ("/positions", "No position yet"),
        ("/operations", "No operation yet"),
    ],
)
def test_an_empty_installation_says_what_will_fill_it(
    anna: Client, path: str, hint: str
) -> None:
    assert hint in get(anna, path)


def test_a_list_without_open_messages_is_all_clear(anna: Client, now: datetime) -> None:
    drop(now, *poisons(now, 1))

    assert "All clear" in get(anna, "/problems")


@pytest.mark.parametrize(
    ("path", "hint", "search"),
    [
        ("/problems?q=error:nowhere", "No problem matches", "error:nowhere"),
        ("/messages?q=error:nowhere", "No message matches", "error:nowhere"),
        ("/topics?name=nowhere", "No topic matches", "nowhere"),
        ("/audit?actor=nobody", "No entry matches", "actor nobody"),
    ],
)
def test_a_search_without_a_match_shows_the_search(
    anna: Client, now: datetime, path: str, hint: str, search: str
) -> None:
    poisons(now, 1)

    page = get(anna, path)

    assert hint in page
    assert f"<code>{search}</code>" in page
    assert "Clear the search" in page


def test_an_invalid_search_names_the_word_and_keeps_the_list(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1, topic="orders")
    poisons(now, 1, topic="other")
    before = "http://testserver/messages?q=topic:orders"

    response = anna.get("/messages?q=colour:red", headers={"referer": before})

    page = response.content.decode()
    assert response.status_code == 422
    assert "“colour:red”" in page
    assert keys(page) == [poison.pk]


@pytest.mark.parametrize("path", ["messages", "problems", "problems/{problem}"])
def test_nothing_of_the_list_below_an_invalid_search_can_be_selected(
    anna: Client, now: datetime, path: str
) -> None:
    (poison,) = poisons(now, 1, topic="orders")
    path = path.format(problem=poison.problem_id)

    valid = get(anna, f"/{path}?q=topic:orders")
    refused = anna.get(f"/{path}?q=colour:red")

    page = refused.content.decode()
    assert 'name="ids"' in valid
    assert "everything=1" in valid
    assert keys(page) == keys(valid)
    assert 'name="ids"' not in page
    assert "everything=1" not in page
    assert 'class="for-selection' not in page
    assert "Correct the search to select some of them." in page


def test_all_of_a_long_bookmark_is_copied(anna: Client, now: datetime) -> None:
    bookmark = "17<956>\t" * 100
    capture(now, failure(now, bookmark=bookmark))

    page = get(anna, f"/messages/{Poison.objects.get().pk}")

    (to_copy,) = re.findall(r'data-copy="([^"]*)"', page)
    assert json.loads(unescape(to_copy)) == bookmark


def test_the_pages_of_a_list_hold_every_message_once_in_both_directions(
    anna: Client, now: datetime
) -> None:
    messages = poisons(now, 120)
    expected = sorted((poison.pk for poison in messages), reverse=True)

    first = get(anna, "/messages")
    second = get(anna, link(first, "next"))
    third = get(anna, link(second, "next"))
    back = get(anna, link(get(anna, link(third, "prev")), "prev"))

    assert [*keys(first), *keys(second), *keys(third)] == expected
    assert keys(back) == keys(first)
    assert ['rel="prev"' in page for page in (first, second, back)] == [0, 1, 0]


def link(page: str, rel: str) -> str:
    match = re.search(rf'rel="{rel}" href="([^"]+)"', page)
    assert match, rel
    return "/messages" + match[1].replace("&amp;", "&")


def test_an_invalid_cursor_is_refused(anna: Client) -> None:
    assert "no such place" in get(anna, "/messages?cursor=%00", 422)


def test_the_life_of_a_problem_is_new_then_ongoing_then_quiet(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    new = get(anna, "/problems?q=")
    poison.problem.first_seen -= timedelta(days=2)
    poison.problem.save()
    ongoing = get(anna, "/problems?q=")
    drop(now, poison)
    quiet = get(anna, "/problems?q=")

    words = [
        re.findall(r"</span>(New|Ongoing|Quiet)</span>", p)
        for p in (new, ongoing, quiet)
    ]

    assert words == [["New"], ["Ongoing"], ["Quiet"]]


@pytest.mark.parametrize("body", HOSTILE_BODIES)
def test_no_body_breaks_a_page(anna: Client, now: datetime, body: bytes) -> None:
    (poison,) = poisons(now, 1, body=body, headers=[("a\x80", b"\xff\x00")])

    get(anna, "/messages")
    revealed = anna.post(f"/messages/{poison.pk}/reveal")
    download = anna.post(f"/messages/{poison.pk}/body")

    assert revealed.status_code == 200
    assert b"<script>alert" not in revealed.content
    assert b"".join(download.streaming_content) == body  # type: ignore[attr-defined]
    assert (
        download["Content-Disposition"]
        == f'attachment; filename="message-{poison.pk}.bin"'
    )
    assert download["Content-Type"] == "application/octet-stream"
    assert download["X-Content-Type-Options"] == "nosniff"


def test_no_text_of_a_message_breaks_a_page(anna: Client, now: datetime) -> None:
    exception = {
        "type": HOSTILE_TEXT,
        "message": HOSTILE_TEXT,
        "traceback": HOSTILE_TEXT,
    }
    (poison,) = poisons(
        now, 1, exception=exception, bookmark="\0" * 100_000, message_id=HOSTILE_TEXT
    )

    paths = ("/problems", f"/problems/{poison.problem_id}", f"/messages/{poison.pk}")
    pages = [get(anna, path) for path in (*paths, "/messages")]

    assert all("<script>alert" not in page for page in pages)
    assert all("\u202e" not in page for page in pages)


def test_header_values_come_with_the_body_and_secrets_never(
    anna: Client, now: datetime
) -> None:
    headers = [("trace", b"7f3a91c04be2"), ("Authorization", b"Bearer hunter2")]
    (poison,) = poisons(now, 1, headers=headers)

    before = get(anna, f"/messages/{poison.pk}")
    after = anna.post(f"/messages/{poison.pk}/reveal").content.decode()

    assert "trace" in before
    assert "7f3a91c04be2" not in before
    assert "7f3a91c04be2" in after
    assert "hunter2" not in after


def test_a_page_shows_the_first_headers_and_the_start_of_long_ones(
    anna: Client, now: datetime
) -> None:
    long = [("n" * 5_000, b"short"), ("long", b"v" * 1_024 + b"w" * 1_000)]
    headers = [*long, *((f"h{number:03}", b"x") for number in range(300))]
    (poison,) = poisons(now, 1, headers=headers)

    before = get(anna, f"/messages/{poison.pk}")
    after = anna.post(f"/messages/{poison.pk}/reveal").content.decode()

    for page in (before, after):
        assert "And 102 more headers, which a requeue sends as well." in page
        assert "(5,000 bytes)" in page
        assert "h197" in page
        assert "h198" not in page
        assert len(page) < 200_000
    assert "(2,024 bytes)" in after
    assert "v" * 16 in after
    assert "v" * 16 + "w" not in after


def test_showing_a_body_is_put_on_record(anna: Client, now: datetime) -> None:
    (poison,) = poisons(now, 1)

    page = anna.post(f"/messages/{poison.pk}/reveal").content.decode()

    entry = Entry.objects.get(action="body.revealed")
    assert (entry.subject, entry.actor) == (f"poison:{poison.pk}", "user:operatorTrue")
    assert "read the body of message" in page


@pytest.mark.parametrize("what", ["reveal", "body"])
def test_a_body_needs_a_right_of_its_own(
    sign_in: SignIn, now: datetime, what: str
) -> None:
    (poison,) = poisons(now, 1)
    admin = sign_in(Role.ADMIN)

    response = admin.post(f"/messages/{poison.pk}/{what}")

    assert response.status_code == 403
    assert "bodies:read" in response.content.decode()


@pytest.mark.parametrize(
    "path",
    [
        "/messages/99",
        "/problems/99",
        "/operations/99",
        "/topics/99",
        "/messages/99999999999999999999999999",
        "/nowhere",
    ],
)
def test_what_is_not_there_is_not_found(anna: Client, path: str) -> None:
    assert "There is nothing here" in get(anna, path, 404)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OperationalError("connection refused"), 503, "Postgres is away"),
        (ValueError("a bug"), 500, "Something broke on our side"),
    ],
)
def test_an_uncaught_error_shows_no_details(
    rf: RequestFactory, error: Exception, status: int, message: str
) -> None:
    try:
        raise error
    except type(error):
        response = django_error_handlers.server_error(rf.get("/problems"))

    page = response.content.decode()
    assert response.status_code == status
    assert message in page
    assert str(error) not in page


def test_a_viewer_sees_disabled_buttons_with_the_reason(
    sign_in: SignIn, now: datetime
) -> None:
    poisons(now, 1)

    page = get(sign_in(Role.VIEWER), "/messages")

    assert 'aria-disabled="true"' in page
    assert "Your role only reads." in page


def test_the_position_page_shows_consumers_lanes_and_held_letters(
    anna: Client, orders: Topic, now: datetime
) -> None:
    reader = told_by_broker(seq=17 << 20, head_seq=19 << 20)
    bookmarks.observe(topic=orders, consumers=[reader], now=now)
    HeldDeadLetter.objects.create(
        topic=orders, bookmark="9-9", reason="too large", size=10**9, seen_at=now
    )

    page = get(anna, "/positions")

    assert all(part in page for part in ("billing", "17-0", "Behind", "too large"))


def test_the_trail_is_filtered_by_what_is_asked(anna: Client, now: datetime) -> None:
    (poison,) = poisons(now, 1)
    anna.post(f"/messages/{poison.pk}/reveal")

    mine = get(
        anna, f"/audit?actor=user:operatorTrue&from={now:%Y-%m-%d}&to={now:%Y-%m-%d}"
    )
    none = get(anna, f"/audit?subject=poison:{poison.pk}&to=2020-01-01")

    assert mine.count("body.revealed</code>") == 1
    assert "No entry matches" in none


@pytest.mark.parametrize("query", ["from=soon", "action=guess", "actor=%00"])
def test_an_invalid_filter_shows_an_error(anna: Client, query: str) -> None:
    assert 'role="alert"' in get(anna, f"/audit?{query}", 422)


def test_no_day_of_the_calendar_breaks_the_filter(anna: Client) -> None:
    assert "<h1>" in get(anna, "/audit?from=0001-01-01&to=9999-12-31")


def test_every_form_that_acts_carries_its_own_token(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    paths = ("/problems", "/messages", f"/messages/{poison.pk}", "/audit", "/account")

    pages = "".join(get(anna, path) for path in paths)

    forms = re.findall(r'<form[^>]* method="post".*?</form>', pages, re.DOTALL)
    assert len(forms) > len(paths)
    assert [form for form in forms if "csrfmiddlewaretoken" not in form] == []


def test_the_chain_can_be_verified_from_its_page(anna: Client) -> None:
    page = anna.post("/audit").content.decode()

    assert "is whole" in page


def test_a_preference_is_kept_and_rendered_by_the_server(anna: Client) -> None:
    response = anna.post("/preferences", {"theme": "dark", "back": "/audit"})
    page = get(anna, "/problems")

    assert response["Location"] == "/audit"
    assert 'data-theme="dark"' in page


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example", "javascript:1"]
)
def test_nothing_leads_to_another_site(anna: Client, back: str) -> None:
    response = anna.post("/preferences", {"theme": "dark", "back": back})

    assert response["Location"] == "/messages"


def test_a_poll_gets_the_part_that_lives_and_the_badge(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)

    part = anna.get("/messages", headers={"hx-request": "true"}).content.decode()

    assert "<html" not in part
    assert keys(part) == [poison.pk]
    assert 'id="running" hx-swap-oob="true"' in part


def test_a_list_asks_the_database_as_often_for_many_rows_as_for_one(
    anna: Client, now: datetime, django_assert_max_num_queries: object
) -> None:
    for number in range(30):
        poisons(
            now, 1, exception={"type": f"E{number}", "message": "", "traceback": ""}
        )

    with django_assert_max_num_queries(24):  # type: ignore[operator]
        get(anna, "/problems")
    with django_assert_max_num_queries(16):  # type: ignore[operator]
        get(anna, "/messages")

    assert Poison.objects.count() == 30


def test_a_traceback_of_megabytes_is_cut_and_the_page_says_so(
    anna: Client, now: datetime
) -> None:
    endless = {"type": "ValueError", "message": "x", "traceback": "y" * 3_000_000}
    (poison,) = poisons(now, 1, exception=endless)

    page = anna.get(f"/messages/{poison.pk}")

    assert len(page.content) < 200_000
    assert b"this is their beginning" in page.content


def test_a_message_without_an_error_says_so(anna: Client, now: datetime) -> None:
    (unexplained,) = poisons(now, 1)
    (explained,) = poisons(now, 1, exception=None)
    pages = {
        poison: (
            anna.get(f"/messages/{poison.pk}").content.decode(),
            anna.get(f"/problems/{poison.problem_id}").content.decode(),
        )
        for poison in (unexplained, explained)
    }

    assert ["names an exception" in page for page in pages[unexplained]] == [
        False,
        False,
    ]
    assert ["names an exception" in page for page in pages[explained]] == [True, True]
