"""`python -m poisonguard.sweeper`: sends what waits in an outbox, until SIGTERM.

It needs the producer's database and a broker. With a Poisonweb it reports the rows
that cannot be sent. `--settle` carries out what people decided there about their
messages, and ends.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from importlib import import_module
from types import FrameType
from urllib.parse import urlsplit

from poisonguard.contract import NAME_LIMIT, is_name
from poisonguard.errors import GuardError, Misconfigured
from poisonguard.locks.postgres import PostgresLocks
from poisonguard.outbox.outcome import Publish
from poisonguard.outbox.sweeping.connection import (
    Connect,
    OutboxConnection,
    connecting_to,
)
from poisonguard.outbox.sweeping.decisions_on_quarantined_rows import Settled, settle
from poisonguard.outbox.sweeping.inspection import inspect
from poisonguard.outbox.sweeping.psycopg_import import (
    conninfo_to_dict,
    make_conninfo,
    psycopg,
)
from poisonguard.outbox.sweeping.quarantined_rows_as_failure_reports import (
    PoisonwebReports,
)
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.sweeper import Sweeper
from poisonguard.processes.signal_safe_event import SignalSafeEvent
from poisonguard.server.http_client import Client

log = logging.getLogger(__name__)

PROGRAM = "python -m poisonguard.sweeper"
DEFAULTS = SweeperSettings()
WRONG_ARGUMENTS = 2
NOT_SETTLED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the outbox sweeper until SIGTERM or SIGINT; return the exit status."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    options = _parser().parse_args(arguments)
    try:
        if options.settle is not None:
            return _settle(options)
        sweeper, connect, settings = _sweeper(options)
    except (GuardError, ImportError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return WRONG_ARGUMENTS
    stop = _stop_at_signals()
    _log_findings(connect, settings)
    sweeper.run(stop)
    log.info("The sweeper has ended")
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog=PROGRAM, description=__doc__)
    add = parser.add_argument
    environ = os.environ.get
    add("--dsn", default=environ("POISONGUARD_OUTBOX_DSN"), help="of the producer")
    add("--schema", help="where the tables are; the search path tells otherwise")
    add("--broker", default=environ("POISONGUARD_OUTBOX_BROKER"), help="amqp or redis")
    add("--publish", help="module:function in place of --broker")
    add("--server", default=environ("POISONGUARD_URL"), help="of Poisonweb")
    add("--key", default=environ("POISONGUARD_API_KEY"), help="better as a variable")
    add("--name", help="of the outbox in Poisonweb: DATABASE.SCHEMA otherwise")
    add("--window", type=int, default=DEFAULTS.window_rows, help="rows sent at once")
    add("--poll", type=float, default=DEFAULTS.poll, help="seconds between looks")
    add("--rows-for", type=float, default=7, help="days that sent rows stay")
    add("--ids-for", type=float, default=30, help="days that their ids stay")
    add("--settle", choices=[*map(str, Settled)], help="what --rows become, at once")
    add("--rows", type=int, nargs="+", default=[], help="numbers of quarantined rows")
    return parser


def _settle(options: Namespace) -> int:
    """Bring quarantined outbox rows into a state; print what became of each row.

    Return the exit status.
    """
    if not options.rows:
        raise Misconfigured("Give --rows with --settle: the numbers of the rows.")
    settings = SweeperSettings(schema=options.schema)
    target, is_complete = Settled(options.settle), True
    try:
        connection = OutboxConnection(connecting_to(_conninfo(options)), settings)
        with closing(connection):
            for row_id in options.rows:
                is_settled = settle(connection, row_id, target)
                is_complete = is_complete and is_settled
                words = target if is_settled else "not changed: it is not quarantined"
                sys.stdout.write(f"row {row_id} is {words}\n")
    except psycopg.Error as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return NOT_SETTLED
    return 0 if is_complete else NOT_SETTLED


def _sweeper(options: Namespace) -> tuple[Sweeper, Connect, SweeperSettings]:
    settings = SweeperSettings(
        schema=options.schema,
        window_rows=options.window,
        poll=options.poll,
        rows_for=_days("--rows-for", options.rows_for),
        ids_for=_days("--ids-for", options.ids_for),
    )
    conninfo = _conninfo(options)
    connect = connecting_to(conninfo)
    sweeper = Sweeper(
        connect,
        PostgresLocks(conninfo),
        _publisher(options),
        reporter=_reporter(options, conninfo),
        settings=settings,
    )
    return sweeper, connect, settings


def _days(option: str, days: float) -> timedelta:
    try:
        return timedelta(days=days)
    except (ValueError, OverflowError):
        raise Misconfigured(f"{option} is {days}: give a number of days.") from None


def _conninfo(options: Namespace) -> str:
    """Return the address of the sweeper's outbox database, or raise Misconfigured.

    With --schema it has the search path to the lock's tables.
    """
    if options.dsn is None:
        raise Misconfigured("Give --dsn, or set POISONGUARD_OUTBOX_DSN.")
    try:
        values = conninfo_to_dict(options.dsn)
        if options.schema is None:
            return make_conninfo(options.dsn)
        path = options.schema.replace('"', '""')
        search_path = f'-csearch_path="{path}",public'.replace(" ", "\\ ")
        before = values.get("options") or ""
        return make_conninfo(options.dsn, options=f"{before} {search_path}".strip())
    except psycopg.ProgrammingError:
        # Its text quotes the address, with the password.
        raise Misconfigured(
            "--dsn cannot be used: give postgresql://USER:PASSWORD@HOST/DATABASE."
        ) from None


def _publisher(options: Namespace) -> Publish:
    if (options.publish is None) == (options.broker is None):
        raise Misconfigured("Give either --broker or --publish.")
    if options.publish is not None:
        return _function(options.publish)
    try:
        return _built_in(urlsplit(options.broker).scheme, options.broker)
    except ValueError:
        # Its text quotes parts of the address, also of the password.
        raise Misconfigured(
            "--broker cannot be used: give amqp://USER:PASSWORD@HOST:PORT/VHOST or"
            " redis://USER:PASSWORD@HOST:PORT/NUMBER, in a password with / as %2F, @ as"
            " %40 and so on."
        ) from None


def _built_in(scheme: str, url: str) -> Publish:
    """Return a built-in publisher; import only the broker client that it needs."""
    if scheme in {"amqp", "amqps"}:
        from poisonguard.outbox.publishers.pika import PikaPublisher  # noqa: PLC0415

        return PikaPublisher(url)
    if scheme in {"redis", "rediss", "unix"}:
        from poisonguard.outbox.publishers.redis_streams import (  # noqa: PLC0415
            RedisStreamsPublisher,
        )

        return RedisStreamsPublisher(url)
    raise Misconfigured(
        "--broker is neither amqp:// nor redis://: give --publish for another broker."
    )


def _function(path: str) -> Publish:
    module, _, name = path.partition(":")
    function: Callable[..., object] | None = getattr(import_module(module), name, None)
    if not callable(function):
        raise Misconfigured(f"--publish is {path}: give module:function.")
    return function  # type: ignore[return-value]


def _reporter(options: Namespace, conninfo: str) -> PoisonwebReports | None:
    if options.server is None:
        log.warning("No --server: rows that cannot be sent are only marked there")
        return None
    database = conninfo_to_dict(conninfo).get("dbname") or "outbox"
    name = options.name or f"{database}.{options.schema or 'public'}"[:NAME_LIMIT]
    if not is_name(name):
        raise Misconfigured(f"--name is {name!r}: give 1 to {NAME_LIMIT} characters.")
    if options.key is None:
        raise Misconfigured("Give --key, or set POISONGUARD_API_KEY.")
    urls = [url.strip() for url in options.server.split(",")]
    return PoisonwebReports(Client(urls, options.key), outbox=name)


def _log_findings(connect: Connect, settings: SweeperSettings) -> None:
    """Log what is wrong with the outbox's tables: statements may fail until mended."""
    for finding in inspect(connect, settings):
        log.log(
            logging.ERROR if finding.is_blocking else logging.WARNING,
            "%s: %s. Remedy: %s%s",
            *(finding.kind.value, finding.detail, finding.remedy),
            f"\n{finding.sql}" if finding.sql else "",
        )


def _stop_at_signals() -> SignalSafeEvent:
    stop = SignalSafeEvent()

    def set_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, set_stop)
    return stop


if __name__ == "__main__":
    sys.exit(main())
