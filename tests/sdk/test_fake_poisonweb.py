"""The fake Poisonweb that users get for their tests: it keeps the protocol, too."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poisonguard import Guard, Outcome, RetryPolicy
from poisonguard.readers.plain import PlainReader
from poisonguard.server.http_client import Client
from poisonguard.testing import FakePoisonweb
from poisonguard_conformance.check_server_command import main

REDRIVE = "123e4567-e89b-12d3-a456-426614174000.0a1b"


@pytest.fixture
def poisonweb() -> Iterator[FakePoisonweb]:
    with FakePoisonweb() as poisonweb:
        yield poisonweb


@pytest.fixture
def guard(poisonweb: FakePoisonweb) -> Iterator[Guard]:
    with guarding(poisonweb) as guard:
        yield guard


def guarding(poisonweb: FakePoisonweb, **options: Any) -> Guard:
    return Guard(
        topic="orders",
        consumer_group="billing",
        url=poisonweb.url,
        api_key=poisonweb.key,
        journal=None,
        policy=RetryPolicy(max_attempts=1),
        **{"hold_for": 20.0, **options},
    )


def message(bookmark: str, **headers: str) -> dict[str, Any]:
    return {"bookmark": bookmark, "body": b'{"id": 13}', "headers": headers}


def fail(_: object) -> None:
    raise ValueError("not this one")


def handle(_: object) -> None:
    """Do what a good handler does."""


def test_the_fake_passes_every_check_of_the_protocol(
    poisonweb: FakePoisonweb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text(poisonweb.key)
    arguments = ("--url", poisonweb.url, "--api-key-file", str(tmp_path / "key"))

    status = main([*arguments, "--patience", "20"])

    said = capsys.readouterr().out
    assert status == 0, said
    assert re.search(r"^\d+ ok, 0 failed, 0 not checked", said, re.MULTILINE)


def test_the_fake_shows_what_it_received(poisonweb: FakePoisonweb) -> None:
    mark = poisonweb.requeue()
    with guarding(poisonweb) as guard:
        again = message("2", **{"x-poisonweb-redrive": mark})
        outcomes = [guard.handle(message("1"), fail), guard.handle(again, handle)]
        guard.close(60)  # by itself it would wait for five seconds only

    (failure,) = poisonweb.failures
    (confirmation,) = poisonweb.confirmations
    assert outcomes == [Outcome.POISONED, Outcome.HANDLED]
    assert (failure.bookmark, failure.body) == ("1", b'{"id": 13}')
    assert failure.exception is not None
    assert failure.exception.message == "not this one"
    assert confirmation.redrive == mark
    assert poisonweb.counts == {"handled": 1, "failed": 1, "skipped": 0, "retried": 0}


def test_a_bad_heartbeat_is_rejected_as_the_server_does(
    poisonweb: FakePoisonweb,
) -> None:
    client = Client([poisonweb.url], poisonweb.key)

    body = {"counters": [], "guards": [{"client_name": "billing-1"}]}
    [answer] = client.post("/counters", body)["guards"]

    assert (answer["status"], answer["pointer"]) == ("rejected", "/reporter")


def test_a_foreign_mark_confirms_nothing(
    poisonweb: FakePoisonweb,
) -> None:
    with guarding(poisonweb) as guard:
        guard.handle(message("2", **{"x-poisonweb-redrive": REDRIVE}), handle)

    assert poisonweb.confirmations == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [("bookmark", "1"), ("rule", {"pointer": "/id", "equals": 13})],
)
def test_a_skip_and_its_end_reach_a_guard_that_runs(
    poisonweb: FakePoisonweb, guard: Guard, kind: str, value: object
) -> None:
    skip = poisonweb.skip("orders", value, kind=kind)
    poisonweb.wait_for(lambda: len(guard.skips) == 1)
    skipped = guard.handle(message("1"), handle)
    poisonweb.unskip(skip)
    poisonweb.wait_for(lambda: len(guard.skips) == 0)

    assert (skipped, guard.handle(message("1"), handle)) == ("skipped", "handled")
    assert poisonweb.skips == []


def test_while_it_is_away_a_poison_is_held_and_then_released(
    poisonweb: FakePoisonweb,
) -> None:
    with guarding(poisonweb, hold_for=0.2) as guard:
        with poisonweb.away():
            outcome = guard.handle(message("1"), fail)
        poisonweb.wait_for(lambda: guard.handle(message("1"), fail) is Outcome.POISONED)

    assert outcome is Outcome.RELEASE
    assert [failure.bookmark for failure in poisonweb.failures] == ["1"]


def test_a_message_whose_report_is_rejected_is_released(
    poisonweb: FakePoisonweb, guard: Guard
) -> None:
    poisonweb.reject(lambda report: report.bookmark == "1")

    outcomes = [guard.handle(message(name), fail) for name in "12"]

    assert outcomes == [Outcome.RELEASE, Outcome.POISONED]
    assert [failure.bookmark for failure in poisonweb.failures] == ["2"]


def test_poison_on_a_topic_that_replays_is_skipped_by_others(
    poisonweb: FakePoisonweb,
) -> None:
    options = {"reader": PlainReader(replays=True)}
    with (
        guarding(poisonweb, client_name="one", **options) as one,
        guarding(poisonweb, client_name="two", **options) as two,
    ):
        one.handle(message("0"), handle)  # it is sound
        one.handle(message("1"), fail)
        poisonweb.wait_for(lambda: len(two.skips) == 1)

        assert two.handle(message("1"), handle) is Outcome.SKIPPED
    (skip,) = poisonweb.skips
    assert skip.value == "1"


def test_a_mark_of_any_length_keeps_no_message_from_being_poison(
    poisonweb: FakePoisonweb, guard: Guard
) -> None:
    forged = message("1", **{"x-poisonweb-redrive": "x" * 1_000_000})

    outcome = guard.handle(forged, fail)

    (failure,) = poisonweb.failures
    assert (outcome, failure.redrive) == (Outcome.POISONED, None)
    assert len(failure.headers[0][1]) == 1_000_000


def test_a_fake_that_is_away_keeps_its_port_from_others(
    poisonweb: FakePoisonweb,
) -> None:
    port = int(poisonweb.url.rpartition(":")[2])

    with poisonweb.away(), pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))

    assert poisonweb.url.endswith(f":{port}")
