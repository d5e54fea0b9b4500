"""What becomes of a message under a guard, against a double of the server."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from poisonguard import (
    Guard,
    Outcome,
    Refused,
    RetryPolicy,
    StartTimeout,
)
from poisonguard.readers.plain import PlainReader
from tests.sdk.consumer_processes import python
from tests.sdk.fake_poisonweb_server import KEY, FakeServer
from tests.sdk.guard_and_handler_builders import (
    REDRIVE,
    Failing,
    Handler,
    Message,
    guarding,
    message,
    redriven,
)
from tests.waiting import wait_until

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HANDLED, SKIPPED = Outcome.HANDLED, Outcome.SKIPPED
POISONED, RELEASE = Outcome.POISONED, Outcome.RELEASE


def only(reports: dict[str, Any]) -> dict[str, Any]:
    (report,) = reports.values()
    return dict(report)


# The start gate


def test_no_message_passes_before_the_skip_list_is_loaded(server: FakeServer) -> None:
    server.skip_list.add(kind="bookmark", value="b-1")
    handler = Handler()

    with guarding(server) as guard:
        outcomes = [guard.handle(message(b), handler) for b in ("b-1", "b-2")]

    assert outcomes == [SKIPPED, HANDLED]
    assert handler.calls == ["b-2"]


def test_does_not_start_without_the_skip_list(server: FakeServer) -> None:
    server.stop()

    with (
        pytest.raises(StartTimeout, match="is away"),
        guarding(server, start_timeout=0.3),
    ):
        pytest.fail("it started")


def test_a_guard_that_could_not_start_may_be_started_again(
    server: FakeServer, tmp_path: Path
) -> None:
    server.stop()
    guard = Guard(
        topic="orders",
        consumer_group="billing",
        url=server.url,
        api_key=KEY,
        journal=tmp_path,
        start_timeout=0.3,
    )

    with pytest.raises(StartTimeout):
        guard.start()
    server.start()
    wait_until(lambda: has_started(guard))
    with guard:
        outcome, health = guard.handle(message(), Handler()), guard.health()

    assert outcome is HANDLED
    assert health["journal"]


def has_started(guard: Guard) -> bool:
    """Try to start a guard, which waits no longer than a busy server takes."""
    with suppress(StartTimeout):
        guard.start()
        return True
    return False


def test_when_unloaded_start_begins_without_the_skip_list_and_warns(
    server: FakeServer,
) -> None:
    server.stop()
    handler = Handler()

    with guarding(server, start_timeout=0.3, when_unloaded="start") as guard:
        outcome, health = guard.handle(message(), handler), guard.health()

    assert outcome is HANDLED
    assert health["skips_age"] is None
    assert "Started without the skip list" in str(health["warnings"])


def test_a_new_version_of_the_handler_tries_what_only_the_old_one_failed_on(
    server: FakeServer, tmp_path: Path
) -> None:
    server.replays = True
    options: dict[str, Any] = {"reader": PlainReader(replays=True), "journal": tmp_path}
    handler = Handler()

    with guarding(server, version="1", **options) as old:
        handled = old.handle(message("b-0"), Handler())
        poisoned = old.handle(message(), Failing(ValueError()))
        skipped = old.handle(message(), handler)
        with guarding(server, version="1", client_name="billing-2", **options) as other:
            skipped_too = other.handle(message(), handler)
    with guarding(server, version="2", **options) as new:
        tried = new.handle(message(), handler)

    assert (handled, poisoned) == (HANDLED, POISONED)
    assert (skipped, skipped_too, tried) == (SKIPPED, SKIPPED, HANDLED)
    assert handler.calls == ["b-1"]


def test_a_message_that_is_too_large_is_released_and_its_health_says_so(
    server: FakeServer,
) -> None:
    server.faults.answer(413, times=1, path="/failures")
    large = message(body=b"x" * 1_000)

    with guarding(server, hold_for=0.1) as guard:
        outcomes = [guard.handle(large, Failing(ValueError())) for _ in range(2)]
        health = guard.health()

    batches = [b["failures"] for _, path, b in server.requests if "/failures" in path]
    assert outcomes == [RELEASE, RELEASE]
    assert ["body" in report for (report,) in batches] == [True, False, False]
    assert "1 messages are too large for Poisonweb" in str(health["warnings"])


def test_a_new_version_tries_what_the_old_one_failed_on_and_did_not_share(
    server: FakeServer, tmp_path: Path
) -> None:
    server.replays = True
    options: dict[str, Any] = {"reader": PlainReader(replays=True), "journal": tmp_path}
    failing, handler = Failing(ValueError()), Handler()

    with guarding(server, version="1", **options) as old:
        poisoned = old.handle(message(), failing)  # its first: suspected
    with guarding(server, version="1", **options) as again:
        outcome_again = again.handle(message(), handler)
    with guarding(server, version="2", **options) as new:
        tried = new.handle(message(), handler)

    assert only(server.reports.failures)["suspected"]
    assert (poisoned, outcome_again, tried) == (POISONED, POISONED, HANDLED)
    assert handler.calls == ["b-1"]


@pytest.mark.parametrize("status", ["banana", None])
def test_a_message_whose_report_got_an_unknown_status_is_released(
    status: object, server: FakeServer
) -> None:
    server.rewords = lambda answer: {**answer, "status": status}

    with guarding(server, hold_for=0.1) as guard:
        outcome = guard.handle(message(), Failing(ValueError()))

    assert outcome is RELEASE


def test_a_wrong_key_is_refused_at_the_start(server: FakeServer) -> None:
    with (
        pytest.raises(Refused, match="check the API key"),
        guarding(server, api_key="pw_wrong"),
    ):
        pytest.fail("it started")


def test_the_first_message_starts_an_unstarted_guard(server: FakeServer) -> None:
    server.skip_list.add(kind="bookmark", value="b-1")
    guard = Guard(
        topic="orders",
        consumer_group="billing",
        url=server.url,
        api_key=KEY,
        journal=None,
    )

    before = guard.health()
    outcome = guard.handle(message(), Handler())
    guard.close()

    assert before["state"] == "not started"
    assert outcome is SKIPPED


def test_a_closed_guard_releases_what_still_comes(server: FakeServer) -> None:
    handler = Handler()
    with guarding(server) as guard:
        guard.handle(message("b-1"), handler)

    outcome = guard.handle(message("b-2"), handler)

    assert outcome is RELEASE
    assert handler.calls == ["b-1"]


# Failing


def test_a_message_that_keeps_failing_is_poisoned_with_a_full_report(
    server: FakeServer,
) -> None:
    handler = Failing(ValueError("unlucky"), "b-2")
    bad = message("b-2", message_id="m-2", headers={"tag": "a"}, publisher="p", seq=7)
    options: dict[str, Any] = {"reader": PlainReader(seq="seq"), "version": "v7"}

    with guarding(server, sub_id="3", **options) as guard:
        outcomes = [guard.handle(m, handler) for m in (message(seq=6), bad)]

    report = only(server.reports.failures)
    assert outcomes == [HANDLED, POISONED]
    assert handler.calls == ["b-1", "b-2", "b-2"]
    assert base64.b64decode(report["body"]) == b'{"id": 13}'
    assert report["headers"] == [["tag", base64.b64encode(b"a").decode()]]
    assert report["exception"]["type"] == "ValueError"
    assert report["exception"]["message"] == "unlucky"
    assert {name: report[name] for name in ("cause", "attempts", "failures")} == {
        "cause": "exhausted",
        "attempts": 2,
        "failures": 2,
    }
    assert {name: report[name] for name in ("topic", "consumer_group", "sub_id")} == {
        "topic": "orders",
        "consumer_group": "billing",
        "sub_id": "3",
    }
    assert (report["message_id"], report["publisher"], report["seq"]) == ("m-2", "p", 7)
    assert report["handler_version"] == "v7"


def test_a_traceback_begins_in_the_handler(server: FakeServer) -> None:
    with guarding(server) as guard:
        guard.handle(message(), Failing(ValueError("unlucky")))

    trace = only(server.reports.failures)["exception"]["traceback"]
    assert "guard_and_handler_builders.py" in trace
    assert "poisonguard" not in trace
    assert "During handling" not in trace


def test_an_exception_whose_str_raises_is_reported(
    server: FakeServer,
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with guarding(server) as guard:
        outcome = guard.handle(message(), Failing(Mute()))

    exception = only(server.reports.failures)["exception"]
    assert outcome is POISONED
    assert exception["message"] == "<its text cannot be had: RuntimeError>"


def test_a_failure_followed_by_a_success_leaves_no_record(server: FakeServer) -> None:
    handler = Handler(OSError("away"))

    with guarding(server) as guard:
        outcome, health = guard.handle(message(), handler), guard.health()

    assert outcome is HANDLED
    assert handler.calls == ["b-1", "b-1"]
    assert (server.reports.failures, health["suspects"]) == ({}, 0)
    assert server.reports.totals() == {
        "handled": 1,
        "retried": 1,
        "failed": 0,
        "skipped": 0,
    }


def test_a_fatal_failure_is_not_retried(server: FakeServer) -> None:
    handler = Failing(KeyError("customer"))
    policy = RetryPolicy(fatal=(LookupError,))

    with guarding(server, policy=policy) as guard:
        outcome = guard.handle(message(), handler)

    assert outcome is POISONED
    assert handler.calls == ["b-1"]
    assert only(server.reports.failures)["cause"] == "fatal"


def test_alternating_exceptions_exhaust_a_message_too(server: FakeServer) -> None:
    handler = Handler(OSError(), ValueError(), OSError(), ValueError(), OSError())
    policy = RetryPolicy(max_attempts=4, base=0.001, cap=0.001)

    with guarding(server, policy=policy) as guard:
        outcome = guard.handle(message(), handler)

    assert outcome is POISONED
    assert len(handler.calls) == 4


def test_one_bad_message_of_sixteen_does_not_affect_the_others(
    server: FakeServer,
) -> None:
    handler = Failing(ValueError(), "b-7")

    with guarding(server) as guard:
        outcomes = [guard.handle(message(f"b-{n}"), handler) for n in range(16)]

    assert outcomes == [HANDLED] * 7 + [POISONED] + [HANDLED] * 8
    assert sorted(handler.calls) == sorted([*(f"b-{n}" for n in range(16)), "b-7"])


@contextmanager
def closing_amid(guard: Guard) -> Iterator[None]:
    """Close a guard as soon as a message waits for its retry."""

    def close() -> None:
        wait_until(lambda: guard.health()["retrying"])
        guard.close()

    closing = threading.Thread(target=close)
    closing.start()
    try:
        yield
    finally:
        closing.join()


def test_attempts_are_counted_across_restarts(
    server: FakeServer, tmp_path: Path
) -> None:
    handler = Failing(ValueError())
    slow = RetryPolicy(max_attempts=3, base=30, cap=30)
    quick = RetryPolicy(max_attempts=3, base=0, cap=0)

    outcomes = []
    with guarding(server, policy=slow, journal=tmp_path) as guard, closing_amid(guard):
        outcomes.append(guard.handle(message(), handler))
    later = datetime.now(UTC) + timedelta(minutes=1)
    with guarding(server, policy=quick, journal=tmp_path, clock=lambda: later) as guard:
        outcomes.append(guard.handle(message(), handler))

    assert outcomes == [RELEASE, POISONED]
    assert len(handler.calls) == 3
    assert only(server.reports.failures)["attempts"] == 3


DIE_OF_A_MESSAGE = """
import os, sys
from poisonguard import Guard
from poisonguard.readers.plain import PlainReader
with Guard(
    topic="orders", consumer_group="billing", client_name="billing-1",
    url=sys.argv[1], api_key=sys.argv[2], journal=sys.argv[3],
    reader=PlainReader(seq="seq"),
) as guard:
    told = {"bookmark": "b-1", "seq": 1, "body": b'{"id": 13}', "headers": {}}
    guard.handle(told, lambda message: os._exit(1))
"""


def test_a_death_alone_does_not_exhaust_the_attempts(
    server: FakeServer, tmp_path: Path
) -> None:
    python(DIE_OF_A_MESSAGE, server.url, KEY, tmp_path)
    handler, once = Handler(), RetryPolicy(max_attempts=1)
    wishes: dict[str, Any] = {"journal": tmp_path, "reader": PlainReader(seq="seq")}

    with guarding(server, policy=once, **wishes) as guard:
        facts = guard.health()
        outcome = guard.handle(message("b-1", seq=1), handler)

    assert facts["suspects"] == 1
    assert (outcome, handler.calls) == (HANDLED, ["b-1"])


def test_a_message_that_comes_back_early_waits_for_its_time(
    server: FakeServer, tmp_path: Path
) -> None:
    handler = Failing(ValueError())
    policy = RetryPolicy(max_attempts=3, base=30, cap=30)
    for _ in range(2):
        with (
            guarding(server, policy=policy, journal=tmp_path) as guard,
            closing_amid(guard),
        ):
            guard.handle(message(), handler)

    assert handler.calls == ["b-1"]


def test_on_first_failure_is_called_once_also_across_restarts(
    server: FakeServer, tmp_path: Path
) -> None:
    errors: list[str] = []
    policy = RetryPolicy(
        max_attempts=2,
        base=0,
        cap=0,
        on_first_failure=lambda m, error: errors.append(f"{m['bookmark']} {error}"),
    )
    handler = Failing(ValueError("no"))

    for bookmark in ("b-1", "b-2"):  # the same message, sent again
        with guarding(server, policy=policy, journal=tmp_path) as guard:
            guard.handle(message(bookmark, message_id="m-1"), handler)

    assert errors == ["b-1 no"]
    assert len(handler.calls) == 4


def test_a_poison_that_was_never_settled_is_not_run_again(
    server: FakeServer, tmp_path: Path
) -> None:
    handler = Failing(ValueError("no"))
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    times = (noon, noon + timedelta(minutes=14), noon + timedelta(minutes=16))

    outcomes, runs = [], []
    for now in times:  # each time the process was killed before it could settle
        wishes = {"journal": tmp_path, "clock": lambda now=now: now}
        with guarding(server, reader=PlainReader(seq="seq"), **wishes) as guard:
            outcomes.append(guard.handle(message("b-1", seq=1), handler))
            runs.append(len(handler.calls))

    assert outcomes == [Outcome.POISONED] * 3
    assert runs == [2, 2, 4]


def test_one_sent_again_under_the_same_id_is_tried_where_a_bookmark_is_no_place(
    server: FakeServer, tmp_path: Path
) -> None:
    handler = Handler(ValueError("no"), ValueError("no"))

    with guarding(server, journal=tmp_path, reader=PlainReader()) as guard:
        outcomes = [guard.handle(message("m-1"), handler) for _ in "ab"]

    assert outcomes == [Outcome.POISONED, Outcome.HANDLED]


def test_an_on_first_failure_that_raises_is_logged(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    def tell(_message: Message, _error: Exception) -> None:
        raise RuntimeError("no post today")

    policy = RetryPolicy(base=0, cap=0, on_first_failure=tell)

    with guarding(server, policy=policy) as guard:
        outcome = guard.handle(message(), Handler(ValueError()))

    assert outcome is HANDLED
    assert "no post today" in caplog.text


# Expiry


def test_an_expired_message_is_poisoned_with_its_body_and_not_run(
    server: FakeServer,
) -> None:
    handler = Handler()
    old = message(enqueued_at=NOON - timedelta(days=7))
    new = message("b-2", enqueued_at=NOON - timedelta(days=7, seconds=-1))
    reader = PlainReader(enqueued_at="enqueued_at")

    with guarding(server, reader=reader, clock=lambda: NOON) as guard:
        outcomes = [guard.handle(m, handler) for m in (old, new)]

    report = only(server.reports.failures)
    assert outcomes == [POISONED, HANDLED]
    assert handler.calls == ["b-2"]
    assert (report["cause"], report["attempts"]) == ("expired", 0)
    assert base64.b64decode(report["body"]) == old["body"]


def test_a_retry_due_after_the_deadline_is_poison_now(server: FakeServer) -> None:
    policy = RetryPolicy(base=300, cap=300, expire_after=60)

    with guarding(server, policy=policy) as guard:
        outcome = guard.handle(message(), Failing(ValueError()))

    report = only(server.reports.failures)
    assert outcome is POISONED
    assert (report["cause"], report["attempts"]) == ("expired", 1)
    assert report["exception"]["type"] == "ValueError"


@pytest.mark.parametrize("replays", [True, False])
def test_replayed_and_redriven_messages_do_not_expire_by_age(
    server: FakeServer, *, replays: bool
) -> None:
    handler = Handler()
    old: Message = {"enqueued_at": NOON - timedelta(days=700)}
    old_message = message(**old) if replays else redriven(**old)
    reader = PlainReader(enqueued_at="enqueued_at", replays=replays)

    with guarding(server, reader=reader, clock=lambda: NOON) as guard:
        outcome = guard.handle(old_message, handler)

    assert outcome is HANDLED


# Skips


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bookmark", "b-1"),
        ("message_id", "m-1"),
        ("body_digest", hashlib.sha256(b'{"id": 13}').hexdigest()),
        ("rule", {"header": "X-Tag", "equals": "bad"}),
        ("rule", {"pointer": "/id", "equals": 13}),
    ],
)
def test_a_listed_message_is_skipped_and_the_skip_counted(
    server: FakeServer, kind: str, value: object
) -> None:
    skip = server.skip_list.add(kind=kind, value=value)
    handler = Handler()
    named = message(message_id="m-1", headers={"x-tag": "bad"})
    other = message("b-2", message_id="m-2", body=b"{}", headers={"x-tag": "good"})

    with guarding(server) as guard:
        outcomes = [guard.handle(m, handler) for m in (named, other, named)]
    server.until(lambda: server.reports.applied[skip["id"]] == 2)

    assert outcomes == [SKIPPED, HANDLED, SKIPPED]
    assert handler.calls == ["b-2"]
    assert server.reports.totals()["skipped"] == 2


def test_a_skip_is_honoured_though_its_message_was_fetched_before(
    server: FakeServer,
) -> None:
    fetched, handler = [message("b-1"), message("b-2")], Handler()

    with guarding(server) as guard:
        guard.handle(fetched[0], handler)
        skip = server.skip_list.add(kind="bookmark", value="b-2")
        server.until(lambda: guard.health()["skips"])
        skipped = guard.handle(fetched[1], handler)
        server.skip_list.remove(skip["id"])
        server.until(lambda: not guard.health()["skips"])
        unskipped = guard.handle(fetched[1], handler)

    assert (skipped, unskipped) == (SKIPPED, HANDLED)


def test_own_poison_is_skipped_at_once_where_the_topic_replays(
    server: FakeServer, tmp_path: Path
) -> None:
    handler = Failing(ValueError(), "b-2")
    replaying = {"reader": PlainReader(replays=True)}

    with guarding(server, spool=tmp_path, when_away="spool", **replaying) as guard:
        guard.handle(message("b-1"), handler)
        server.stop()
        outcomes = [guard.handle(message("b-2"), handler) for _ in "ab"]
        server.start()
        server.until(lambda: server.reports.failures)

    assert outcomes == [POISONED, SKIPPED]
    assert only(server.reports.failures)["replays"] is True


def test_a_message_sent_again_to_a_queue_is_not_skipped(
    server: FakeServer,
) -> None:
    handler = Failing(ValueError())

    with guarding(server) as guard:
        outcomes = [guard.handle(message(), handler) for _ in "ab"]

    assert outcomes == [POISONED, POISONED]


# Redriven messages


def test_a_redriven_message_passes_the_skip_of_its_poison_and_is_confirmed(
    server: FakeServer,
) -> None:
    server.skip_list.add(kind="message_id", value="m-1")
    handler = Handler()

    with guarding(server) as guard:
        outcomes = [
            guard.handle(build(message_id="m-1"), handler)
            for build in (message, redriven)
        ]
    server.until(lambda: server.reports.confirmations)

    assert outcomes == [SKIPPED, HANDLED]
    assert handler.calls == ["b-9"]
    assert set(server.reports.confirmations) == {REDRIVE}


def test_a_rule_holds_for_redriven_messages_too(server: FakeServer) -> None:
    server.skip_list.add(kind="rule", value={"pointer": "/id", "equals": 13})

    with guarding(server) as guard:
        outcome = guard.handle(redriven(), Handler())

    assert outcome is SKIPPED
    assert server.reports.confirmations == {}


@pytest.mark.parametrize("forged", ["", "x", REDRIVE.upper(), REDRIVE + "!"])
def test_a_forged_redrive_header_does_not_pass_a_skip(
    server: FakeServer, forged: str
) -> None:
    server.skip_list.add(kind="bookmark", value="b-1")
    bad = message(headers={"x-poisonweb-redrive": forged})

    with guarding(server) as guard:
        outcome = guard.handle(bad, Handler())

    assert outcome is SKIPPED


@pytest.mark.parametrize("message_id", ["m-1", None])
def test_a_copy_of_a_redriven_message_is_dropped_also_after_a_restart(
    server: FakeServer, tmp_path: Path, message_id: str | None
) -> None:
    handler = Handler()
    outcomes = []

    for bookmark in ("b-8", "b-9"):
        with guarding(server, journal=tmp_path) as guard:
            copy = redriven(bookmark, message_id=message_id)
            outcomes.append(guard.handle(copy, handler))

    assert outcomes == [HANDLED, SKIPPED]
    assert handler.calls == ["b-8"]


def test_a_redriven_message_that_fails_again_is_reported_as_the_same(
    server: FakeServer,
) -> None:
    with guarding(server) as guard:
        outcome = guard.handle(redriven(), Failing(ValueError()))

    assert outcome is POISONED
    assert only(server.reports.failures)["redrive"] == REDRIVE
    assert server.reports.confirmations == {}


# When Poisonweb is away


def test_holds_a_poison_while_the_server_is_away_and_then_releases_it(
    server: FakeServer,
) -> None:
    handler = Failing(ValueError(), "b-2")
    kept_alive: list[Message] = []
    states: list[object] = []

    def keep_alive(one_message: Message) -> None:
        kept_alive.append(one_message)
        states.append(guard.health()["state"])

    with guarding(server, hold_for=3.0, keep_alive=keep_alive) as guard:
        guard.handle(message("b-1"), handler)
        server.stop()
        released = guard.handle(message("b-2"), handler)
        server.start()
        poisoned = guard.handle(message("b-2"), handler)

    assert (released, poisoned) == (RELEASE, POISONED)
    assert kept_alive[0]["bookmark"] == "b-2"
    assert {*states} == {"holding"}
    assert handler.calls == ["b-1", "b-2", "b-2"]  # not run once more when it returned
    assert only(server.reports.failures)["exception"]["type"] == "ValueError"


def test_a_report_whose_answer_was_lost_counts_once(
    server: FakeServer,
) -> None:
    handler = Failing(ValueError())
    server.faults.lose_answers(10**9)

    with guarding(server, hold_for=0.5) as guard:
        released = guard.handle(message(), handler)
        server.faults.recover()
        poisoned = guard.handle(message(), handler)

    assert (released, poisoned) == (RELEASE, POISONED)
    assert len(server.reports.failures) == 1


def test_a_message_that_waits_is_kept_alive_about_thrice_within_its_lease(
    server: FakeServer,
) -> None:
    kept_alive: list[Message] = []
    policy = RetryPolicy(max_attempts=2, base=1, cap=1)

    with guarding(
        server, policy=policy, lease=0.6, keep_alive=kept_alive.append
    ) as guard:
        outcome = guard.handle(message(), Handler(OSError()))

    assert outcome is HANDLED
    assert 1 <= len(kept_alive) <= 5


def test_spools_a_poison_while_the_server_is_away(
    server: FakeServer, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"when_away": "spool", "spool": tmp_path}

    with guarding(server, **options) as guard:
        server.stop()
        outcome = guard.handle(message(), Failing(ValueError()))
        spooled = guard.health()["spooled"]
        server.start()
        server.until(lambda: server.reports.failures)

    assert outcome is POISONED
    assert spooled == 1


def test_a_poison_that_the_server_rejects_is_not_settled(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.reports.rejects = lambda _: "body is too large: raise POISONWEB_BODY_LIMIT"

    with guarding(server, hold_for=0.1) as guard:
        outcome = guard.handle(message(), Failing(ValueError()))

    assert outcome is RELEASE
    assert "raise POISONWEB_BODY_LIMIT" in caplog.text


FILL_THE_DISK = """
import resource, sys
from collections import Counter
from poisonguard import Guard, Outcome, RetryPolicy
with Guard(
    topic="orders", consumer_group="billing", url=sys.argv[1], api_key=sys.argv[2],
    journal=sys.argv[3], policy=RetryPolicy(max_attempts=2, base=0.001, cap=0.001),
    breaker=None,
) as guard:
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    def fail(message):
        raise ValueError
    def handle(n, handler):
        told = {"bookmark": str(n) * 2_000, "body": b"{}", "headers": {}}
        return guard.handle(told, handler)
    failed = [handle(n, fail) for n in range(10**5, 10**5 + 200)]
    handled = [handle(n, lambda message: None) for n in range(100)]
    print(Counter(failed)[Outcome.RELEASE] > 0, set(failed[-50:]), set(handled))
"""


def test_a_message_that_fails_is_released_while_its_attempts_cannot_be_written(
    server: FakeServer, tmp_path: Path
) -> None:
    output = python(FILL_THE_DISK, server.url, KEY, tmp_path)

    assert output == f"True { {RELEASE} } { {HANDLED} }\n"


# What is no failure of the message


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, GeneratorExit])
def test_an_interruption_is_raised_and_charges_no_message(
    server: FakeServer, interruption: type[BaseException]
) -> None:
    handler = Handler(interruption())

    with guarding(server) as guard:
        with pytest.raises(interruption):
            guard.handle(message(), handler)
        health = guard.health()
        outcome = guard.handle(message(), handler)

    assert (health["suspects"], health["in_flight"]) == (0, 0)
    assert outcome is HANDLED


def test_a_second_sys_exit_makes_a_message_poison(
    server: FakeServer, tmp_path: Path
) -> None:
    handler = Handler(SystemExit(3), SystemExit(0))

    for _ in "ab":
        with guarding(server, journal=tmp_path) as guard, pytest.raises(SystemExit):
            guard.handle(message(), handler)
    with guarding(server, journal=tmp_path) as guard:
        outcome = guard.handle(message(), handler)

    report = only(server.reports.failures)
    assert outcome is POISONED
    assert handler.calls == ["b-1", "b-1"]
    assert (report["cause"], report["crashes"]) == ("crash", 2)
    assert report["exception"]["message"] == "The handler called sys.exit(0)"


def test_a_killer_is_not_run_while_its_skip_is_on_its_way_to_the_other_processes(
    server: FakeServer, tmp_path: Path
) -> None:
    handler = Handler(None, SystemExit(1), None, SystemExit(1))
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    wishes = {"journal": tmp_path, "reader": PlainReader(replays=True)}

    outcomes = []
    for now in (noon, noon, noon, noon, noon + timedelta(minutes=2)):
        with guarding(server, clock=lambda now=now: now, **wishes) as guard:
            guard.handle(message("b-0"), handler)
            with suppress(SystemExit):
                outcomes.append(guard.handle(message("killer"), handler))

    assert outcomes == [POISONED, POISONED, HANDLED]
    assert handler.calls.count("killer") == 3


def test_sys_exit_of_a_stopping_process_charges_no_message(
    server: FakeServer, tmp_path: Path
) -> None:
    def leave(_message: Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    handler = Handler()
    handler.otherwise = leave
    try:
        with guarding(server, journal=tmp_path) as guard:
            guard.handle(message("b-1"), handler)
            with pytest.raises(SystemExit):
                guard.handle(message("b-2"), Handler(SystemExit(0)))
            health = guard.health()
        after = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert numbers == [signal.SIGTERM]
    assert (health["state"], health["suspects"]) == ("stopping", 0)
    assert after != before
    assert getattr(after, "__name__", "") == "<lambda>"
