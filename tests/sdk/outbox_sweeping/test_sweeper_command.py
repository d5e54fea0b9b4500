"""`python -m poisonguard.sweeper`, its publishers, and its reports to Poisonweb."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from poisonguard.errors import Away
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendKind
from poisonguard.outbox.postgres_schema import schema
from poisonguard.outbox.publishers.redis_streams import RedisStreamsPublisher
from poisonguard.outbox.sweeping.quarantined_rows_as_failure_reports import (
    PoisonwebReports,
)
from poisonguard.server.http_client import Client
from poisonguard.sweeper import main
from poisonweb.embedded.free_ports import free_port
from tests.sdk.fake_poisonweb_server import KEY, FakeServer
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    sweeping,
    work_until,
)
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
PUBLISH = "tests.sdk.outbox_sweeping.file_publisher:publish"


def environment(tmp_path: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "sdk")])
    sent_ids = str(tmp_path / "sent")
    return {**os.environ, "PYTHONPATH": paths, "SENT_MESSAGES": sent_ids}


@contextmanager
def command(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "poisonguard.sweeper", *arguments],
            env=environment(tmp_path),
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def message(message_id: str, body: bytes = b"body", **more: Any) -> OutboxMessage:
    names = {"producer": "shop", "message_id": message_id, "topic": "orders"}
    return OutboxMessage(body=body, **names | more)


def test_it_sends_reports_and_ends_at_sigterm(
    outbox: OutboxTables, server: FakeServer, tmp_path: Path
) -> None:
    outbox.drop_unique_index()
    outbox.put_many(100)
    rows = [outbox.put("twice", body) for body in (b"one", b"other\xff")]
    arguments = ("--dsn", outbox.dsn, "--publish", PUBLISH, "--poll", "0.05")
    with command(tmp_path, *arguments, "--server", server.url, "--key", KEY) as process:
        wait_until(
            lambda: not outbox.waiting and outbox.count("reported_at IS NOT NULL") == 2,
            describe=lambda: (tmp_path / "log").read_text()[-3_000:],
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0

    log = (tmp_path / "log").read_text()
    assert "missing unique index: ids may come twice, and 1 do" in log
    assert "CREATE UNIQUE INDEX CONCURRENTLY" in log
    assert "The sweeper has ended" in log
    sent_ids = (tmp_path / "sent").read_text().splitlines()
    assert sent_ids == [f"m-{number}" for number in range(1, 101)]
    reports = sorted(server.reports.failures.values(), key=lambda r: r["bookmark"])
    assert [base64.b64decode(report["body"]) for report in reports] == [
        b"one",
        b"other\xff",
    ]
    for report, row in zip(reports, rows, strict=True):
        assert report["topic"] == "orders"
        assert report["client_name"] == "shop"
        assert report["cause"] == "rejected"
        assert report["bookmark"].endswith(f".public:{row}")
        text = report["exception"]["message"]
        assert "two messages under one id" in text
        assert "application shop" in text


def test_it_looks_for_its_tables_in_a_schema(
    outbox: OutboxTables, tmp_path: Path
) -> None:
    outbox.execute('CREATE SCHEMA "the shop"')
    outbox.execute('SET search_path = "the shop"')
    outbox.connection.execute(schema())
    outbox.put_many(3)
    arguments = ("--dsn", outbox.dsn, "--publish", PUBLISH, "--poll", "0.05")
    with command(tmp_path, *arguments, "--schema", "the shop"):
        wait_until(
            lambda: not outbox.waiting,
            describe=lambda: (tmp_path / "log").read_text()[-3_000:],
        )
    outbox.execute('DROP SCHEMA "the shop" CASCADE')


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ((), "Give --dsn, or set POISONGUARD_OUTBOX_DSN."),
        (("--dsn", "no address"), "--dsn cannot be used"),
        (("--dsn", "postgres//shop:secret@db/shop"), "--dsn cannot be used"),
        (("--dsn", "dbname=shop"), "Give either --broker or --publish."),
        (("--dsn", "", "--broker", "kafka://x"), "neither amqp:// nor redis://"),
        (("--dsn", "", "--broker", "amqp://u:se/cret@h"), "--broker cannot be used"),
        (("--dsn", "", "--broker", "amqp://u:secret@[h"), "--broker cannot be used"),
        (("--dsn", "", "--broker", "redis://h:secret"), "--broker cannot be used"),
        (("--dsn", "", "--publish", "os:missing"), "give module:function"),
        (("--dsn", "", "--publish", "missing_module:x"), "missing_module"),
        (("--dsn", "", "--publish", PUBLISH, "--window", "0"), "more than 0"),
        (("--dsn", "", "--publish", PUBLISH, "--poll", "inf"), "poll is over 100"),
        (("--dsn", "", "--publish", PUBLISH, "--rows-for", "nan"), "a number of days"),
        (("--dsn", "", "--publish", PUBLISH, "--ids-for", "inf"), "a number of days"),
        (
            ("--dsn", "", "--publish", PUBLISH, "--server", "http://x"),
            "Give --key, or set POISONGUARD_API_KEY.",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_a_remedy(
    tmp_path: Path, arguments: Sequence[str], remedy: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "poisonguard.sweeper", *arguments],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert "'se'" not in done.stderr


def test_reports_wait_while_poisonweb_is_away_and_sending_goes_on(
    outbox: OutboxTables, server: FakeServer
) -> None:
    server.stop()
    outbox.allow_nulls()
    bad = outbox.put("no body", None, topic="no\x01name")
    outbox.put_many(10)
    publisher = RecordingPublisher()
    reporter = PoisonwebReports(Client([server.url], KEY), outbox="shop.public")
    with sweeping(outbox.dsn, publisher, reporter=reporter) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
        outbox.put_many(10, first=11)
        work_until(sweeper, lambda: not outbox.waiting)
        assert "Away" in {error.kind for error in sweeper.errors.errors}
        assert outbox.column("reported_at", bad) is None
        server.start()
        work_until(sweeper, lambda: outbox.column("reported_at", bad))

    assert len(publisher.sent_messages) == 20
    (report,) = server.reports.failures.values()
    assert (report["topic"], report["cause"]) == ("shop.public", "undecodable")


def test_a_report_that_is_rejected_does_not_hold_up_others(
    outbox: OutboxTables, server: FakeServer
) -> None:
    outbox.allow_nulls()
    rejected, accepted = outbox.put("one", None), outbox.put("two", None)
    server.reports.rejects = lambda report: (
        "no" if report["message_id"] == "one" else None
    )
    reporter = PoisonwebReports(Client([server.url], KEY), outbox="shop.public")
    with sweeping(outbox.dsn, RecordingPublisher(), reporter=reporter) as sweeper:
        work_until(sweeper, lambda: outbox.column("reported_at", accepted))
        for _ in range(10):
            sweeper.work_once()
        kinds = {error.kind: error.count for error in sweeper.errors.errors}

    assert outbox.column("reported_at", rejected) is None
    assert kinds["report rejected"] == 1


@pytest.fixture
def redis_url() -> str:
    return os.environ["CELERY_BROKER_URL"].rsplit("/", 1)[0] + "/14"


def test_redis_streams_get_bodies_headers_and_ids(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    client.delete("orders", "text")
    client.set("text", "no stream")
    publisher = RedisStreamsPublisher(redis_url)

    outcomes = publisher(
        [
            message("m-1", b"\x00\xff", headers=((b"name", b"\xfe"),)),
            message("m-2", topic="text"),
            message("m-3"),
        ]
    )

    assert [o.kind for o in outcomes] == [
        SendKind.SENT,
        SendKind.REFUSED,
        SendKind.SENT,
    ]
    assert "WRONGTYPE" in outcomes[1].detail
    entries: Any = client.xrange("orders")
    assert [fields for _, fields in entries] == [
        {b"body": b"\x00\xff", b"name": b"\xfe", b"message_id": b"m-1"},
        {b"body": b"body", b"message_id": b"m-3"},
    ]
    publisher.close()
    client.delete("orders", "text")
    client.close()


def test_a_header_that_looks_like_the_body_is_refused_alone(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    client.delete("orders")
    publisher = RedisStreamsPublisher(redis_url, body_field="payload")

    outcomes = publisher(
        [
            message("m-1", headers=((b"body", b"no body here"),)),
            message("m-2", headers=((b"name", b"x"), (b"payload", b"false"))),
            message("m-3"),
        ]
    )

    kinds = [SendKind.SENT, SendKind.REFUSED, SendKind.SENT]
    assert [outcome.kind for outcome in outcomes] == kinds
    assert "its header 'payload' for the body: rename it" in outcomes[1].detail
    entries: Any = client.xrange("orders")
    assert [fields[b"message_id"] for _, fields in entries] == [b"m-1", b"m-3"]
    publisher.close()
    client.delete("orders")
    client.close()


def test_a_redis_that_is_away_is_away() -> None:
    publisher = RedisStreamsPublisher(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(Away, match="Redis is away"):
        publisher([message("m")])
    publisher.close()


QUARANTINE = "UPDATE poisonguard_outbox SET quarantined_at = now() WHERE row_id = %s"
IDS = "SELECT message_id FROM poisonguard_outbox_sent ORDER BY 1"


def settle_by_command(outbox: OutboxTables, target: str, *row_ids: int) -> int:
    numbers = map(str, row_ids)
    return main(["--dsn", outbox.dsn, "--settle", target, "--rows", *numbers])


def test_what_was_decided_in_triage_is_carried_out_by_the_command(
    outbox: OutboxTables, capsys: pytest.CaptureFixture[str]
) -> None:
    requeued, dropped, released, waiting = (
        outbox.put(f"m-{number}", headers=[b"name", b"\xff"]) for number in range(4)
    )
    for row_id in (requeued, dropped, released):
        outbox.execute(QUARANTINE, [row_id])

    assert settle_by_command(outbox, "sent", requeued) == 0
    assert settle_by_command(outbox, "dropped", dropped) == 0
    assert settle_by_command(outbox, "released", released, waiting, 7) == 1
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"row {released} is released",
        f"row {waiting} is not changed: it is not quarantined",
        "row 7 is not changed: it is not quarantined",
    ]

    publisher = RecordingPublisher()
    copy = "INSERT INTO poisonguard_outbox (producer, message_id, topic, body, headers)"
    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
        assert publisher.counts == {"m-2": 1, "m-3": 1}
        assert outbox.execute(IDS) == [("m-0",), ("m-2",), ("m-3",)]
        # The requeued message is recognised: a copy of it is not sent again.
        outbox.drop_unique_index()
        outbox.execute(
            f"{copy} SELECT producer, message_id, topic, body, headers"
            " FROM poisonguard_outbox WHERE row_id = %s",
            [requeued],
        )
        work_until(sweeper, lambda: not outbox.waiting)
    assert publisher.counts == {"m-2": 1, "m-3": 1}
    assert outbox.column("dropped_at", dropped) is not None
    assert settle_by_command(outbox, "quarantined", dropped) == 0
    assert outbox.column("dropped_at", dropped) is None
    assert outbox.column("quarantined_at", dropped) is not None
    assert settle_by_command(outbox, "sent", requeued) == 1


def test_settling_needs_rows_and_a_database(
    outbox: OutboxTables, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--dsn", outbox.dsn, "--settle", "sent"]) == 2
    assert "Give --rows with --settle" in capsys.readouterr().err
    away = ["--dsn", "postgresql://a:b@127.0.0.1:1/shop"]
    assert main([*away, "--settle", "sent", "--rows", "107"]) == 1
    assert "refused" in capsys.readouterr().err
