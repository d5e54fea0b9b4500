"""Checkpoints: where they are written, and that they prove what the chain cannot."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from pytest_django.fixtures import Settings

from apps.audit import checkpoint_comparison, checkpointing, checkpoints, verification
from apps.audit import services as audit
from apps.audit.checkpoints import Checkpoint
from apps.audit.models import Head, LastCheckpoint
from apps.audit.services import Action
from apps.core.actor import Actor
from poisonweb.embedded.free_ports import free_port
from tests import audit_tampering
from tests.audit_tampering import TAMPERINGS, TamperedEntry

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
ROUNDS = 1000 if os.environ.get("SOAK") else 50


@pytest.fixture(autouse=True)
def folder(settings: Settings, tmp_path: Path) -> Path:
    settings.POISONWEB_VAR = tmp_path
    return tmp_path / "audit"


def decide(now: datetime, number: int = 1) -> None:
    for place in range(number):
        audit.record(
            action=Action.KEY_CREATED,
            subject=f"api_key:{place}",
            actor=Actor.user("anna"),
            now=now,
            reason="needed",
            # All entries differ: swapping two equal ones would change nothing.
            detail={"n": place, "draw": random.getrandbits(64)},
        )


def lines_of(folder: Path) -> list[str]:
    return [
        line
        for file in sorted(folder.iterdir())
        for line in file.read_text().splitlines()
    ]


def test_a_checkpoint_goes_into_log_file_and_row(
    now: datetime, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decide(now, 3)

    with caplog.at_level(logging.INFO, "apps.audit"):
        checkpoint = checkpointing.take(now=now)

    assert checkpoint is not None
    assert checkpoint.is_signed
    assert (checkpoint.seq, checkpoint.hash) == (3, bytes(Head.objects.get().hash))
    assert lines_of(folder) == [checkpoint.line]
    assert [record.getMessage() for record in caplog.records] == [
        f"audit checkpoint {checkpoint.line}"
    ]
    row = LastCheckpoint.objects.get()
    assert (row.seq, bytes(row.hash), row.at, row.trouble) == (
        3,
        checkpoint.hash,
        now,
        "",
    )


def test_only_its_owner_can_read_a_checkpoint_file(now: datetime, folder: Path) -> None:
    checkpointing.take(now=now)

    modes = {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    assert modes == {0o700, 0o600}


def test_an_unchanged_chain_gets_a_checkpoint_an_hour(now: datetime) -> None:
    decide(now)

    checkpoints_by_minute = [
        checkpointing.take(now=now + place * MINUTE) for place in range(61)
    ]

    assert [place for place, each in enumerate(checkpoints_by_minute) if each] == [
        0,
        60,
    ]


def test_a_growing_chain_gets_a_checkpoint_a_minute(now: datetime) -> None:
    seqs = []
    for place in range(3):
        decide(now)
        checkpoint = checkpointing.take(now=now + place * MINUTE)
        seqs.append(checkpoint and checkpoint.seq)

    assert seqs == [1, 2, 3]


def test_each_month_has_a_file_of_its_own_that_is_never_changed(
    now: datetime, folder: Path
) -> None:
    for month in range(3):
        decide(now)
        checkpointing.take(now=now + month * timedelta(days=31))

    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "checkpoints-2026-11.jsonl",
        "checkpoints-2026-12.jsonl",
        "checkpoints-2027-01.jsonl",
    ]


def test_a_truncated_line_does_not_spoil_the_next_one(
    now: datetime, folder: Path
) -> None:
    decide(now)
    checkpointing.take(now=now)
    path = next(folder.iterdir())
    path.write_text(path.read_text() + path.read_text()[:30])

    decide(now)
    checkpointing.take(now=now + MINUTE)

    assert [each.seq for each in checkpoints.read(path)] == [1, 2]


def test_a_failed_write_is_reported_and_tried_again(
    now: datetime, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("not a folder")

    checkpoint = checkpointing.take(now=now)

    assert checkpoint is not None
    assert checkpoint.line in caplog.text or "could not be written" in caplog.text
    assert "could not be written" in LastCheckpoint.objects.get().trouble
    folder.unlink()
    checkpointing.take(now=now + MINUTE)
    assert LastCheckpoint.objects.get().trouble == ""


def test_no_checkpoint_is_taken_without_a_head(
    now: datetime, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit_tampering.run("DELETE FROM audit_head")

    assert checkpointing.take(now=now) is None
    assert "audit_head has no row" in caplog.text
    assert not folder.exists()


@dataclass
class CheckpointReceiver:
    """A web server of the test, and the bodies that it received."""

    url: str
    status: int = 204
    bodies: list[str] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)


@pytest.fixture
def outside() -> Iterator[CheckpointReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            place.bodies.append(body.decode())
            place.headers.append(self.headers["Authorization"])
            self.send_response(place.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        host = f"127.0.0.1:{server.server_port}"
        place = CheckpointReceiver(
            url=f"http://anna:secret@{host}/checkpoints?token=hidden"
        )
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield place
        server.shutdown()
        thread.join()


def test_a_checkpoint_is_posted_to_the_address_that_is_set(
    now: datetime, outside: CheckpointReceiver, settings: Settings
) -> None:
    settings.POISONWEB_AUDIT_CHECKPOINT_URL = outside.url
    decide(now)

    checkpoint = checkpointing.take(now=now)

    assert checkpoint is not None
    assert outside.bodies == [checkpoint.line]
    assert outside.headers == ["Basic YW5uYTpzZWNyZXQ="]


@pytest.mark.parametrize("status", [302, 401, 500])
def test_a_refused_checkpoint_is_reported_and_sent_again(
    now: datetime, outside: CheckpointReceiver, settings: Settings, status: int
) -> None:
    settings.POISONWEB_AUDIT_CHECKPOINT_URL = outside.url
    outside.status = status

    checkpointing.take(now=now)

    assert LastCheckpoint.objects.get().trouble == (
        f"the checkpoint URL answers with status {status}"
    )
    outside.status = 200
    checkpointing.take(now=now + MINUTE)
    assert LastCheckpoint.objects.get().trouble == ""
    assert len(outside.bodies) == 2


def test_an_address_that_does_not_answer_is_never_quoted(
    now: datetime, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.POISONWEB_AUDIT_CHECKPOINT_URL = (
        f"http://anna:secret@127.0.0.1:{free_port()}/?t=h"
    )

    checkpointing.take(now=now)

    trouble = LastCheckpoint.objects.get().trouble
    assert trouble.startswith("the checkpoint URL does not answer (")
    assert "secret" not in trouble + caplog.text


def test_the_alarm_of_a_rewritten_chain_lasts(
    now: datetime, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decide(now, 9)
    checkpointing.take(now=now)
    audit_tampering.edit_and_hash_again(TamperedEntry(seq=4, covered=9, entries=9))

    first = checkpointing.take(now=now + MINUTE)
    decide(now)
    second = checkpointing.take(now=now + 2 * MINUTE)

    assert "the trail contradicts the checkpoint of entry 9" in caplog.text
    assert first is not None
    assert second is not None
    assert (first.contradicts, second.contradicts) == (9, 9)
    assert LastCheckpoint.objects.get().contradicts == 9


def test_nothing_is_contradicted_by_a_chain_that_only_grew(now: datetime) -> None:
    checkpointing.take(now=now)
    for place in range(1, 4):
        decide(now, place)
        checkpoint = checkpointing.take(now=now + place * MINUTE)

        assert checkpoint is not None
        assert checkpoint.contradicts is None


def signed(now: datetime) -> Checkpoint:
    head = Head.objects.get()
    return Checkpoint(at=now, seq=head.seq, hash=bytes(head.hash)).with_signature()


def grown(now: datetime, number: int) -> list[Checkpoint]:
    """Grow the chain, with a checkpoint after every few entries and the last."""
    signed_checkpoints: list[Checkpoint] = []
    done = 0
    while done < number:
        step = min(random.randint(1, 12), number - done)
        decide(now, step)
        done += step
        signed_checkpoints.append(signed(now + len(signed_checkpoints) * MINUTE))
    return signed_checkpoints


def around(signed_checkpoints: list[Checkpoint], seq: int) -> tuple[int, int]:
    """Return the seqs of the last checkpoint before an entry and the first from it."""
    before = [each.seq for each in signed_checkpoints if each.seq < seq]
    return max(before, default=0), min(
        each.seq for each in signed_checkpoints if each.seq >= seq
    )


def test_every_tampering_with_what_a_checkpoint_covers_is_found(now: datetime) -> None:
    """Checkpoints are stored elsewhere; none covers the newest entries."""
    signed_checkpoints = grown(now, 60)
    decide(now, 5)
    assert checkpoint_comparison.prove(signed_checkpoints).ok
    used = set()

    for number in range(ROUNDS):
        tamper = TAMPERINGS[number % len(TAMPERINGS)]
        seq = random.randint(1, 60)
        with transaction.atomic():
            hashed_again = tamper(TamperedEntry(seq=seq, covered=60, entries=65))
            result = checkpoint_comparison.prove(signed_checkpoints)
            transaction.set_rollback(True)
        used.add((tamper, hashed_again))
        where = (tamper.__name__, seq, result)

        assert not result.ok, where
        low = result.holds.seq if result.holds else 0
        if not hashed_again:
            assert result.first_bad == seq, where
        elif result.fails:
            assert (low, result.fails.seq) == around(signed_checkpoints, seq), where
        else:
            assert result.first_bad is not None, where
            assert low < seq <= result.first_bad, where

    assert len(used) == len(TAMPERINGS)
    assert checkpoint_comparison.prove(signed_checkpoints).ok


def test_the_two_checkpoints_around_a_rewrite_are_named(now: datetime) -> None:
    signed_checkpoints = []
    for place in range(4):
        decide(now, 10)
        signed_checkpoints.append(signed(now + place * MINUTE))
    audit_tampering.edit_and_hash_again(TamperedEntry(seq=14, covered=40, entries=40))

    said = " ".join(checkpoint_comparison.prove(signed_checkpoints).troubles)

    assert (
        "The chain contradicts the checkpoint of entry 20 (2026-11-20 12:01:00 UTC): "
        "an entry up to that one and after the checkpoint of entry 10 "
        "(2026-11-20 12:00:00 UTC) was changed, removed or added" in said
    )


def test_an_entry_that_no_checkpoint_covers_is_not_proven(now: datetime) -> None:
    """Show the limit of the proof, as the docs describe it."""
    decide(now, 10)
    signed_checkpoints = [signed(now)]
    decide(now, 3)
    audit_tampering.edit_and_hash_again(TamperedEntry(seq=12, covered=10, entries=13))
    audit_tampering.run("ALTER TABLE audit_entry ENABLE TRIGGER USER")

    result = checkpoint_comparison.prove(signed_checkpoints)

    assert result.ok
    assert result.holds == signed_checkpoints[0]


def test_a_checkpoint_signed_with_another_key_is_reported(
    now: datetime, settings: Settings
) -> None:
    decide(now, 2)
    forged = replace(signed(now), seq=1)
    settings.SECRET_KEY = "another"
    foreign = signed(now)
    settings.SECRET_KEY = "the first again"

    said = " ".join(checkpoint_comparison.prove([forged, foreign]).troubles)

    assert said.startswith("2 of the checkpoints are not signed with this SECRET_KEY")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no checkpoint",
        '{"at":',
        '{"at":1}',
        '{"at":"2026-11-20T12:00:00Z","seq":"x","hash":"00","signature":""}',
        '{"at":"2026-11-20T12:00:00Z","seq":1e999,"hash":"00","signature":""}',
        '{"at":"2026-11-20T12:00:00Z","seq":1,"hash":"0g","signature":""}',
        '{"at":"2026-11-20T12:00:00Z","seq":1,"hash":[],"signature":""}',
        '{"at":"2026-11-20T12:00:00Z","seq":1,"hash":"00"}',
        '{"at":' + "[" * 50_000,
    ],
)
def test_lines_that_are_not_checkpoints_are_ignored(line: str) -> None:
    assert Checkpoint.parse(line) is None


def test_a_signature_with_non_ascii_letters_is_invalid(now: datetime) -> None:
    line = json.loads(signed(now).line)

    read = Checkpoint.parse(
        json.dumps({**line, "signature": "é\ud800"}, separators=(",", ":"))
    )

    assert read is not None
    assert not read.is_signed


def test_the_command_proves_the_chain_from_files_folders_and_logs(
    now: datetime, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decide(now, 3)
    checkpoint = checkpointing.take(now=now)
    assert checkpoint is not None
    log = tmp_path / "worker.log"
    log.write_text(
        f"x\n2026-11-20 INFO apps.audit audit checkpoint {checkpoint.line} \n"
    )
    decide(now, 2)

    for path in (folder, next(folder.iterdir()), log):
        call_command("verify_audit", "--since", str(path))

        assert capsys.readouterr().out.splitlines()[1] == (
            "1 checkpoint hold: the entries up to 3 are proven; "
            "2 newer ones are covered by none"
        )


def test_the_command_fails_for_a_chain_that_was_cut(
    now: datetime, folder: Path
) -> None:
    decide(now, 9)
    checkpointing.take(now=now)
    audit_tampering.cut(TamperedEntry(seq=6, covered=9, entries=9))
    audit_tampering.run("ALTER TABLE audit_entry ENABLE TRIGGER USER")
    call_command("verify_audit")

    with pytest.raises(CommandError, match="The chain ends at entry 5, and the check"):
        call_command("verify_audit", "--since", str(folder))


def test_the_command_refuses_missing_checkpoint_files(
    now: datetime, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()

    with pytest.raises(CommandError, match="There is no signed checkpoint"):
        call_command("verify_audit", "--since", str(empty))
    with pytest.raises(CommandError, match="No such file"):
        call_command("verify_audit", "--since", str(tmp_path / "absent"))


def test_a_head_that_was_noted_must_still_be_in_the_chain(now: datetime) -> None:
    decide(now, 5)
    head = verification.verify().head
    decide(now, 2)
    call_command("verify_audit", "--head", head)
    audit_tampering.edit_and_hash_again(TamperedEntry(seq=4, covered=5, entries=7))
    audit_tampering.run("ALTER TABLE audit_entry ENABLE TRIGGER USER")

    with pytest.raises(CommandError, match="No entry has the hash"):
        call_command("verify_audit", "--head", head)
    with pytest.raises(CommandError, match="64 digits"):
        call_command("verify_audit", "--head", "nonsense")
