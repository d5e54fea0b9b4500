"""The pages of positions: list, detail, and moves without scripts."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.http import HttpResponse
from django.test import Client

from apps.audit.models import Entry
from apps.bookmarks import services as bookmarks
from apps.bookmarks.models import BookmarkPosition, Mark, Move
from apps.bookmarks.services import watermark_samples
from apps.brokers.adapter_contract import ConsumerPosition
from apps.brokers.models import Topic
from apps.core import clock
from apps.dashboard.selectors import consumer_positions
from apps.team.rights import Principal, Role
from tests.failure_report_builders import count_up, counter, poisons
from tests.integration.dashboard.conftest import SignIn
from tests.position_opening_and_settling import opened, settle, told_by_broker, update

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def get(client: Client, path: str, status: int = 200, /, **query: Any) -> str:
    response = client.get(f"{path}?{urlencode(query)}" if query else path)
    assert response.status_code == status, response.content
    return response.content.decode()


def reader(group: str, **changes: Any) -> ConsumerPosition:
    """Return a position that is two minutes behind, by its broker's numbers."""
    behind = {"seq": 17_000 << 20, "head_seq": 137_000 << 20, "lag": 40}
    return told_by_broker(group, **{**behind, **changes})


@pytest.fixture
def position(now: datetime) -> BookmarkPosition:
    """Return a position of an hour ago: 0 to 100 and 121 to 140 are settled."""
    epoch = opened(now - HOUR).epoch
    settle(now - HOUR, update(epoch, (0, 100), (121, 140), received=150))
    return BookmarkPosition.objects.get()


def look(
    client: Client, position: BookmarkPosition, **query: object
) -> tuple[str, str]:
    """Request the review of a move; return the page and its token."""
    page = get(client, f"/positions/{position.pk}/move", **query)
    token = re.search(r'name="token" value="([^"]+)"', page)
    return page, token[1] if token else ""


def confirm(
    client: Client, position: BookmarkPosition, token: str, **form: str
) -> HttpResponse:
    data = {"token": token, "reason": "a bad deploy", **form}
    return client.post(f"/positions/{position.pk}/move", data)  # type: ignore[return-value]


def test_the_list_has_every_kind_of_reader(
    anna: Client, orders: Topic, now: datetime
) -> None:
    bookmarks.observe(topic=orders, consumers=[reader("billing")], now=now)
    settle(now, update(opened(now).epoch, (0, 100), received=150))
    opened(now, client_name="idle")

    page = get(anna, "/positions")

    assert [word in page for word in ("billing-1 / 1", "idle / 1", "17-0")] == [
        True
    ] * 3
    assert "not committed" in page
    assert page.count("Behind") == 2
    assert page.count("Not yet") == 1


def test_a_row_tells_lag_in_messages_and_time_with_rate_and_eta(
    anna: Client, orders: Topic, operator: Principal, now: datetime
) -> None:
    bookmarks.observe(topic=orders, consumers=[reader("billing")], now=now)
    minute = now.replace(second=0, microsecond=0) - 2 * MINUTE
    counts = {"handled": 80, "failed": 15, "skipped": 5}
    count_up(now, counter(minute=minute.isoformat(), **counts))

    (row,) = consumer_positions.find(operator, now=now).rows
    page = get(anna, "/positions")

    assert (row.per_minute, row.behind, row.eta) == (10.0, 2 * MINUTE, 4 * MINUTE)
    assert "10/min" in page
    assert page.count("2\u00a0min") == 1
    assert page.count("4\u00a0min") == 1


def test_who_has_read_nothing_is_behind_by_no_time(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    nothing = reader("billing", seq=0, lag=None)
    bookmarks.observe(topic=orders, consumers=[nothing], now=now)

    (row,) = consumer_positions.find(operator, now=now).rows

    assert row.behind is None


def test_a_consumer_is_caught_up_when_it_has_settled_all_it_was_handed(
    operator: Principal, now: datetime
) -> None:
    epoch = opened(now).epoch
    settle(now, update(epoch, (0, 100), received=150, publisher="a"))
    settle(now, update(epoch, (0, 150), received=150, publisher="b"))
    topic = Topic.objects.get()
    consumer = reader("billing", seq=200, head_seq=200, lag=0, pending=0)
    bookmarks.observe(topic=topic, consumers=[consumer], now=now)
    settle(now, update(epoch, (0, 199)), update(epoch, (0, 200), publisher="c"))

    rows = consumer_positions.find(operator, now=now).rows

    states = {
        (row.position.source, row.mark.publisher): row.state for row in rows if row.mark
    }
    assert states == {
        ("sdk", ""): "behind",  # its broker says that the topic ends at 200
        ("sdk", "a"): "behind",
        ("sdk", "b"): "current",
        ("sdk", "c"): "current",
        ("broker", ""): "current",
    }


@pytest.mark.parametrize(
    ("clients", "lag", "pill"),
    [(0, 0, "No consumer"), (1, 0, "Caught up"), (0, 3, "Behind")],
)
def test_a_position_without_a_consumer_is_not_caught_up(
    anna: Client, orders: Topic, clients: int, lag: int, pill: str
) -> None:
    consumer = reader("billing", seq=200, lag=lag, pending=0, clients=clients)
    bookmarks.observe(topic=orders, consumers=[consumer], now=clock.now())

    for path in ("/positions", f"/topics/{orders.pk}"):
        page = anna.get(path).content.decode()
        assert f"</span>{pill}</span>" in page
        assert f"{clients} client" in page


def test_its_own_page_draws_it_with_the_poison_on_its_way(
    anna: Client, position: BookmarkPosition, now: datetime
) -> None:
    (on_its_way,) = poisons(now, 1, bookmark="110")
    poisons(now, 1, bookmark="nowhere")

    page = get(anna, f"/positions/{position.pk}")

    assert "settled up to 100, 1 run settled ahead, 1 open poison" in page
    assert page.count('class="poison"') == 1
    assert f'href="/messages/{on_its_way.pk}"' in page
    assert re.search(r"Resumes after</dt><dd[^>]*>100<", page)
    assert "121–140" in page  # noqa: RUF001 - a range
    assert "It has not been moved yet." in page
    assert f"/positions/{position.pk}/move" in page


def test_numbers_of_19_digits_are_drawn_and_shown_exactly(
    anna: Client, now: datetime
) -> None:
    publisher, seq = "13948331409633568391", 1465596069899000013
    epoch = opened(now).epoch
    report = update(epoch, (0, seq), (seq + 2, seq + 2), publisher=publisher)
    settle(now, report)
    poisons(now, 1, bookmark=f"{publisher}|{seq + 1}|")
    position = BookmarkPosition.objects.get()

    page = get(anna, f"/positions/{position.pk}")

    assert all(str(number) in page for number in (seq, seq + 1, seq + 2))
    places = [int(x) for x in re.findall(r'class="poison" d="M(\d+) ', page)]
    (watermark,) = re.findall(r'class="watermark" x1="(\d+)"', page)
    assert int(watermark) < places[0] < 1000


def test_what_a_broker_keeps_is_shown_and_not_moved(
    anna: Client, orders: Topic, now: datetime
) -> None:
    bookmarks.observe(topic=orders, consumers=[reader("billing")], now=now)
    number = BookmarkPosition.objects.get().pk

    page = get(anna, f"/positions/{number}")
    wizard = get(anna, f"/positions/{number}/move", 409)

    assert "Its broker keeps it: move it there." in page
    assert 'aria-disabled="true"' in page
    assert "Its broker keeps this position" in wizard


def test_the_consumers_of_a_queue_without_groups_are_named_all_the_same(
    anna: Client, orders: Topic, now: datetime
) -> None:
    bookmarks.observe(topic=orders, consumers=[reader("")], now=now)
    number = BookmarkPosition.objects.get().pk

    listed = get(anna, "/positions")
    page = get(anna, f"/positions/{number}")

    assert f'<a href="/positions/{number}">its consumers</a>' in listed
    assert "<title>Position of its consumers" in page


def test_a_move_is_chosen_looked_at_and_confirmed_by_forms_alone(
    anna: Client, position: BookmarkPosition, now: datetime
) -> None:
    poisons(now, 1, bookmark="50")
    wizard = get(anna, f"/positions/{position.pk}/move")
    mark = Mark.objects.get()

    page, token = look(anna, position, strategy="exact", **{f"seq-{mark.pk}": "40"})
    untouched = Mark.objects.get().processed
    done = confirm(anna, position, token)
    after = get(anna, done["Location"])

    assert all(f'value="{each}"' in wizard for each in ("start", "end", "shift"))
    assert "80 numbers replayed" in page
    assert "1 open poison" in page
    assert (untouched, done.status_code, Mark.objects.get().processed) == (100, 302, 40)
    assert "The position was moved" in after
    assert "100 → 40" in after
    assert Entry.objects.latest("seq").reason == "a bad deploy"


@pytest.mark.parametrize(
    ("query", "lands"),
    [
        ({"strategy": "start"}, -1),
        ({"strategy": "end"}, 150),
        ({"strategy": "shift", "by": "-30"}, 70),
        ({"strategy": "shift", "by": "+5"}, 105),
    ],
)
def test_each_strategy_of_the_wizard_lands_where_it_says(
    anna: Client, position: BookmarkPosition, query: dict[str, str], lands: int
) -> None:
    _, token = look(anna, position, **query)

    confirm(anna, position, token)

    assert Mark.objects.get().processed == lands


def test_a_time_is_read_in_its_zone(
    anna: Client, position: BookmarkPosition, now: datetime
) -> None:
    watermark_samples.take(now=now - HOUR)
    settle(now - HOUR, update(position.epoch, (101, 110)))
    watermark_samples.take(now=now - 3 * MINUTE)
    # Kathmandu is 5:45 ahead of UTC; the minute is a quarter to the other.
    local = now - HOUR / 2 + timedelta(hours=5, minutes=45)
    at = f"{local:%Y-%m-%dT%H:%M}"

    _, token = look(anna, position, strategy="time", at=at, zone="Asia/Kathmandu")
    too_late = get(
        anna, f"/positions/{position.pk}/move", 422, strategy="time", at=at, zone="UTC"
    )
    confirm(anna, position, token)

    assert Mark.objects.get().processed == 100
    assert "Give a time that is past" in too_late


def test_another_consumer_is_copied_and_the_earlier_place_restored(
    anna: Client, position: BookmarkPosition, now: datetime
) -> None:
    (other,) = opened(now, client_name="billing-2").positions
    settle(now, update(other.epoch, (0, 33), client_name="billing-2"))
    _, token = look(anna, position, strategy="copy", other=other.pk)
    confirm(anna, position, token)
    copied = Mark.objects.get(position=position).processed
    (link,) = re.findall(
        r'href="([^"]+)">Restore previous', get(anna, f"/positions/{position.pk}")
    )

    page = get(anna, link.replace("&amp;", "&"))
    token = re.findall(r'name="token" value="([^"]+)"', page)[0]
    confirm(anna, position, token)

    mark = Mark.objects.get(position=position)
    assert copied == 33
    assert (mark.processed, mark.ahead) == (100, ((121, 140),))


def test_a_holder_at_work_has_to_be_fenced_expressly(
    anna: Client, position: BookmarkPosition, now: datetime
) -> None:
    settle(now, update(position.epoch, (101, 101)))
    page, token = look(anna, position, strategy="shift", by="-50")

    refused = confirm(anna, position, token)
    again = re.findall(r'name="token" value="([^"]+)"', refused.content.decode())[0]
    untouched = Mark.objects.get().processed
    confirm(anna, position, again, fence="1")

    assert 'name="fence"' in page
    assert refused.status_code == 409
    assert "stop it first, or fence it" in refused.content.decode()
    assert "a bad deploy</textarea>" in refused.content.decode()
    assert (untouched, Mark.objects.get().processed) == (101, 51)


def test_a_move_is_reviewed_again_when_the_position_changed(
    anna: Client, position: BookmarkPosition, now: datetime
) -> None:
    _, forward = look(anna, position, strategy="shift", by="10")
    settle(now - HOUR, update(position.epoch, (101, 118)))

    refused = confirm(anna, position, forward)

    page = refused.content.decode()
    assert refused.status_code == 409
    assert "moved since you looked" in page
    assert ">118<" in page
    assert (Mark.objects.get().processed, Move.objects.count()) == (118, 0)


def test_a_move_is_done_as_reviewed_when_the_position_only_advanced(
    anna: Client, position: BookmarkPosition, now: datetime
) -> None:
    _, back = look(anna, position, strategy="shift", by="-50")
    settle(now - HOUR, update(position.epoch, (101, 118)))

    done = confirm(anna, position, back)

    assert (done.status_code, Mark.objects.get().processed) == (302, 50)


def test_a_review_is_valid_once_for_one_person_and_one_position(
    sign_in: SignIn, anna: Client, position: BookmarkPosition, now: datetime
) -> None:
    (other,) = opened(now, client_name="billing-2").positions
    root = sign_in(Role.ADMIN)
    _, token = look(anna, position, strategy="start")

    elsewhere = confirm(anna, other, token)
    not_theirs = confirm(root, position, token)
    forged = confirm(anna, position, token[:-1])
    first = confirm(anna, position, token)
    twice = confirm(anna, position, token)

    answers = [elsewhere, not_theirs, forged, first, twice]
    assert [each.status_code for each in answers] == [409, 409, 409, 302, 409]
    assert Move.objects.count() == 1


def test_a_review_expires_after_fifteen_minutes(
    anna: Client, position: BookmarkPosition, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token = look(anna, position, strategy="start")
    later = time.time() + 15 * 60 + 1

    with monkeypatch.context() as patch:
        patch.setattr("django.core.signing.time.time", lambda: later)
        refused = confirm(anna, position, token)

    assert refused.status_code == 409
    assert "has expired, or belongs to another person" in refused.content.decode()
    assert not Move.objects.exists()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"strategy": "sideways"}, "Choose where to move it"),
        ({"strategy": "exact"}, "Give the number of at least one publisher"),
        ({"strategy": "shift", "by": "far"}, "Give a whole number"),
        ({"strategy": "shift", "by": "9" * 30}, "Give a whole number"),
        ({"strategy": "shift", "by": "0"}, "Give a number other than 0"),
        ({"strategy": "copy", "other": "77777"}, "Choose another consumer"),
        ({"strategy": "time", "at": "soon"}, "Give a day and a time"),
        ({"strategy": "time", "at": "2026-01-01T00:00"}, "No position is recorded for"),
        ({"strategy": "time", "at": "2026-01-01T00:00", "zone": "../x"}, "Name a zone"),
        ({"strategy": "restore", "move": "77777"}, "This position has no such move"),
    ],
)
def test_an_invalid_move_shows_the_error_beside_the_form(
    anna: Client, position: BookmarkPosition, query: dict[str, str], message: str
) -> None:
    page = get(anna, f"/positions/{position.pk}/move", 422, **query)

    assert message in page
    assert 'role="alert"' in page


def test_an_exact_place_is_a_number_or_a_bookmark_of_that_publisher(
    anna: Client, now: datetime
) -> None:
    epoch = opened(now - HOUR).epoch
    settle(now - HOUR, update(epoch, (0, 100), publisher="17"))
    position, mark = BookmarkPosition.objects.get(), Mark.objects.get()
    path, field = f"/positions/{position.pk}/move", f"seq-{mark.pk}"

    page = get(anna, path, strategy="exact", **{field: "17|60|"})
    foreign = get(anna, path, 422, strategy="exact", **{field: "18|60|"})

    assert ">60<" in page
    assert "a bookmark of this publisher" in foreign


def test_a_move_needs_a_reason(anna: Client, position: BookmarkPosition) -> None:
    _, token = look(anna, position, strategy="start")

    refused = confirm(anna, position, token, reason=" ")

    assert refused.status_code == 422
    assert 'id="reason-wrong"' in refused.content.decode()
    assert Mark.objects.get().processed == 100


def test_a_move_to_the_present_position_has_nothing_to_confirm(
    anna: Client, position: BookmarkPosition, now: datetime
) -> None:
    mark = Mark.objects.get()
    settle(now - HOUR, update(position.epoch, (101, 120)))

    page, token = look(anna, position, strategy="exact", **{f"seq-{mark.pk}": "140"})

    assert "There is nothing to move." in page
    assert token == ""


def test_who_only_reads_sees_why_and_moves_nothing(
    sign_in: SignIn, position: BookmarkPosition
) -> None:
    viewer = sign_in(Role.VIEWER)

    page = get(viewer, f"/positions/{position.pk}")

    assert 'aria-disabled="true"' in page
    assert "Your role only reads." in page
    assert f"/positions/{position.pk}/move" not in page.replace(
        f"/api/v1/positions/{position.pk}/move", ""
    )
    get(viewer, f"/positions/{position.pk}/move", 403)
    assert confirm(viewer, position, "x").status_code == 403


def test_an_unknown_position_is_not_found(anna: Client) -> None:
    get(anna, "/positions/77777", 404)
    get(anna, "/positions/77777/move", 404)


def test_names_of_consumers_cannot_break_a_page(anna: Client, now: datetime) -> None:
    nasty = '<script>alert(1)</script>"\u202e'
    names: dict[str, Any] = {"client_name": nasty, "sub_id": nasty, "topic": nasty}
    settle(now, update(opened(now, **names).epoch, (0, 5), publisher=nasty, **names))
    number = BookmarkPosition.objects.get().pk

    pages = [
        get(anna, path)
        for path in (
            "/positions",
            f"/positions/{number}",
            f"/positions/{number}/move",
            f"/positions/{number}/move?strategy=start",
        )
    ]

    assert not any("<script>alert" in page for page in pages)
    assert not any(re.search(r"\sstyle=|<style|\son\w+=", page) for page in pages)
