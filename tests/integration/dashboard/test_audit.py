"""The audit page: sentences, filters, downloads and checkpoints."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from datetime import datetime, timedelta
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from apps.audit import checkpointing, filters
from apps.audit import services as audit
from apps.audit.models import Entry, LastCheckpoint
from apps.audit.services import Action
from apps.bookmarks.models import BookmarkPosition
from apps.brokers.models import Broker, Topic
from apps.capture.models import Lane
from apps.core.actor import Actor
from apps.dashboard.presentation.audit_action_labels import GROUPS
from apps.dashboard.presentation.audit_entry_changes import Details
from apps.dashboard.presentation.audit_entry_sentences import SENTENCES, sentence
from apps.dashboard.selectors import audit_trail
from apps.poison.query_language import Query
from apps.reports.models import Run
from apps.team import services
from apps.team.models import User
from apps.team.rights import Principal, Role, Scope
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from tests import position_opening_and_settling, skip_builders_and_list_mirror
from tests.failure_report_builders import poisons
from tests.integration.dashboard.conftest import SignIn
from tests.triage_operation_runner import confirm, preview, run

pytestmark = pytest.mark.django_db

ANNA = Actor.user("anna")
ADMIN = Principal(actor=ANNA, scopes=frozenset(Scope))


@pytest.fixture(autouse=True)
def var(settings: Settings, tmp_path: Path) -> None:
    settings.POISONWEB_VAR = tmp_path


@pytest.fixture
def reader(sign_in: SignIn) -> Client:
    return sign_in()


def page_of(client: Client, query: str = "") -> str:
    response = client.get(f"/audit{query}")
    assert response.status_code == 200
    return response.content.decode()


def decide(now: datetime) -> int:
    return audit.record(
        action=Action.KEY_REVOKED, subject="api_key:ci", actor=ANNA, now=now
    )


def test_the_page_says_that_no_checkpoint_was_taken(reader: Client) -> None:
    assert "No checkpoint was taken yet" in page_of(reader)


def test_the_page_shows_the_last_checkpoint(reader: Client, now: datetime) -> None:
    seq = decide(now)
    checkpoint = checkpointing.take(now=now)
    assert checkpoint is not None

    covered = page_of(reader)
    decide(now)
    grown = page_of(reader)

    assert f"Last checkpoint: entry {seq}, hash <code" in covered
    assert f"{checkpoint.hash.hex()[:12]}…</code>" in covered
    assert "It covers every entry." in covered
    assert "1 newer entry is not covered yet." in grown
    assert 'role="alert"' not in covered + grown


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"signature": "forged"}, "is not signed with this installation"),
        ({"seq": 0}, "is not signed with this installation"),
        ({"contradicts": 3}, "The trail contradicts the checkpoint of entry 3"),
        ({"trouble": "the <b>URL"}, "The last checkpoint: the &lt;b&gt;URL."),
    ],
)
def test_the_page_warns_of_what_is_wrong_with_the_checkpoint(
    reader: Client, now: datetime, change: dict[str, object], sentence: str
) -> None:
    decide(now)
    checkpointing.take(now=now)
    LastCheckpoint.objects.update(**change)

    assert sentence in page_of(reader)


def test_the_page_warns_when_decisions_wait_for_a_checkpoint(
    reader: Client, now: datetime
) -> None:
    checkpointing.take(now=now - timedelta(minutes=6))
    quiet = page_of(reader)
    decide(now)

    assert "makes new ones" not in quiet
    assert "makes new ones" in page_of(reader)


def written(
    action: Action | str, subject: str, now: datetime, **changes: object
) -> int:
    """Add an audit entry; `changes` overrides its members."""
    values: dict[str, object] = {"actor": ANNA, "now": now, **changes}
    return audit.record(action=action, subject=subject, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "end"),
    [
        (
            {"by": "key:ci", "expires_at": "soon"},
            ", which the key ci had added until soon",
        ),
        (
            {"by": "system:capture", "expires_at": "0001-01-01T00:00:00+23:00"},
            ", which Poisonweb (capture) had added until 0001-01-01T00:00:00+23:00",
        ),
        ({"by": "user:bob"}, ", which bob had added until a person removes it"),
        ({"expires_at": "soon"}, ""),
        (["bob"], ""),
    ],
)
def test_an_unusual_entry_of_a_renewed_skip_has_a_sentence(
    now: datetime, before: object, end: str
) -> None:
    detail = {"topic": "orders", "before": before}
    number = written(Action.SKIP_RENEWED, "skip:5", now, detail=detail)

    assert (
        sentence(Entry.objects.get(seq=number))
        == f"anna renewed skip 5 of the topic orders{end}"
    )


def test_every_action_has_a_sentence_of_its_own() -> None:
    wordless = [action for action in Action if action.value in bare_sentence(action)]

    assert wordless == []
    assert SENTENCES.keys() >= {*Action}


def bare_sentence(action: Action) -> str:
    bare = Entry(seq=1, record="", hash=b"")
    said: dict[str, object] = {
        "action": action.value,
        "actor": "user:anna",
        "subject": "topic:orders",
        "detail": {},
        "reason": "",
    }
    vars(bare).update(said)
    return sentence(bare)


def test_the_filter_has_each_action_in_words_once() -> None:
    listed = [action for group in GROUPS.values() for action in group]

    assert sorted(listed) == sorted(Action)


@pytest.mark.parametrize(
    "detail",
    [
        None,
        [],
        7,
        {"before": 7, "after": [], "counts": [], "topics": 9, "will_act": "x"},
        {"changed": {"a": [1]}, "entries": None, "query": 7, "counts": {"sent": {}}},
        {"max_dequeue_count": [1], "x" * 1000: ["y" * 100_000, {"z": [1]}, 3]},
    ],
)
def test_no_detail_breaks_a_sentence_or_makes_it_long(detail: object) -> None:
    for action in Action:
        entry = Entry(seq=1, record="", hash=b"")
        said = {"action": action.value, "actor": "?" * 1000, "subject": "y" * 1000}
        vars(entry).update(said, detail=detail, reason="z" * 10_000)

        assert len(sentence(entry)) < 2_000, action
        details = Details.of(entry)
        assert len(str(details)) < 10_000, action


@pytest.mark.parametrize(
    ("action", "subject", "changes", "said"),
    [
        (
            Action.OPERATION_CONFIRMED,
            "operation:84",
            {
                "detail": {
                    "verb": "redrive",
                    "query": "is:open problem:27",
                    "total": 520,
                    "will_act": 510,
                },
                "reason": "fixed in 4.2",
            },
            "anna decided to requeue 510 messages of problem 27: “fixed in 4.2”",
        ),
        (
            Action.OPERATION_CONFIRMED,
            "operation:84",
            {
                "detail": {
                    "verb": "redrive",
                    "query": "topic:orders",
                    "will_act": 1,
                    "target_topic": "bills",
                }
            },
            "anna decided to requeue 1 message found by “topic:orders” to bills",
        ),
        (
            Action.OPERATION_CONFIRMED,
            "operation:85",
            {"detail": {"verb": "restore", "will_act": 2, "undo_of": 84}},
            "anna decided to restore 2 messages, undoing operation 84",
        ),
        (
            Action.OPERATION_FINISHED,
            "operation:84",
            {
                "actor": Actor.system("worker"),
                "detail": {"for": "user:anna", "counts": {"sent": 5, "recurred": 2}},
            },
            "Operation 84 of anna finished: 5 sent, 2 came back",
        ),
        (
            Action.KEY_REFUSED,
            "api_key:ci",
            {
                "actor": Actor.system("api-keys"),
                "reason": "revoked",
                "detail": {"address": "10.1.2.3"},
            },
            "The key ci, which is revoked, was refused from 10.1.2.3",
        ),
        (
            Action.SIGN_IN_FAILED,
            "user:?",
            {"actor": Actor.system("sign-in"), "detail": {"address": "10.1.2.3"}},
            "A sign-in as an unknown name from 10.1.2.3 failed",
        ),
        (
            Action.SIGN_IN_FAILED,
            "user:olga",
            {
                "actor": Actor.system("sign-in"),
                "detail": {"address": "10.1.2.3", "of": "code"},
            },
            "A sign-in as olga from 10.1.2.3 failed: wrong code",
        ),
        (
            Action.SIGN_IN_FAILED,
            "user:olga",
            {
                "actor": Actor.system("sign-in"),
                "detail": {"of": "password", "disabled": True},
            },
            "A sign-in as olga failed: the account is disabled",
        ),
        (
            Action.SIGN_IN_FAILED,
            "user:olga",
            {
                "actor": Actor.system("sign-in"),
                "detail": {
                    "address": "10.1.2.3",
                    "of": "password",
                    "page": "Second factor",
                },
            },
            "A wrong password for olga was given on “Second factor” from 10.1.2.3",
        ),
        (
            Action.OPERATION_CANCELLED,
            "operation:7",
            {
                "actor": Actor.system("worker"),
                "detail": {"for": "user:olga", "counts": {"unknown": 2}},
            },
            "Operation 7 of olga was cancelled: 2 unknown",
        ),
        (
            Action.OPERATION_PAUSED,
            "operation:7",
            {
                "actor": Actor.system("worker"),
                "detail": {"for": "user:olga", "because": "3 of 20 came back"},
            },
            "Operation 7 of olga paused itself: 3 of 20 came back",
        ),
        (
            Action.OPERATION_PAUSED,
            "operation:7",
            {"detail": {"verb": "redrive"}, "reason": "too fast"},
            "anna paused operation 7: “too fast”",
        ),
        (Action.OPERATION_RESUMED, "operation:7", {}, "anna resumed operation 7"),
        (
            Action.OPERATION_RESUMED,
            "operation:7",
            {"detail": {"ramp": "begins again"}},
            "anna resumed operation 7, whose ramp begins again",
        ),
        (
            Action.OPERATION_RESUMED,
            "operation:7",
            {"detail": {"ramp": "removed"}},
            "anna resumed operation 7, without its ramp",
        ),
        (
            Action.OPERATION_CANCEL_REQUESTED,
            "operation:7",
            {},
            "anna cancelled operation 7",
        ),
        (
            Action.OPERATION_RATE_CHANGED,
            "operation:7",
            {"detail": {"before": 100, "after": 20}},
            "anna let operation 7 send at most 20 messages a second, before at most "
            "100",
        ),
        (
            Action.OPERATION_RATE_CHANGED,
            "operation:7",
            {"detail": {"before": None, "after": None}},
            "anna let operation 7 send as fast as it can",
        ),
        (
            Action.OPERATION_ACKNOWLEDGED,
            "operation:7",
            {"detail": {"verb": "redrive", "messages": 1_200}, "reason": "known"},
            "anna acknowledged 1,200 messages in trouble of operation 7: “known”",
        ),
        (
            Action.TOPIC_ALTERED,
            "topic:orders",
            {"detail": {"max_dequeue_count": [5, 8]}},
            "anna changed max_dequeue_count of the topic orders from 5 to 8",
        ),
        (
            Action.USER_ALTERED,
            "user:boris",
            {
                "detail": {
                    "before": {"role": "viewer", "is_active": True},
                    "after": {"role": "admin", "is_active": True},
                }
            },
            "anna changed boris: role from viewer to admin",
        ),
        (
            Action.USER_ALTERED,
            "user:boris",
            {"detail": {"before": {"is_active": True}, "after": {"is_active": False}}},
            "anna disabled boris",
        ),
        (
            Action.USER_ALTERED,
            "user:boris",
            {
                "detail": {
                    "before": {"role": "viewer", "reads_bodies": False},
                    "after": {"role": "admin", "reads_bodies": True},
                }
            },
            "anna changed boris: role from viewer to admin, may read bodies now",
        ),
        (
            Action.POSITION_MOVED,
            "position:3",
            {"detail": {"client_name": "billing", "topic": "orders"}, "reason": "gap"},
            "anna moved the position of billing on orders: “gap”",
        ),
        (
            Action.LANE_SET,
            "lanes",
            {"detail": {"mode": "observe", "topics": ["a", "b", "c", "d"]}},
            "anna set the lanes of a, b, c and 1 more to observe",
        ),
    ],
)
def test_the_page_says_who_did_what_and_why(
    reader: Client,
    now: datetime,
    action: Action,
    subject: str,
    changes: dict[str, object],
    said: str,
) -> None:
    written(action, subject, now, **changes)

    assert said in unescape(page_of(reader))


def test_entries_are_ordered_by_their_numbers_not_by_their_times(
    reader: Client, now: datetime
) -> None:
    entries = [written(Action.KEY_REVOKED, "api_key:a", now - timedelta(days=1))]
    entries += [written(Action.KEY_REVOKED, "api_key:b", now - timedelta(days=5))]
    entries += [written(Action.KEY_REVOKED, "api_key:c", now - timedelta(days=3))]

    page = page_of(reader, "?action=api_key.revoked")

    assert numbers(page) == entries[::-1]


def numbers(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="entry-(\d+)"', page)]


def test_pages_go_on_by_number_in_both_directions(
    reader: Client, now: datetime
) -> None:
    entries = [written(Action.KEY_REVOKED, f"api_key:{n}", now) for n in range(120)][
        ::-1
    ]
    pages, path = list[list[int]](), "?action=api_key.revoked"

    for _ in range(3):
        page = page_of(reader, path)
        pages.append(numbers(page))
        path = link(page, "next") or path
    back = page_of(reader, link(page_of(reader, f"?{path[1:]}"), "prev"))

    assert pages == [entries[:50], entries[50:100], entries[100:]]
    assert numbers(back) == entries[50:100]
    assert reader.get("/audit?cursor=older.x").status_code == 422


def link(page: str, rel: str) -> str:
    match = re.search(rf'rel="{rel}" href="([^"]+)"', page)
    return unescape(match[1]) if match else ""


def test_an_open_row_shows_what_was_changed_as_a_table(
    reader: Client, now: datetime
) -> None:
    before, after = {"a": "1", "b": "<i>"}, {"a": "1", "b": "\u202e2"}
    written(
        Action.POSITION_MOVED,
        "position:3",
        now,
        detail={"before": before, "after": after, "epoch": 4},
    )

    page = page_of(reader, "?subject=position:3")

    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    assert [name for name, _ in rows] == ["b"]
    assert "&lt;i&gt;" in rows[0][1]
    assert '<span class="unseen">U+202E</span>2' in rows[0][1]
    assert "\u202e" not in page
    assert "<dt>epoch</dt>" in page


def test_an_open_row_shows_a_bounded_part_of_a_large_entry(
    reader: Client, now: datetime
) -> None:
    after = {f"field {n}": "x" * 5_000 for n in range(500)}
    written(Action.USER_ALTERED, "user:b", now, detail={"before": {}, "after": after})

    page = page_of(reader, "?subject=user:b")

    assert len(page) < 100_000
    assert "450 more fields" in page


def test_filters_are_in_the_address_and_in_the_form(
    reader: Client, now: datetime
) -> None:
    first = written(Action.KEY_REVOKED, "api_key:ci", now)
    written(Action.KEY_CREATED, "api_key:ci", now)
    day = f"{now:%Y-%m-%d}"
    query = f"?actor=user:anna&action=api_key.revoked&subject=api_key:ci&from={day}"

    page = page_of(reader, query)

    assert numbers(page) == [first]
    assert 'value="user:anna"' in page
    assert '<option value="api_key.revoked" selected>Revoked a key</option>' in page
    assert f'value="{day}"' in page
    assert "audit.csv?actor=user%3Aanna&amp;action=api_key.revoked" in page


def test_a_name_alone_finds_people_and_keys_in_any_case(
    reader: Client, now: datetime
) -> None:
    person = written(Action.SKIP_ADDED, "skip:1", now, actor=Actor.user("Olga"))
    key = written(Action.SKIP_ADDED, "skip:2", now, actor=Actor.key("olga"))
    written(Action.SKIP_ADDED, "skip:3", now, actor=Actor.user("olga2"))

    results = [numbers(page_of(reader, f"?actor={name}")) for name in ("olga", "OLGA")]

    assert results == [[key, person]] * 2
    assert numbers(page_of(reader, "?actor=user:Olga")) == [person]
    assert "A person is user:anna or anna" in page_of(reader, "?actor=nobody")


def test_the_subject_of_a_message_may_be_written_as_message(
    reader: Client, now: datetime
) -> None:
    entry = written(Action.BODY_REVEALED, "poison:7", now)

    assert numbers(page_of(reader, "?subject=message:7")) == [entry]


# A selection reads a snapshot, which contains only committed rows.
@pytest.mark.django_db(transaction=True)
def test_a_problem_is_listed_with_the_operations_on_it(
    reader: Client, now: datetime
) -> None:
    one, two = poisons(now, 1)[0], poisons(now, 1, topic="bills")[0]
    by_hand = confirm(ADMIN, preview(ADMIN, now, ids=(one.pk,)), now)
    query = Query.parse(f"problem:{two.problem_id}")
    by_problem = confirm(ADMIN, preview(ADMIN, now, query=query), now)

    pages = [
        page_of(reader, f"?subject=problem:{each.problem_id}") for each in (one, two)
    ]

    entries = [Entry.objects.get(seq=numbers(page)[0]) for page in pages]
    assert [len(numbers(page)) for page in pages] == [1, 1]
    assert [entry.subject for entry in entries] == [
        f"operation:{by_hand.pk}",
        f"operation:{by_problem.pk}",
    ]
    assert (
        f"decided to requeue message {one.pk} of problem {one.problem_id}" in pages[0]
    )


@pytest.mark.django_db(transaction=True)
def test_a_message_is_listed_with_the_operations_that_held_it(
    reader: Client, now: datetime
) -> None:
    one, other = poisons(now, 2)
    mine = confirm(ADMIN, preview(ADMIN, now, ids=(one.pk,), verb=Verb.DROP), now)
    run(mine, now)
    run(confirm(ADMIN, preview(ADMIN, now, ids=(other.pk,), verb=Verb.DROP), now), now)
    written(Action.BODY_REVEALED, f"poison:{one.pk}", now)

    page = page_of(reader, f"?subject=message:{one.pk}")
    file = reader.get(f"/audit.ndjson?subject=message:{one.pk}").getvalue()

    subjects = [Entry.objects.get(seq=seq).subject for seq in numbers(page)]
    operation = f"operation:{mine.pk}"
    assert subjects == [f"poison:{one.pk}", operation, operation]
    assert f"anna decided to drop message {one.pk} of problem" in page
    assert f"of anna on message {one.pk} finished" in page
    assert len(file.splitlines()) == 3


def test_a_problem_with_too_many_operations_is_refused_with_the_remedy(
    reader: Client, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "MOST_DECISIONS", 1)
    for number in range(2):
        written(
            Action.OPERATION_CONFIRMED,
            f"operation:{number}",
            now,
            detail={"problems": [7]},
        )

    assert reader.get("/audit?subject=problem:7").status_code == 422
    assert reader.get("/audit?subject=problem:8").status_code == 200


def test_a_wrong_filter_lists_nothing_and_exports_nothing(
    reader: Client, now: datetime
) -> None:
    decide(now)

    page = reader.get("/audit?from=soon")
    file = reader.get("/audit.csv?from=soon")

    assert (page.status_code, file.status_code) == (422, 422)
    assert numbers(page.content.decode()) == []


def test_an_entry_leads_to_what_it_is_about(reader: Client, now: datetime) -> None:
    (poison,) = poisons(now, 1)
    broker = Broker.objects.create(name="ours", kind="memory", url="memory://x")
    subjects = {
        "operation:5": "/operations/5",
        f"poison:{poison.pk}": f"/messages/{poison.pk}",
        "problem:6": "/problems/6",
        "position:7": "/positions/7",
        "skip:8": "/skips/8",
        "topic:orders": f"/topics/{poison.topic_id}",
        "lane:orders": f"/topics/{poison.topic_id}",
        "broker:ours": f"/brokers/{broker.pk}",
        "report:9": "/reports?from=2026-11-01&to=2026-11-02",
        "topic:gone": "",
        "operation:\uff11": "",
        "operation:" + "9" * 40: "",
    }
    days = {"from": "2026-11-01", "to": "2026-11-02"}
    for subject in subjects:
        written(Action.OPERATION_CONFIRMED, subject, now, detail=days)

    page = page_of(reader, "?actor=user:anna")

    links = [
        unescape(match[1])
        if (match := re.search(r'class="to" href="(.*?)"', row))
        else ""
        for row in page.split('<li id="entry-')[1:]
    ]
    assert links == list(subjects.values())[::-1]


@pytest.mark.parametrize("role", [Role.VIEWER, Role.ADMIN])
def test_people_and_keys_are_linked_for_who_may_see_their_pages(
    sign_in: SignIn, now: datetime, role: Role
) -> None:
    client = sign_in(role)
    person = User.objects.get()
    for subject in (f"user:{person.username}", "user:gone", "api_key:ci"):
        written(Action.USER_ALTERED, subject, now)

    page = page_of(client, "?actor=user:anna")

    links = re.findall(r'class="to" href="(.*?)"', page)
    expected = ["/keys", f"/people/{person.pk}"] if role is Role.ADMIN else []
    assert links == expected


def test_ten_rows_need_no_more_queries_than_one(
    reader: Client, now: datetime, django_assert_max_num_queries: Any
) -> None:
    poisons(now, 1)
    written(Action.TOPIC_ALTERED, "topic:orders", now)
    with CaptureQueriesContext(connection) as one:
        page_of(reader)
    for _ in range(10):
        written(Action.TOPIC_ALTERED, "topic:orders", now)

    with django_assert_max_num_queries(len(one)):
        page_of(reader)


def test_the_files_hold_what_the_filters_leave(reader: Client, now: datetime) -> None:
    mine = written(
        Action.KEY_REVOKED,
        "api_key:=cmd()",
        now,
        actor=Actor.user("zoe"),
        reason="=HYPERLINK(1)",
        detail={"x": "\u202e"},
    )
    decide(now)

    table = reader.get("/audit.csv?actor=user:zoe")
    lines = reader.get("/audit.ndjson?actor=user:zoe")

    (row,) = csv.DictReader(StringIO(table.getvalue().decode()))
    (line,) = [json.loads(text) for text in lines.getvalue().splitlines()]
    assert (row["seq"], line["seq"]) == (str(mine), mine)
    assert row["reason"] == "'=HYPERLINK(1)"
    assert row["sentence"].startswith("zoe revoked the key =cmd()")
    assert line["detail"] == {"x": "\u202e"}
    entry = Entry.objects.get(seq=mine)
    before = Entry.objects.filter(seq=mine - 1).first()
    start = bytes(before.hash) if before else hashlib.sha256(b"poisonweb").digest()
    assert hashlib.sha256(start + line["record"].encode()).hexdigest() == line["hash"]
    assert row["hash"] == bytes(entry.hash).hex()
    assert "attachment" in table["Content-Disposition"]


def test_a_long_file_holds_every_entry_once(
    reader: Client, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "AT_ONCE", 7)
    entries = [written(Action.KEY_REVOKED, f"api_key:{n}", now) for n in range(20)]

    lines = reader.get("/audit.ndjson?action=api_key.revoked").getvalue().splitlines()

    assert [json.loads(line)["seq"] for line in lines] == entries[::-1]


def test_a_file_that_would_be_too_long_is_refused_with_the_remedy(
    reader: Client, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_trail, "MOST_EXPORTED", 2)
    for _ in range(3):
        decide(now)

    refused = reader.get("/audit.csv?action=api_key.revoked")

    assert refused.status_code == 422
    assert "choose fewer days" in refused.content.decode()


@pytest.mark.parametrize("path", ["/audit", "/audit.csv", "/audit.ndjson"])
def test_who_does_not_see_every_topic_does_not_see_the_trail(
    sign_in: SignIn, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    client = sign_in()
    assert client.get(path).status_code == 200

    def bound(self: User) -> Principal:
        actor = Actor.user(self.username)
        return Principal(actor=actor, scopes=frozenset(Scope), topics=("orders",))

    monkeypatch.setattr(User, "principal", property(bound))

    assert client.get(path).status_code == 403


@pytest.mark.parametrize("kind", ["problem", "message", "topic", "broker", "operation"])
def test_the_pages_of_things_lead_to_their_entries(
    sign_in: SignIn, now: datetime, kind: str
) -> None:
    client = sign_in(Role.ADMIN)
    (poison,) = poisons(now, 1)
    broker = Broker.objects.create(
        name="ours & theirs", kind="redis_streams", url="env:BROKER_NOWHERE"
    )
    operation = Operation.objects.create(
        verb="restore",
        state="done",
        actor="user:anna",
        source="ui",
        topics=["*"],
        taken=True,
        created_at=now,
        expires_at=now,
        confirmed_at=now,
        finished_at=now,
    )
    paths = {
        "problem": (f"/problems/{poison.problem_id}", f"problem:{poison.problem_id}"),
        "message": (f"/messages/{poison.pk}", f"poison:{poison.pk}"),
        "topic": (f"/topics/{poison.topic_id}", "topic:orders"),
        "broker": (f"/brokers/{broker.pk}", "broker:ours%20%26%20theirs"),
        "operation": (f"/operations/{operation.pk}", f"operation:{operation.pk}"),
    }
    path, subject = paths[kind]

    page = client.get(path).content.decode()

    assert f'href="/audit?subject={subject}"' in page


def entries_of_pages(now: datetime) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return a page of each kind, and the filters that it links to."""
    name = "ours & theirs"
    key = services.create_api_key(
        name=name, scopes=[Scope.SKIPS_READ], actor=ANNA, now=now
    ).key
    person = services.create_user(
        username="berta@example.com",
        password="correct horse",
        role=Role.VIEWER,
        reads_bodies=False,
        actor=ANNA,
        now=now,
    )
    skip = skip_builders_and_list_mirror.added(now)
    position_opening_and_settling.opened(now)
    position = BookmarkPosition.objects.get()
    topic = Topic.objects.get()
    broker = Broker.objects.create(
        name=name, kind="redis_streams", url="env:BROKER_NOWHERE"
    )
    Topic.objects.update(broker=broker, dead_letter_queue="orders-poison")
    Lane.objects.create(topic=topic)
    day = now.date() - timedelta(days=1)
    run = Run.objects.create(
        first_day=day, last_day=day, asked_by="system:nightly", asked_at=now
    )
    of_person = ("actor=user:berta%40example.com", "subject=user:berta%40example.com")
    return {
        "position": (f"/positions/{position.pk}", (f"subject=position:{position.pk}",)),
        "skip": (f"/skips/{skip.pk}", (f"subject=skip:{skip.pk}",)),
        "person": (f"/people/{person.pk}", of_person),
        "key": ("/keys", (f"subject=api_key:{quote(key.name)}",)),
        "lane": (f"/topics/{topic.pk}", ("subject=lane:orders",)),
        "report": ("/reports/runs", (f"subject=report:{run.pk}",)),
    }


@pytest.mark.parametrize(
    "kind", ["position", "skip", "person", "key", "lane", "report"]
)
def test_the_other_pages_of_things_lead_to_their_entries_too(
    sign_in: SignIn, now: datetime, kind: str
) -> None:
    client = sign_in(Role.ADMIN)
    path, filters_of_it = entries_of_pages(now)[kind]

    page = client.get(path).content.decode()

    for query in filters_of_it:
        assert f'href="/audit?{query}"' in page
        assert client.get(f"/audit?{query}").status_code == 200
