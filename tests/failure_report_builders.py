"""Build reports as guards send them, and capture poisons."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from datetime import datetime
from itertools import count

from django.db import transaction

from apps.capture.intake import services
from apps.capture.intake.services import CaptureAnswer
from apps.core.actor import Actor
from apps.poison.models import Poison
from apps.poison.services import drop_restore_and_give_back
from apps.team.rights import Principal, Scope

GUARD = Principal(
    actor=Actor.key("guard"), scopes=frozenset({Scope.CAPTURE_WRITE}), source="api"
)
_bookmarks = count(1)


def failure(now: datetime, **changes: object) -> dict[str, object]:
    """Build a member of POST /failures; pass `body` and header values as bytes."""
    changes.setdefault("bookmark", f"{next(_bookmarks)}-auto")
    body = changes.pop("body", b'{"id": 13}')
    headers = changes.pop("headers", [])
    assert isinstance(body, bytes)
    assert isinstance(headers, Sequence)
    member: dict[str, object] = {
        "report_id": str(uuid.uuid4()),
        "topic": "orders",
        "consumer_group": "billing",
        "client_name": "billing-1",
        "body": base64.b64encode(body).decode(),
        "headers": [[n, base64.b64encode(v).decode()] for n, v in headers],
        "cause": "exhausted",
        "exception": {
            "type": "ValueError",
            "message": "I'm superstitious...",
            "traceback": "",
        },
        "attempts": 1,
        "failures": 1,
        "crashes": 0,
        "first_failed_at": now.isoformat(),
        "failed_at": now.isoformat(),
    }
    return {**member, **changes}


def repeats(now: datetime, number: int, **changes: object) -> list[dict[str, object]]:
    """Build reports of one message that fails so often for the same reason."""
    first = failure(now, **changes)
    return [{**first, "report_id": str(uuid.uuid4())} for _ in range(number)]


def guard_word(now: datetime, **changes: object) -> dict[str, object]:
    """Build a member of `guards` in POST /counters: a heartbeat of a new process."""
    return {
        "reporter": str(uuid.uuid4()),
        "topic": "orders",
        "consumer_group": "billing",
        "client_name": "billing-1",
        "host": "web-3",
        "version": "1.0.0",
        "handler_version": "2026.11.20",
        "state": "running",
        "detail": "",
        "skips_age_s": 0.5,
        "spooled": 0,
        "suspected": 0,
        "journal": True,
        "at": now.isoformat(),
        **changes,
    }


def capture(now: datetime, *members: dict[str, object]) -> list[CaptureAnswer]:
    return services.capture(members=members, principal=GUARD, now=now)


def drop(now: datetime, *dropped: Poison) -> None:
    with transaction.atomic():
        drop_restore_and_give_back.drop(
            poisons=[poison.pk for poison in dropped], now=now
        )


def poisons(now: datetime, number: int, **changes: object) -> list[Poison]:
    """Capture this many poisons and return them, oldest first."""
    answers = capture(now, *(failure(now, **dict(changes)) for _ in range(number)))
    by_id = Poison.objects.in_bulk([answer.poison for answer in answers])
    return [by_id[answer.poison] for answer in answers if answer.poison]


def counter(**changes: object) -> dict[str, object]:
    """Build a member of POST /counters: ten handled and two failed in a minute."""
    member: dict[str, object] = {
        "reporter": str(uuid.uuid4()),
        "sequence": 1,
        "topic": "orders",
        "consumer_group": "billing",
        "client_name": "billing-1",
        "minute": "2026-11-19T09:30:00Z",
        "handled": 10,
        "failed": 2,
        "skipped": 1,
        "retried": 3,
        "duration_ms_hist": {"3": 7, "5": 5},
    }
    return {**member, **changes}


def count_up(now: datetime, *members: dict[str, object]) -> list[CaptureAnswer]:
    return services.count(members=members, principal=GUARD, now=now)
