"""The stream of skips from a real server: no event is missed or late."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import pytest
import uvicorn
from django.db import connection, transaction

from apps.api.skip_stream import credential_recheck, event_hub, stream_reader_queues
from apps.core import notify_channel
from apps.core.postgres_connections import open_async_session
from apps.poison import skip_addition_and_removal, skip_list_for_consumers
from apps.poison.models import SkipList, StoreEpoch
from apps.team import services as team
from apps.team import sessions as team_sessions
from apps.team.models import ApiKey, User
from apps.team.open_stream_credentials import Credential, CredentialKind
from apps.team.rights import Role, Scope
from poisonweb.embedded.free_ports import free_port
from poisonweb.env import ROOT
from poisonweb.one_thread_asgi_request_handler import ThreadedHandler
from tests.failure_report_builders import capture, failure
from tests.integration.api.schema_checking_client import Caller, person, program
from tests.postgres_connection_limit_and_lock_waits import waits_for_a_lock
from tests.skip_builders_and_list_mirror import ANNA, added, topic_named
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

TIMEOUT = 60.0
# What is promised, where nothing else works beside it.
TWO_SECONDS = 2.0 if os.environ.get("SOAK") else TIMEOUT


@dataclass
class Event:
    kind: str = ""
    id: str = ""
    data: Any = None


@dataclass
class Open:
    """A reader of a stream that reads one event after the other."""

    response: http.client.HTTPResponse
    connection: http.client.HTTPConnection
    retry: str = ""
    events: list[Event] = field(default_factory=list)

    def next(self) -> Event | None:
        """Wait for an event; None at the end of the stream."""
        event = Event()
        while line := self.response.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "id":
                event.id = value
            elif name == "event":
                event.kind = value
            elif name == "data":
                event.data = json.loads(value)
            elif name == "retry":
                self.retry = value
            elif event.kind:
                return event
        return None

    def until(self, kind: str) -> Event:
        """Read up to an event of this kind; `events` has all that were read."""
        while event := self.next():
            self.events.append(event)
            if event.kind == kind:
                return event
        raise AssertionError(f"no {kind} came: {self.events}")

    @property
    def rest(self) -> list[str]:
        kinds = list[str]()
        while event := self.next():
            kinds.append(event.kind)
        return kinds

    def close(self) -> None:
        self.response.close()
        self.connection.close()


@dataclass
class StreamServer:
    port: int
    opened: list[Open] = field(default_factory=list)

    def answers(self) -> bool:
        talk = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            talk.request("GET", "/healthz")
            return talk.getresponse().status == 200
        except ConnectionRefusedError:
            return False
        finally:
            talk.close()

    def close(self) -> None:
        for opened in self.opened:
            opened.close()

    def follow(self, caller: Caller, after: str = "", **query: object) -> Open:
        headers = {**caller.headers}
        if "sessionid" not in headers and caller.client.cookies:
            headers["Cookie"] = caller.client.cookies.output(header="", sep=";")
        if last := query.pop("last_event_id", None):
            headers["Last-Event-ID"] = str(last)
        if after:
            query["after"] = after
        encoded = urlencode(query, doseq=True)
        talk = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        talk.request("GET", f"/api/v1/skips/stream?{encoded}", headers=headers)
        opened = Open(response=talk.getresponse(), connection=talk)
        self.opened.append(opened)
        return opened


@contextmanager
def serving() -> Iterator[StreamServer]:
    config = uvicorn.Config(
        ThreadedHandler(), host="127.0.0.1", port=0, lifespan="off",
        log_config=None, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    ready = threading.Event()
    thread = threading.Thread(target=_run, args=(server, ready))
    thread.start()
    assert ready.wait(TIMEOUT)
    port = server.servers[0].sockets[0].getsockname()[1]
    running = StreamServer(port=port)
    try:
        yield running
    finally:
        running.close()
        server.should_exit = True
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        assert not event_hub.Hub._hubs


def _run(server: uvicorn.Server, ready: threading.Event) -> None:
    startup = server.startup

    async def started(*args: Any, **kwargs: Any) -> None:
        await startup(*args, **kwargs)
        ready.set()

    server.startup = started  # type: ignore[method-assign] # to know when it is up
    server.run()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamServer]:
    monkeypatch.setattr(event_hub, "LISTEN_WITHIN", TIMEOUT)
    with serving() as running:
        yield running


@pytest.fixture
def guard() -> Caller:
    return program(Scope.SKIPS_READ)


def place(*topics: str) -> str:
    heads = [skip_list_for_consumers.list_head(topic=topic) for topic in topics]
    return f"{heads[0].epoch}.{','.join(str(head.revision) for head in heads)}"


def test_a_reader_begins_at_the_present_and_gets_every_change(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    added(now, "before")
    reader = server.follow(guard, topic="orders")
    begun = reader.until("ping")

    skip = added(now, "1-0", reason="bad", consumer_group="billing")
    skipped = reader.until("skip")
    skip_addition_and_removal.remove(
        skip_id=skip.pk, reason="", principal=ANNA, now=now
    )
    ended = reader.until("unskip")

    assert reader.response.getheader("Content-Type") == "text/event-stream"
    assert reader.response.getheader("Cache-Control") == "no-store"
    assert (reader.retry, [event.kind for event in reader.events]) == (
        "1000",
        ["ping", "skip", "unskip"],
    )
    epoch = skip_list_for_consumers.list_head(topic="orders").epoch
    assert [e.id for e in (begun, skipped, ended)] == [
        f"{epoch}.{n}" for n in (1, 2, 3)
    ]
    assert (skipped.data["id"], skipped.data["revision"]) == (skip.pk, 2)
    assert skipped.data["matcher"] == {"kind": "bookmark", "value": "1-0"}
    assert ended.data == {
        "id": skip.pk, "topic": "orders", "revision": 3, "because": "removed",
    }  # fmt: skip


def test_a_reader_resumes_after_its_last_event(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    added(now, "1-0")
    after = place("orders")
    later = [added(now, f"{n}-0") for n in (2, 3)]

    by_query = server.follow(guard, after=after, topic="orders")
    by_header = server.follow(
        guard, after="nonsense", last_event_id=after, topic="orders"
    )

    for reader in (by_query, by_header):
        assert reader.until("ping").id == place("orders")
        assert [e.data["id"] for e in reader.events[:-1]] == [skip.pk for skip in later]


def test_one_stream_carries_several_topics_known_or_not(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    added(now, "1-0")
    topics = ["never heard of", "orders", "payments"]
    reader = server.follow(guard, topic=topics)
    begun = reader.until("ping")

    # One after the other: simultaneous changes of two topics have no order.
    added(now, "2-0", topic=topic_named("payments"))
    events = [reader.until("skip")]
    added(now, "3-0", topic=topic_named("never heard of"))
    events.append(reader.until("skip"))

    epoch = begun.id.partition(".")[0]
    assert [event.id for event in (begun, *events)] == [
        f"{epoch}.{revisions}" for revisions in ("0,1,0", "0,1,1", "1,1,1")
    ]
    assert [event.data["topic"] for event in events] == ["payments", "never heard of"]


def test_a_reader_of_a_group_gets_its_skips_and_those_for_all_groups(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    reader = server.follow(guard, topic="orders", consumer_group="billing")
    reader.until("ping")

    for group in ("shipping", "billing", "shipping", None):
        added(now, f"of {group}", consumer_group=group)
    events = [reader.until("skip") for _ in range(2)]

    assert [event.data["consumer_group"] for event in events] == ["billing", None]
    assert [event.id.rpartition(".")[2] for event in events] == ["2", "4"]


def test_a_failure_of_one_consumer_reaches_the_others_as_a_skip(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    reader = server.follow(guard, topic="orders", consumer_group="billing")
    reader.until("ping")

    capture(now, failure(now, bookmark="a\0\ud800", replays=True))

    assert reader.until("skip").data["matcher"]["value"] == "a\0\ud800"


def test_a_skip_that_is_rolled_back_is_never_sent(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    topic_named()
    reader = server.follow(guard, topic="orders")
    reader.until("ping")

    with transaction.atomic():
        added(now, "rolled back")
        transaction.set_rollback(True)
    added(now, "kept")

    assert reader.until("skip").data["matcher"]["value"] == "kept"


def test_without_notices_a_change_arrives_all_the_same(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    reader = server.follow(guard, topic="orders")
    reader.until("ping")
    stop = threading.Event()

    def cut() -> None:
        while not stop.wait(0.01):
            terminate("poisonweb listener")
        connection.close()

    cutter = threading.Thread(target=cut)
    cutter.start()
    for number in range(3):
        added(now, f"{number}-0")
        assert reader.until("skip").data["matcher"]["value"] == f"{number}-0"
    stop.set()
    cutter.join()


def test_a_stream_outlives_the_sessions_of_its_hub(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    reader = server.follow(guard, topic="orders")
    reader.until("ping")

    for number in range(3):
        terminate("poisonweb listener", "poisonweb skips")
        added(now, f"{number}-0")

    values = [reader.until("skip").data["matcher"]["value"] for _ in range(3)]
    assert values == ["0-0", "1-0", "2-0"]


def test_a_reader_that_leaves_before_its_first_event_affects_no_other(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    with lists_locked():
        # One is asked for when it leaves, the other comes and goes meanwhile.
        early = server.follow(guard, topic="shipping")
        stays = server.follow(guard, topic="orders")
        wait_until(lambda: waits_for_a_lock("poisonweb skips"))
        late = server.follow(guard, topic="payments")
        for reader in (early, late):
            reader.close()
        wait_until(lambda: readers_open() == 1)

    # A reader that joins now gets no earlier changes.
    stays.until("ping")
    added(now, "1-0")
    stays.until("skip")
    assert {event.kind for event in stays.events} == {"ping", "skip"}


@contextmanager
def lists_locked() -> Iterator[None]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {SkipList._meta.db_table}")
        yield


def readers_open() -> int:
    return sum(len(one._open) for one in event_hub.Hub._hubs.values())


def terminate(*names: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = ANY(%s) AND datname = current_database()",
            [list(names)],
        )


@pytest.mark.parametrize(
    "after",
    ["", "x", "another.1", "{epoch}.", "{epoch}.3", "{epoch}.1,1", "{epoch}.-1",
     "{epoch}.1e1", "{epoch}.0", "{epoch}." + "9" * 5_000],
)  # fmt: skip
def test_an_unknown_event_id_gets_a_reset_and_the_end(
    server: StreamServer, guard: Caller, now: datetime, after: str
) -> None:
    added(now, "1-0")
    added(now, "2-0")
    SkipList.objects.update(floor=1)
    epoch = skip_list_for_consumers.list_head(topic="orders").epoch

    place = after.replace("{epoch}", epoch) or f"{epoch}.99"
    reader = server.follow(guard, after=place, topic="orders")

    assert reader.rest == ["reset"]


def test_a_reader_too_far_behind_gets_a_reset(
    server: StreamServer, guard: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "MOST_BEHIND", 3)
    topic_named()
    start = place("orders")
    for number in range(3):
        added(now, f"{number}-0")
    near = server.follow(guard, after=start, topic="orders")
    near.until("ping")

    added(now, "3-0")
    far = server.follow(guard, after=start, topic="orders")

    assert [event.kind for event in near.events] == ["skip", "skip", "skip", "ping"]
    assert far.rest == ["reset"]


def test_a_restored_store_resets_its_readers(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    added(now)
    reader = server.follow(guard, topic="orders")
    reader.until("ping")

    (row,) = StoreEpoch.objects.values()
    with transaction.atomic():
        StoreEpoch.objects.all().delete()
        StoreEpoch.objects.create(**row)

    assert reader.rest == ["reset"]


def test_a_list_that_went_back_in_time_resets_its_readers(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    added(now, "1-0")
    added(now, "2-0")
    reader = server.follow(guard, topic="orders")
    reader.until("ping")

    SkipList.objects.update(revision=1)

    assert reader.rest == ["reset"]


def test_a_burst_of_any_size_arrives_in_order(
    server: StreamServer, guard: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "PAGE", 7)
    topic_named(replays=True)
    readers = [server.follow(guard, topic="orders") for _ in range(3)]
    for reader in readers:
        reader.until("ping")

    capture(now, *(failure(now) for _ in range(50)))

    for reader in readers:
        revisions = [reader.until("skip").data["revision"] for _ in range(50)]
        assert revisions == list(range(1, 51))


def test_a_slow_reader_is_reset_and_the_others_are_not(
    server: StreamServer, guard: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader_queues, "MOST_QUEUED_BYTES", 100_000)
    slow, other = (
        server.follow(guard, topic="orders", consumer_group=group)
        for group in ("billing", "shipping")
    )
    slow.until("ping")
    other.until("ping")

    for batch in range(4):
        marks = [f"{batch}-{number}-" + "b" * 100_000 for number in range(50)]
        reports = [failure(now, bookmark=mark, replays=True) for mark in marks]
        capture(now, *reports)
        added(now, f"{batch}-0", consumer_group="shipping")
        assert other.until("skip").data["matcher"]["value"] == f"{batch}-0"

    kinds = slow.rest
    assert kinds[-1] == "reset"
    assert len(kinds) < 200


def test_a_fence_is_sent_to_the_readers_of_its_topic(
    server: StreamServer, guard: Caller
) -> None:
    mine = server.follow(guard, topic=["payments", "orders"])
    other = server.follow(guard, topic="shipping")
    mine.until("ping")
    other.until("ping")

    for topic in ("orders", "shipping"):
        notify_channel.notify_fence(topic=topic, client_name="b-1", sub_id="é", epoch=7)

    fence = mine.until("fence")
    assert (fence.id, fence.data) == (
        "",
        {"client_name": "b-1", "sub_id": "é", "topic": "orders", "epoch": 7},
    )
    assert other.until("fence").data["topic"] == "shipping"


def test_a_stream_begins_when_its_fences_are_heard(
    server: StreamServer, guard: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def open_late(purpose: str) -> Any:
        if purpose == "listener":
            await asyncio.sleep(0.3)  # a slow Postgres
        return await open_async_session(purpose)

    monkeypatch.setattr(event_hub, "open_async_session", open_late)
    reader = server.follow(guard, topic="orders")
    reader.until("ping")

    notify_channel.notify_fence(topic="orders", client_name="b-1", sub_id="1", epoch=7)

    assert reader.until("fence").data["sub_id"] == "1"


def test_a_silent_stream_gets_pings(
    server: StreamServer, guard: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "PING_SECONDS", 0.1)
    reader = server.follow(guard, topic="orders", consumer_group="billing")
    reader.until("ping")

    added(now, "of another", consumer_group="shipping")

    at = place("orders")
    assert any(reader.until("ping").id == at for _ in range(50))
    assert {event.kind for event in reader.events} == {"ping"}


def test_a_stream_ends_after_a_while_so_that_its_reader_authenticates_again(
    server: StreamServer, guard: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "LONGEST_SECONDS", 0.1)

    reader = server.follow(guard, topic="orders")

    assert reader.rest == ["ping"]


def test_a_person_may_follow_and_a_stranger_may_not(
    server: StreamServer, now: datetime
) -> None:
    person_of_the_pages, stranger = person(Role.VIEWER), program(topics=["payments"])

    theirs = server.follow(person_of_the_pages, topic="orders")
    refused = server.follow(stranger, topic="orders")
    unknown = server.follow(Caller(client=stranger.client), topic="orders")

    assert theirs.until("ping").id == place("orders")
    assert [refused.response.status, unknown.response.status] == [403, 401]


def revoke(now: datetime) -> None:
    key = ApiKey.objects.earliest("pk")
    team.revoke_api_key(name=key.name, actor=ANNA.actor, now=now)


def expire(now: datetime) -> None:
    key = ApiKey.objects.earliest("pk")
    ApiKey.objects.filter(pk=key.pk).update(expires_at=now)


@pytest.mark.parametrize("end", [revoke, expire])
def test_a_stream_ends_within_two_seconds_of_its_key(
    server: StreamServer, now: datetime, end: Callable[[datetime], None]
) -> None:
    ending, other = program(Scope.SKIPS_READ), program(Scope.SKIPS_READ)
    theirs = [server.follow(ending, topic="orders") for _ in range(3)]
    stays = server.follow(other, topic="orders")
    for reader in (*theirs, stays):
        reader.until("ping")

    end(now)
    ended_at = time.monotonic()
    rests = [reader.rest for reader in theirs]
    took = time.monotonic() - ended_at
    added(now, "1-0")

    assert rests == [[], [], []]
    assert took < TWO_SECONDS
    assert stays.until("skip").data["matcher"]["value"] == "1-0"
    assert server.follow(ending, topic="orders").response.status == 401


def test_credentials_are_checked_often_enough_for_these_two_seconds() -> None:
    assert event_hub.CHECK_SECONDS + event_hub.POLL_SECONDS < 2


def disable(_: Caller, now: datetime) -> None:
    team.alter_user(username="viewer", is_active=False, actor=ANNA.actor, now=now)


def end_sessions(_: Caller, now: datetime) -> None:
    team.end_sessions(username="viewer", actor=ANNA.actor, now=now)


def set_password(_: Caller, now: datetime) -> None:
    user = User.objects.get(username="viewer")
    team.set_password(user=user, password="another horse", actor=ANNA.actor, now=now)


def sign_out(viewer: Caller, _: datetime) -> None:
    viewer.client.logout()


def end_one_session(viewer: Caller, now: datetime) -> None:
    user = User.objects.get(username="viewer")
    mark = team_sessions.mark_of(viewer.client.session.session_key or "")
    team_sessions.end_session(user=user, mark=mark, actor=ANNA.actor, now=now)


@pytest.mark.parametrize(
    "end", [disable, end_sessions, set_password, sign_out, end_one_session]
)
def test_a_stream_ends_within_two_seconds_of_its_persons_session(
    server: StreamServer, now: datetime, end: Callable[[Caller, datetime], None]
) -> None:
    viewer, operator = person(Role.VIEWER), person(Role.OPERATOR)
    theirs = server.follow(viewer, topic="orders")
    stays = server.follow(operator, topic="orders")
    theirs.until("ping")
    stays.until("ping")

    end(viewer, now)
    ended_at = time.monotonic()
    rest = theirs.rest
    took = time.monotonic() - ended_at
    added(now, "1-0")

    assert rest == []
    assert took < TWO_SECONDS
    assert stays.until("skip").data["matcher"]["value"] == "1-0"


class Counting:
    """A session of Postgres that counts its statements."""

    def __init__(self, session: event_hub.Session) -> None:
        self.session = session
        self.statements = 0

    async def execute(self, *args: Any) -> Any:
        self.statements += 1
        return await self.session.execute(*args)


def usable(
    credentials: set[Credential], now: datetime, *, zone: str = "UTC"
) -> tuple[set[Credential], int]:
    """Give the usable credentials, and the number of statements that it took."""

    async def ask() -> tuple[set[Credential], int]:
        async with await open_async_session("test") as session:
            await session.execute(f"SET timezone = '{zone}'")
            counting: Any = Counting(session)
            return await credential_recheck.usable(counting, credentials, now=now), (
                counting.statements
            )

    return asyncio.run(ask())


def of_session(caller: Caller) -> Credential:
    return Credential.of_session(caller.client.session.session_key or "")


@pytest.mark.parametrize("number", [1, 1_000])
def test_three_statements_check_any_number_of_credentials(
    now: datetime, number: int
) -> None:
    program(Scope.SKIPS_READ, now=now)
    key = Credential(CredentialKind.KEY, ApiKey.objects.get().name)
    viewer = of_session(person(Role.VIEWER))
    unknown = {
        Credential(kind, f"{each}") for kind in CredentialKind for each in range(number)
    }

    assert usable({key, viewer, *unknown}, now) == ({key, viewer}, 3)


def test_sessions_after_an_end_of_sessions_are_usable_in_any_zone(
    now: datetime,
) -> None:
    viewer = person(Role.VIEWER)
    before = of_session(viewer)
    team.end_sessions(username="viewer", actor=ANNA.actor, now=now)
    viewer.client.force_login(User.objects.get())
    after = of_session(viewer)

    assert before != after
    assert usable({before, after}, now, zone="Asia/Kolkata")[0] == {after}


def test_an_expired_session_is_not_usable(now: datetime) -> None:
    viewer = of_session(person(Role.VIEWER))
    at = [timedelta(hours=11), timedelta(hours=13)]

    assert [usable({viewer}, now + later)[0] for later in at] == [{viewer}, set()]


def test_many_readers_need_no_thread_and_two_sessions_in_all(
    server: StreamServer, guard: Caller, now: datetime
) -> None:
    before = threading.active_count()
    readers = [server.follow(guard, topic="orders") for _ in range(40)]
    for reader in readers:
        reader.until("ping")

    mine = {"poisonweb": 1}
    wait_until(
        lambda: sessions() == {**mine, "poisonweb listener": 1, "poisonweb skips": 1}
    )
    wait_until(lambda: threading.active_count() <= before + 5)
    for reader in readers:
        reader.close()
    wait_until(lambda: sessions() == mine)


def sessions(idle_after: str = "") -> dict[str, int]:
    """Count the sessions by name, optionally those idle after this statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT application_name, count(*) FROM pg_stat_activity"
            " WHERE datname = current_database()"
            " AND (%(query)s = '' OR state = 'idle' AND query = %(query)s) GROUP BY 1",
            {"query": idle_after},
        )
        return dict(cursor.fetchall())


@contextmanager
def program_serving() -> Iterator[tuple[StreamServer, subprocess.Popen[str]]]:
    """Serve from a process of its own, with the default handling of signals."""
    port = free_port()
    database = urlsplit(os.environ["DATABASE_URL"])
    name = connection.settings_dict["NAME"]
    url = urlunsplit(database._replace(path=f"/{name}"))
    command = [sys.executable, "-m", "uvicorn", "poisonweb.asgi:application"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--lifespan", "off"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url},
        stderr=subprocess.PIPE,
        text=True,
    )
    running = StreamServer(port=port)
    try:
        yield running, process
    finally:
        running.close()
        process.kill()
        process.communicate()


def test_a_stopping_server_ends_its_streams(guard: Caller) -> None:
    with program_serving() as (server, process):
        wait_until(server.answers)
        readers = [server.follow(guard, topic="orders") for _ in range(5)]
        for reader in readers:
            reader.until("ping")

        process.terminate()
        _, output = process.communicate(timeout=TIMEOUT)

    assert [reader.rest for reader in readers] == [[]] * 5
    assert "Traceback" not in output
