"""The time from a skip's commit until all consumers apply it, against a bare NOTIFY.

Targets: with 50 consumers p99 at most 10 x that of an INSERT with a NOTIFY, in two of
three runs, also where they are in ten processes of their own and the time begins before
the POST of the skip, and before the INSERT to as many listeners; at most 1 s while
LISTEN is cut again and again. With 2,000 readers of one web process p99 at most
500 ms, and all of them current at most 10 s after they start together. The last two are
no ratios: they hold on an idle machine only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from itertools import count, islice
from urllib.parse import urlsplit

import psycopg

from benchmarks._benchmark_harness import ROUNDS, api_key, p99, product, web
from poisonguard.contract import Skip
from poisonguard.server.http_client import Client
from poisonguard.server.skip_stream import SkipStream
from poisonguard.skipping.skip_list import SkipList

CONSUMERS = 50
PROCESSES = 10
READY = "ready"
CHANGES = 40  # in each round
CUTS = 20
READERS = 2_000
CHANGES_FOR_MANY = 20
TIMEOUT_SECONDS = 60.0
TOPIC, GROUP = "orders", "billing"

Commit = Callable[[], float]  # commits a change, and returns when the commit began


class Arrivals:
    """The times at which a change arrived at each of its receivers."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._at: list[float] = []

    def note(self, times: int = 1) -> None:
        """Note that changes of the skip list arrived now, in the skip benchmark."""
        self._at += [time.perf_counter()] * times

    def delays_of(self, commit: Commit) -> list[float]:
        """Commit a skip change; wait until all consumers have it, return each delay.

        Raises TimeoutError if some never get it. The commit may be a bare notice
        instead.
        """
        self._at.clear()
        committed_at = commit()
        while len(self._at) < self._number:
            if time.perf_counter() > committed_at + TIMEOUT_SECONDS:
                raise TimeoutError(f"{len(self._at)} of {self._number} heard of it")
            time.sleep(0.005)
        return [at - committed_at for at in self._at]


def bare_notify(channel: str) -> Commit:
    """Return a function that inserts a row and sends a bare Postgres NOTIFY."""
    from django.db import connection, transaction

    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {channel} (id bigserial PRIMARY KEY, value text)")

    def commit() -> float:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {channel} (value) VALUES ('a skip')")
            cursor.execute("SELECT pg_notify(%s, '1')", [channel])
            return time.perf_counter()

    return commit


def new_skip() -> Commit:
    """Return a function that adds a skip as the API and the pages do."""
    from django.db import transaction

    from apps.brokers.services.topics_and_routing_publisher import topics_named
    from apps.core import clock
    from apps.core.actor import Actor
    from apps.poison import skip_addition_and_removal
    from apps.poison.skip_matching import Matcher
    from apps.team.rights import Principal, Scope

    topic = topics_named(names=[TOPIC])[TOPIC]
    anna = Principal(actor=Actor.user("anna"), scopes=frozenset(Scope))
    numbers = count()

    def commit() -> float:
        matcher = {"kind": "bookmark", "value": f"{next(numbers)}-0"}
        with transaction.atomic():
            skip_addition_and_removal.add(
                topic=topic,
                consumer_group=GROUP,
                matcher=Matcher.parse(matcher),
                principal=anna,
                now=clock.now(),
            )
            return time.perf_counter()

    return commit


class RecordingSkipList(SkipList):
    """A skip list that records when a skip takes effect."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__(
            topic=TOPIC,
            consumer_group=GROUP,
            handler_version=None,
            tell_applied=lambda *_: None,
        )
        self._arrivals = arrivals

    def put_listed(self, skip: Skip, *, now: datetime) -> None:
        before = len(self)
        super().put_listed(skip, now=now)
        if len(self) > before:
            self._arrivals.note()


@contextmanager
def consumer(url: str, key: str, arrivals: Arrivals) -> Iterator[None]:
    """Follow the skip list as a guard does, in the block, for the skip benchmark.

    This consumer has a connection and a thread of its own.
    """
    with closing(Client([url], key)) as client:
        feed = SkipStream(client, on_return=lambda: None)
        feed.join(RecordingSkipList(arrivals))
        feed.start()
        if not feed.until_loaded(TIMEOUT_SECONDS):
            raise TimeoutError(feed.trouble)
        yield
        feed.stop()
        feed.join_thread(TIMEOUT_SECONDS)


@contextmanager
def listener(channel: str, arrivals: Arrivals) -> Iterator[None]:
    """Receive bare Postgres notices on a connection and a thread of its own."""
    from apps.core.postgres_connections import open_session

    stopped = threading.Event()

    def listen() -> None:
        while not stopped.is_set():
            for _ in session.notifies(timeout=0.5):
                arrivals.note()

    with open_session("bench") as session:
        session.execute(f"LISTEN {channel}")
        thread = threading.Thread(target=listen)
        thread.start()
        yield
        stopped.set()
        thread.join()


@contextmanager
def listen_cut() -> Iterator[None]:
    """Keep ending Poisonweb's session for Postgres notices in the benchmark's block."""
    from apps.core.postgres_connections import open_session

    stopped = threading.Event()

    def cut() -> None:
        with open_session("bench") as session:
            while not stopped.wait(0.01):
                session.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'poisonweb listener'"
                )

    thread = threading.Thread(target=cut)
    thread.start()
    yield
    stopped.set()
    thread.join()


def print_delays_of_fifty_consumers(url: str, key: str, skip: Commit) -> None:
    """Print the skip delays of fifty consumers here, and those of bare notices."""
    ours, many, one = Arrivals(CONSUMERS), Arrivals(CONSUMERS), Arrivals(1)
    notify_many, notify_one = bare_notify("many"), bare_notify("one")
    with ExitStack() as stack:
        stack.enter_context(listener("one", one))
        for _ in range(CONSUMERS):
            stack.enter_context(listener("many", many))
            stack.enter_context(consumer(url, key, ours))
        turns = [
            (ours, skip, CHANGES),
            (many, notify_many, CHANGES),
            (one, notify_one, 4 * CHANGES),
        ]
        for arrivals, commit, _ in turns:
            arrivals.delays_of(commit)  # once each to warm up
        rounds = [
            [p99_of(arrivals, commit, number) for arrivals, commit, number in turns]
            for _ in range(ROUNDS)
        ]
        with listen_cut():
            time.sleep(1)
            worst = max(max(ours.delays_of(at_any_time(skip))) for _ in range(CUTS))
    mine, bare, alone = map(statistics.median, zip(*rounds, strict=True))
    print(f"{CONSUMERS} consumers: p99 {mine * 1000:.1f} ms", end=", ")
    print(f"NOTIFY to as many: {bare * 1000:.1f} ms, to one: {alone * 1000:.1f} ms")
    print(f"{CONSUMERS} consumers: ratio {mine / bare:.2f}, to one {mine / alone:.2f}")
    print(f"{CONSUMERS} consumers, LISTEN cut: {worst * 1000:.0f} ms at the most")


def p99_of(arrivals: Arrivals, commit: Commit, number: int) -> float:
    """Return the 99th percentile of the delays of so many skip changes."""
    return p99([delay for _ in range(number) for delay in arrivals.delays_of(commit)])


def at_any_time(commit: Commit) -> Commit:
    """Return a function that commits a skip after a random pause."""

    def later() -> float:
        time.sleep(random.uniform(0, 0.5))
        return commit()

    return later


class Crowd:
    """Consumers or listeners in other processes, which print each arrival's time."""

    def __init__(self, role: str, *what: str) -> None:
        self._arrivals: dict[str, list[float]] = defaultdict(list)
        self._ready = threading.Semaphore(0)
        self._crowd = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.skip_commit_to_consumers",
                    role,
                    *what,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(PROCESSES)
        ]
        for process in self._crowd:
            threading.Thread(
                target=self._note_arrivals, args=[process], daemon=True
            ).start()
        for _ in range(CONSUMERS):
            self._ready.acquire()

    def _note_arrivals(self, process: subprocess.Popen[str]) -> None:
        """Note each skip's arrival that a process prints, until the process ends."""
        for line in process.stdout or ():
            name, _, at = line.partition(" ")
            if name == READY:
                self._ready.release()
            else:
                self._arrivals[name].append(float(at))

    def delays(self, name: str, since: float) -> list[float]:
        """Wait until a skip arrived at all consumers; return the delay of each."""
        while len(self._arrivals[name]) < CONSUMERS:
            if time.monotonic() > since + TIMEOUT_SECONDS:
                raise TimeoutError(f"it came to {len(self._arrivals[name])}")
            time.sleep(0.005)
        return [at - since for at in self._arrivals[name]]

    def end(self) -> None:
        """Wait for the end of all processes of consumers."""
        for process in self._crowd:
            process.communicate()


class PrintingSkipList(SkipList):
    """A skip list that prints when a skip takes effect."""

    def put_listed(self, skip: Skip, *, now: datetime) -> None:
        super().put_listed(skip, now=now)
        print_arrival(skip.value)


def print_arrival(name: str) -> None:
    """Print which skip or notice has just arrived, or READY, and the time.

    The process that started this one reads it.
    """
    # One write for each line: several threads print.
    sys.stdout.write(f"{name} {time.monotonic()}\n")
    sys.stdout.flush()


def consume(url: str) -> None:
    """Follow the skip list as several guards; print when each skip arrives.

    Each guard has its connection and thread.
    """
    feeds = []
    for _ in range(CONSUMERS // PROCESSES):
        feed = SkipStream(
            Client([url], os.environ["BENCH_KEY"]), on_return=lambda: None
        )
        feed.join(
            PrintingSkipList(
                topic=TOPIC,
                consumer_group=GROUP,
                handler_version=None,
                tell_applied=lambda *_: None,
            )
        )
        feed.start()
        feeds.append(feed)
    for feed in feeds:
        feed.until_loaded(TIMEOUT_SECONDS)
        print_arrival(READY)
    sys.stdin.read()  # until its end


def listen(conninfo: str, channel: str) -> None:
    """Receive Postgres notices for the skip benchmark; print when each arrives.

    Each listener has its connection and thread.
    """
    for _ in range(CONSUMERS // PROCESSES):
        threading.Thread(target=_listen, args=[conninfo, channel], daemon=True).start()
    sys.stdin.read()


def _listen(conninfo: str, channel: str) -> None:
    """Print when each Postgres notice of a channel arrives."""
    with psycopg.connect(conninfo, autocommit=True) as session:
        session.execute(f"LISTEN {channel}")
        print_arrival(READY)
        for notice in session.notifies():
            print_arrival(notice.payload)


ROLES: dict[str, Callable[..., None]] = {"consume": consume, "listen": listen}


def print_ratio_in_processes(url: str, key: str) -> None:
    """Print the p99 skip delay of fifty consumers in ten processes, and its ratio.

    The ratio is to the delay of a bare NOTIFY.
    """
    from django.db import connection

    os.environ["BENCH_KEY"] = key
    bare_notify("apart")
    ours = Crowd("consume", url)
    theirs = Crowd("listen", os.environ["DATABASE_URL"], "apart")
    names = (f"n-{number}" for number in count())

    def post(name: str) -> None:
        matcher = {"kind": "bookmark", "value": name}
        skip = {"topic": TOPIC, "consumer_group": GROUP, "matcher": matcher}
        client.post("/skips", skip, timeout=TIMEOUT_SECONDS)

    def insert(name: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO apart (value) VALUES ('a skip')")
            cursor.execute("SELECT pg_notify('apart', %s)", [name])

    def p99_in(crowd: Crowd, act: Callable[[str], None]) -> float:
        delays = []
        for name in islice(names, CHANGES):
            began = time.monotonic()
            act(name)
            delays += crowd.delays(name, began)
        return p99(delays)

    with closing(Client([url], key)) as client:
        p99_in(ours, post), p99_in(theirs, insert)  # once each to warm up
        rounds = [(p99_in(ours, post), p99_in(theirs, insert)) for _ in range(ROUNDS)]
    for crowd in (ours, theirs):
        crowd.end()
    mine, bare = map(statistics.median, zip(*rounds, strict=True))
    print(f"{CONSUMERS} in {PROCESSES} processes, from before the POST", end=": ")
    print(f"p99 {mine * 1000:.1f} ms, bare NOTIFY: {bare * 1000:.1f} ms", end=", ")
    print(f"ratio {mine / bare:.2f} (target 10)")


class Readers:
    """Many plain sockets in one event loop that read streams of one web process."""

    def __init__(self, url: str, key: str, arrivals: Arrivals) -> None:
        self._address = urlsplit(url)
        self._key = key
        self._arrivals = arrivals
        self._tasks: list[asyncio.Task[None]] = []
        self.retries = 0

    async def start(self, number: int) -> None:
        """Start the benchmark's skip-list readers; return when the last is current."""
        current = [asyncio.Event() for _ in range(number)]
        self._tasks = [
            asyncio.create_task(self._follow_forever(each)) for each in current
        ]
        await asyncio.gather(*(each.wait() for each in current))

    async def stop(self) -> None:
        """Stop all of the benchmark's readers of the skip list."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow_forever(self, current: asyncio.Event) -> None:
        """Follow the skip stream as a reader of the benchmark; repeat at its end.

        The pause before is random.
        """
        while True:
            try:
                await self._follow(current)
            except (OSError, EOFError):
                self.retries += 1
            # As the SDK does, so that refused readers do not all retry at once.
            await asyncio.sleep(random.uniform(0.1, 1.0))

    async def _follow(self, current: asyncio.Event) -> None:
        """Fetch the skip list in the benchmark, and count the skips after it."""
        host, port = self._address.hostname, self._address.port
        reader, writer = await asyncio.open_connection(host, port)
        with closing(writer):
            self._ask(writer, "/skips?")
            length = await _length_of_answer(reader)
            snapshot = json.loads(await reader.readexactly(length))
            place = f"{snapshot['epoch']}.{snapshot['revision']}"
            self._ask(writer, f"/skips/stream?after={place}&")
            await _length_of_answer(reader)
            while chunk := await reader.read(65_536):
                if b"event: ping\n" in chunk:
                    current.set()
                # A chunk is one write of the server: whole events.
                self._arrivals.note(chunk.count(b"event: skip\n"))

    def _ask(self, writer: asyncio.StreamWriter, path: str) -> None:
        """Send a GET request for the skip list as a reader of the benchmark."""
        writer.write(
            f"GET /api/v1{path}topic={TOPIC}&consumer_group={GROUP} HTTP/1.1\r\n"
            f"Host: {self._address.netloc}\r\n"
            f"Authorization: Bearer {self._key}\r\n\r\n".encode()
        )


async def _length_of_answer(reader: asyncio.StreamReader) -> int:
    """Read the head of an answer to the benchmark's reader; return its body's length.

    The length of a stream is 0. Raises EOFError for an answer other than 200.
    """
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise EOFError(head)
    match = re.search(rb"\r\ncontent-length: (\d+)", head)
    return int(match[1]) if match else 0


async def print_delays_of_thousands(url: str, key: str, commit: Commit) -> None:
    """Print the skip delays of thousands of readers of one web process."""
    arrivals = Arrivals(READERS)
    readers = Readers(url, key, arrivals)
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    await readers.start(READERS)
    took = time.perf_counter() - began
    print(
        f"{READERS:,} readers that start together: {took:.1f} s until all are current,"
        f" {readers.retries} had to ask again"
    )
    # This thread reads the sockets, so another thread commits.
    late = await loop.run_in_executor(
        None, lambda: p99_of(arrivals, commit, CHANGES_FOR_MANY)
    )
    print(f"{READERS:,} readers: p99 {late * 1000:.0f} ms")
    await readers.stop()


def main() -> None:
    logging.disable()
    key, commit = api_key(), new_skip()
    with web() as url:
        print_delays_of_fifty_consumers(url, key, commit)
        print_ratio_in_processes(url, key)
    with web() as url:
        asyncio.run(print_delays_of_thousands(url, key, commit))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        ROLES[sys.argv[1]](*sys.argv[2:])
    else:
        with product():
            main()
