"""`Outbox.put`, against one plain INSERT into the same table without the triggers.

On one durable Postgres, with psycopg 3: each message in a transaction of its own, with
its commit, and many messages in one transaction. `put` checks what it is given, makes
an id, looks at what waits once a second, and notes the writer. The two take turns
message by message, and medians are compared, of processor time too: on a busy
machine only that has a meaning.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psycopg

from poisonguard.outbox import Outbox, postgres_schema
from poisonguard.outbox.connections import Row
from poisonguard.outbox.limits import OutboxLimits
from poisonweb.embedded import postgres, process_control
from poisonweb.embedded.free_ports import free_port

Connection = psycopg.Connection[Row]
Write = Callable[[], object]

NUMBER, WARM_UP = 800, 50
MOST = 1.4
BODY = b'{"order": 4711, "customer": "c-17", "total": "12.50"}' * 10
HEADERS = {"content-type": "application/json", "trace": "4bf92f3577b34da6a3ce929d0e"}
INSERT = """
INSERT INTO plain.poisonguard_outbox (producer, message_id, topic, key, body, headers)
VALUES (%s, %s, %s, %s, %s, %s)
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="pw-bench-") as name:
        folder, port = Path(name) / "postgres", free_port()
        postgres.prepare(folder)
        program = postgres.program(folder, port=port)
        with process_control.running(program, folder=folder):
            run(postgres.url(folder, port=port))


def run(dsn: str) -> None:
    with psycopg.connect(dsn) as ours, psycopg.connect(dsn) as theirs:
        create_tables(ours)
        limits = OutboxLimits(rows=10**9, bytes=10**12)
        outbox = Outbox(ours, producer="shop", limits=limits)
        headers = [part.encode() for pair in HEADERS.items() for part in pair]

        def put() -> None:
            outbox.put("orders", BODY, headers=HEADERS, key="c-17")

        def insert() -> None:
            values = ("shop", str(uuid4()), "orders", "c-17", BODY, headers)
            theirs.execute(INSERT, values)

        def put_and_commit() -> None:
            put()
            ours.commit()

        def insert_and_commit() -> None:
            insert()
            theirs.commit()

        for title, mine, plain in (
            ("each with its commit", put_and_commit, insert_and_commit),
            ("in one transaction", put, insert),
        ):
            compare(title, (mine, ours), (plain, theirs))


def compare(
    title: str, ours: tuple[Write, Connection], theirs: tuple[Write, Connection]
) -> None:
    """Time puts into an outbox and plain INSERTs in turn; print the medians."""
    for _ in range(WARM_UP):
        ours[0](), theirs[0]()
    pairs = [(times(*ours), times(*theirs)) for _ in range(NUMBER)]
    for number, name in enumerate(("time", "processor time")):
        put = statistics.median(mine[number] for mine, _ in pairs)
        plain = statistics.median(other[number] for _, other in pairs)
        print(
            f"{title}, {name}: put {put / 1e3:,.0f} us, plain INSERT"
            f" {plain / 1e3:,.0f} us, ratio {put / plain:.2f} (at most {MOST})"
        )


def times(write: Write, connection: Connection) -> tuple[int, int]:
    """Time a write; return its nanoseconds, and its processor time with Postgres's."""
    session = session_time(connection)
    began, thread = time.perf_counter_ns(), time.thread_time_ns()
    write()
    ended, busy = time.perf_counter_ns(), time.thread_time_ns() - thread
    return ended - began, busy + session_time(connection) - session


def session_time(connection: Connection) -> int:
    """Return the processor time of a connection's session in Postgres."""
    text = Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text()
    return int(text.split()[0])


def create_tables(connection: Connection) -> None:
    """Create an outbox, and a second one without triggers in the schema `plain`."""
    connection.execute(postgres_schema.schema())
    connection.execute("CREATE SCHEMA plain")
    connection.execute("SET search_path TO plain")
    connection.execute(postgres_schema.schema())
    connection.execute("ALTER TABLE poisonguard_outbox DISABLE TRIGGER USER")
    connection.execute("SET search_path TO public")
    connection.commit()


if __name__ == "__main__":
    main()
