"""`Idempotency-Key`: a request acts once and its answer is replayed."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction

from apps.api import idempotency
from apps.capture.intake import services as capture
from apps.capture.models import Counter
from apps.poison.models import Failure
from apps.team.models import IdempotencyKey
from apps.team.rights import Role
from apps.triage.models import Operation
from apps.triage.services import orphaned_operations_and_expired_rows
from tests.failure_report_builders import failure, poisons
from tests.integration.api.schema_checking_client import Caller, Reply, person, program
from tests.integration.api.test_consumer_reports import MAKERS
from tests.races import on_another_connection, together

pytestmark = pytest.mark.django_db(transaction=True)


def post(caller: Caller, path: str, body: object, key: str = "k1") -> Reply:
    return caller.post(path, body, Idempotency_Key=key)


def replayed(reply: Reply) -> bool:
    return reply.response.get("Idempotent-Replayed") == "true"


def token(caller: Caller) -> str:
    reply = caller.post("operations/preview", {"verb": "drop", "q": ""})
    value: str = reply.json["token"]
    return value


@pytest.mark.parametrize("path", MAKERS)
def test_a_report_sent_twice_is_answered_the_same(
    caller: Caller, now: datetime, path: str
) -> None:
    body = {path: [MAKERS[path](now)]}

    first, second = (post(caller, path, body) for _ in range(2))

    assert first.results == second.results
    assert (replayed(first), replayed(second)) == (False, True)


def test_a_decision_sent_twice_is_one_operation(caller: Caller, now: datetime) -> None:
    poisons(now, 1)
    body = {"token": token(caller), "reason": "twice"}

    first, second = (post(caller, "operations", body) for _ in range(2))

    assert (first.status, second.status) == (202, 202)
    assert first.json == second.json
    assert first.response["Location"] == second.response["Location"]
    assert Operation.objects.confirmed().count() == 1


def test_an_undo_sent_twice_is_one_operation(caller: Caller, now: datetime) -> None:
    poisons(now, 1)
    dropped = post(caller, "operations", {"token": token(caller), "reason": "x"})

    replies = [
        post(caller, f"operations/{dropped.json['id']}/undo", None, key="undo")
        for _ in range(2)
    ]

    assert [each.status for each in replies] == [202, 202]
    assert replies[0].json == replies[1].json
    assert Operation.objects.confirmed().count() == 2


def test_without_a_key_nothing_is_replayed(caller: Caller, now: datetime) -> None:
    body = {"failures": [failure(now)]}

    answers = [caller.post("failures", body).results[0]["status"] for _ in range(2)]

    assert answers == ["created", "duplicate"]
    assert not IdempotencyKey.objects.exists()


def test_a_key_used_for_another_request_is_a_422(caller: Caller, now: datetime) -> None:
    body = {"failures": [failure(now)]}
    post(caller, "failures", body)

    replies = [
        post(caller, "failures", {"failures": [failure(now)]}),
        post(caller, "counters", body),
        caller.send(
            "POST",
            "failures",
            raw=json.dumps(body).encode(),
            query={"x": 1},
            headers={"Idempotency-Key": "k1"},
        ),
    ]

    assert [each.status for each in replies] == [422, 422, 422]
    assert replies[0].pointers == ["/Idempotency-Key"]
    assert Failure.objects.count() == 1


def test_the_same_body_compressed_otherwise_is_the_same_request(
    caller: Caller, now: datetime
) -> None:
    raw = json.dumps({"failures": [failure(now)]}).encode()
    caller.post("failures", raw, Idempotency_Key="k")

    reply = caller.post(
        "failures", gzip.compress(raw), Idempotency_Key="k", Content_Encoding="gzip"
    )

    assert (reply.status, replayed(reply)) == (200, True)


def test_two_callers_may_use_one_key(caller: Caller, now: datetime) -> None:
    body = {"failures": [failure(now)]}

    replies = [
        post(each, "failures", body) for each in (caller, program(topics=["o*"]))
    ]

    assert [replayed(each) for each in replies] == [False, False]


@pytest.mark.parametrize("key", ["", "ü", "a\tb", "x" * 256])
def test_an_invalid_key_is_a_400(caller: Caller, key: str) -> None:
    reply = post(caller, "failures", {"failures": []}, key=key)

    assert (reply.status, reply.pointers) == (400, ["/Idempotency-Key"])


def test_a_refusal_is_not_stored_and_a_later_try_may_succeed(
    caller: Caller, now: datetime
) -> None:
    poisons(now, 1)
    stale = token(caller)
    Operation.objects.update(expires_at=now - timedelta(seconds=1))
    body = {"token": stale, "reason": "late"}
    first = post(caller, "operations", body)

    renewed = {**body, "token": first.json["preview"]["token"]}
    second = post(caller, "operations", renewed)

    assert (first.status, second.status) == (409, 202)


def test_the_key_of_a_request_that_still_runs_is_a_409(
    caller: Caller, now: datetime
) -> None:
    body = {"failures": [failure(now)]}

    with _elsewhere(caller, "failures", body) as finish:
        meanwhile = post(caller, "failures", body)
        first = finish()
    after = post(caller, "failures", body)

    assert (meanwhile.status, first.status, after.status) == (409, 200, 200)
    assert meanwhile.json["type"].endswith("still-running")
    assert replayed(after)
    assert Failure.objects.count() == 1


def test_a_crash_before_the_answer_is_stored_rolls_back_and_frees_the_key(
    caller: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"failures": [failure(now)]}

    def crash(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(idempotency, "_store", crash)
        post(caller, "failures", body)

    assert not Failure.objects.exists()
    assert post(caller, "failures", body).results[0]["status"] == "created"


def test_an_unexpected_error_is_rolled_back(
    caller: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = MAKERS["counters"](now)
    real = capture.count

    def count_and_fall(**values: object) -> None:
        real(**values)  # type: ignore[arg-type]
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(capture, "count", count_and_fall)
        fallen = post(caller, "counters", {"counters": [member]})

    assert fallen.status == 500
    assert not Counter.objects.exists()
    reply = post(caller, "counters", {"counters": [member]})
    assert reply.results == [{"status": "counted"}]


def test_keys_are_stored_for_a_day(caller: Caller, now: datetime) -> None:
    body = {"failures": [failure(now)]}
    post(caller, "failures", body)

    orphaned_operations_and_expired_rows.prune(
        now=now + timedelta(hours=23, minutes=59)
    )
    reply = post(caller, "failures", body)
    orphaned_operations_and_expired_rows.prune(now=now + timedelta(hours=24, minutes=1))
    later = post(caller, "failures", body)

    assert (replayed(reply), replayed(later)) == (True, False)


def test_a_person_may_send_a_key_too(now: datetime) -> None:
    poisons(now, 1)
    anna = person(Role.OPERATOR)
    body = {"token": token(anna), "reason": "twice"}

    replies = [post(anna, "operations", body) for _ in range(2)]

    assert [replayed(each) for each in replies] == [False, True]


def test_eight_at_once_act_once(caller: Caller, now: datetime) -> None:
    body = {"failures": [failure(now)]}

    replies = together(8, lambda _: post(caller, "failures", body))

    assert {each.status for each in replies} <= {200, 409}
    assert [each.status for each in replies if not replayed(each)].count(200) == 1
    assert Failure.objects.count() == 1


class _elsewhere:  # noqa: N801 - reads as a verb
    """Run a POST in another thread, and pause it after it acted, before its commit."""

    def __init__(self, caller: Caller, path: str, body: object) -> None:
        self._replies: list[Reply] = []
        self._acted, self._go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._post, args=(caller, path, body))

    def __enter__(self) -> Callable[[], Reply]:
        self._store = idempotency._store
        idempotency._store = self._hold
        self._thread.start()
        assert self._acted.wait(60)
        idempotency._store = self._store
        return self._finish

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join()

    def _finish(self) -> Reply:
        self._go_on.set()
        self._thread.join()
        return self._replies[0]

    def _hold(self, *args: object, **kwargs: object) -> None:
        self._acted.set()
        assert self._go_on.wait(60)
        self._store(*args, **kwargs)  # type: ignore[arg-type]

    def _post(self, caller: Caller, path: str, body: object) -> None:
        try:
            self._replies.append(post(caller, path, body))
        finally:
            connection.close()


def test_the_lock_is_released_with_the_transaction() -> None:
    # Postgres grants a session the lock that it holds: others have to ask for it.
    with transaction.atomic():
        idempotency._lock("a", "b")
        with pytest.raises(idempotency.StillRunning):
            on_another_connection(lock_in_a_transaction)

    on_another_connection(lock_in_a_transaction)


def lock_in_a_transaction() -> None:
    with transaction.atomic():
        idempotency._lock("a", "b")
