"""Find the outbox that has a table already: two would send it to two brokers.

One server has several names, so the servers are asked which table an outbox has. Where
one does not answer, the addresses are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from apps.core.errors import PoisonwebError
from apps.outbox import outbox_row_decisions
from apps.outbox.models import Outbox
from apps.outbox.producer_database_url import ProducerDatabase
from poisonguard.outbox.sweeping.table_names import Tables

# All servers are asked at the same time, as far as these threads go.
THREADS = 16
ANSWER_SECONDS = 5.0
USUAL_SCHEMA = "public"
# Copies of a server have its numbers, but did not start in the same microsecond.
READ_TABLE = """
SELECT extract(epoch FROM pg_postmaster_start_time())::text,
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
    to_regclass(%(table)s)::oid::bigint
"""

ServerTable = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Where a table is, as the settings of its outbox have it."""

    host: str
    port: int
    database: str
    schema: str


class TableOwners:
    """What the servers said: whether other outboxes have the table of a new one.

    Making it waits for databases: never do that in a transaction.
    """

    def __init__(self, *, url: str, schema: str, others: Sequence[Outbox]) -> None:
        self.url, self.schema = url, schema
        self._address = _address_of(url, schema)
        self._verdicts = _verdicts(Outbox(url=url, schema=schema), others)

    def first_of(self, others: Iterable[Outbox]) -> Outbox | None:
        """Return the first of these outboxes that has the new one's table; else None.

        Their servers were asked; where one did not answer, the stored addresses, as
        they are now, are compared.
        """
        return next((each for each in others if self._has_table(each)), None)

    def _has_table(self, other: Outbox) -> bool:
        verdict = self._verdicts.get((other.pk, other.version))
        if verdict is not None:
            return verdict
        address = _address_of(other.url, other.schema)
        return address is not None and address == self._address


def _verdicts(own: Outbox, others: Sequence[Outbox]) -> Mapping[tuple[int, int], bool]:
    """Compare the tables of other outboxes with that of a new outbox.

    Returns whether they are the same table, by number and version of the other outbox;
    one whose server does not answer in time is missing.
    """
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="outbox tables")
    try:
        answers = [pool.submit(_read_table, each) for each in (own, *others)]
        wait(answers, timeout=ANSWER_SECONDS)
        table, *tables = map(_answer, answers)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return {
        (each.pk, each.version): other == table
        for each, other in zip(others, tables, strict=True)
        if table is not None and other is not None
    }


def _answer(future: Future[ServerTable | None]) -> ServerTable | None:
    return future.result() if future.done() and not future.cancelled() else None


def _read_table(outbox: Outbox) -> ServerTable | None:
    """Ask an outbox's server which table it has; None where it does not say."""
    try:
        with outbox_row_decisions.session(outbox) as connection:
            values = {"table": Tables(outbox.schema or None).outbox}
            row = connection.execute(READ_TABLE, values).fetchone()
    except PoisonwebError:
        return None
    return None if row is None or row[2] is None else (row[0], row[1], row[2])


def _address_of(url: str, schema: str) -> TableAddress | None:
    """Return the address of an outbox's table by its settings.

    It is None where the database's stored address cannot be read here, as without its
    variable.
    """
    try:
        database = ProducerDatabase.read(url)
    except PoisonwebError:
        return None
    return TableAddress(
        host=database.host.lower().rstrip("."),
        port=database.port,
        database=database.name,
        schema=schema or USUAL_SCHEMA,
    )
