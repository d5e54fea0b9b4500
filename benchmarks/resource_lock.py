"""An uncontended `ResourceLock`, against what Postgres itself offers.

The baseline is a round trip of `pg_advisory_lock` and one of `pg_advisory_unlock`: no
queue that outlives a wait, no fence, no word about a loss. The lock commits a ticket,
durably, looks for earlier ones, deletes the ticket and calls the next. So the second
baseline writes and deletes a row besides. Postgres is durable here, as in operation.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import psycopg

from benchmarks._benchmark_harness import compare
from poisonguard.locks import ResourceLock
from poisonguard.locks.postgres import PostgresLocks, schema
from poisonweb.embedded import postgres, process_control
from poisonweb.embedded.free_ports import free_port

NUMBER = 300


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="pw-bench-") as name:
        folder, port = Path(name) / "postgres", free_port()
        postgres.prepare(folder)
        program = postgres.program(folder, port=port)
        with process_control.running(program, folder=folder):
            run(postgres.url(folder, port=port))


def run(dsn: str) -> None:
    lock = ResourceLock("invoices", PostgresLocks(dsn))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(schema())
        connection.execute("CREATE TABLE holders (name text)")

        def locked() -> None:
            for _ in range(NUMBER):
                with lock:
                    pass

        def advisory() -> None:
            for _ in range(NUMBER):
                connection.execute("SELECT pg_advisory_lock(1)")
                connection.execute("SELECT pg_advisory_unlock(1)")

        def advisory_with_row() -> None:
            for _ in range(NUMBER):
                connection.execute("SELECT pg_advisory_lock(1)")
                connection.execute("INSERT INTO holders VALUES ('us')")
                connection.execute("DELETE FROM holders")
                connection.execute("SELECT pg_advisory_unlock(1)")

        compare(
            "acquire and release",
            number=NUMBER,
            ours=locked,
            baseline=advisory,
            named="pg_advisory_lock and unlock",
        )
        compare(
            "acquire and release",
            number=NUMBER,
            ours=locked,
            baseline=advisory_with_row,
            named="the same with a row",
        )
    lock.destroy()


if __name__ == "__main__":
    main()
