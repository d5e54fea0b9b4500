"""A full disk of Postgres: no write is confirmed wrongly, and nothing is lost."""

from __future__ import annotations

import pytest

from apps.audit.models import Entry
from apps.bookmarks.models import Mark
from apps.core import clock
from apps.poison.models import Poison
from apps.team.rights import Scope
from apps.triage.models import Operation
from apps.triage.operation_states import OperationState
from tests.failure_report_builders import failure, poisons
from tests.integration.api.schema_checking_client import program
from tests.position_opening_and_settling import update
from tests.postgres_full_disk_error import full_disk

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("table", ["poison_body", "poison_failure", "poison_problem"])
def test_a_report_is_answered_503_and_counts_once_when_there_is_room(
    table: str,
) -> None:
    guard = program(Scope.CAPTURE_WRITE)
    reports = {"failures": [failure(clock.now()), failure(clock.now(), body=b"2")]}

    with full_disk(table):
        refused = guard.post("failures", reports)
        captured = Poison.objects.count()
    answers = guard.post("failures", reports).results

    assert (refused.status, refused.response["Retry-After"]) == (503, "5")
    assert captured == 0
    assert [answer["status"] for answer in answers] == ["created", "created"]


@pytest.mark.parametrize("table", ["audit_entry"])
def test_a_confirmation_that_cannot_be_written_is_answered_503(
    table: str,
) -> None:
    poisons(clock.now(), 3)
    caller = program(Scope.OPERATIONS_WRITE, Scope.POISONS_READ)
    ask = {"verb": "drop", "q": "topic:orders"}
    decision = {
        "token": caller.post("operations/preview", ask).json["token"],
        "reason": "a test",
    }
    entries = Entry.objects.count()

    with full_disk(table):
        refused = caller.post("operations", decision)
        written = Entry.objects.count() - entries
    accepted = caller.post("operations", decision)

    assert (refused.status, refused.response["Retry-After"]) == (503, "5")
    assert written == 0
    assert accepted.status == 202
    assert Operation.objects.exclude(state=OperationState.PREVIEW).count() == 1


def test_a_settled_run_is_answered_503_and_is_written_when_there_is_room() -> None:
    consumer = program(Scope.POSITIONS_WRITE)
    names = {"client_name": "billing-1", "sub_id": "1", "topic": "orders"}
    epoch = consumer.post("positions/open", names).json["epoch"]
    updates = {"updates": [update(epoch, (0, 7))]}

    with full_disk("bookmarks_mark"):
        refused = consumer.post("positions/settle", updates)
        written = Mark.objects.count()
    (answer,) = consumer.post("positions/settle", updates).results

    assert (refused.status, refused.response["Retry-After"]) == (503, "5")
    assert written == 0
    assert (answer["status"], Mark.objects.get().processed) == ("ok", 7)
