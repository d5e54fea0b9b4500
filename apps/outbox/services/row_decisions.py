"""Decide about a quarantined row: send it all the same, or drop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import psycopg
from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.errors import Absent, Refused
from apps.outbox import outbox_row_decisions
from apps.outbox.models import Outbox
from apps.outbox.outbox_row_decisions import Quarantine
from apps.outbox.services import quarantined_rows_and_messages
from apps.outbox.services.outbox_registration import hidden_topics
from apps.outbox.sweeper_and_row_states import QuarantineState
from apps.team.rights import Principal, Scope

Decide = Callable[
    [Outbox, psycopg.Connection[Any], int, Sequence[str]], Quarantine | None
]


def send_row(
    *,
    outbox: Outbox,
    row_id: int,
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> None:
    """Let the sweeper send a quarantined row, whatever else has its message id.

    Never call it in a transaction: it waits for the producer's database. Raises Refused
    where the row is not quarantined, or triage has acted on its message, Absent where
    there is no such row or its topic is hidden from the principal, and
    Unavailable where the database is away.
    """
    _decide(
        outbox_row_decisions.release,
        QuarantineState.RELEASED,
        Action.OUTBOX_ROW_RELEASED,
        outbox,
        row_id,
        principal,
        reason=reason,
        now=now,
    )


def drop_row(
    *,
    outbox: Outbox,
    row_id: int,
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> None:
    """Drop a quarantined outbox row: it is never sent, and stays in its table.

    See `send_row`.
    """
    _decide(
        outbox_row_decisions.drop,
        QuarantineState.DROPPED,
        Action.OUTBOX_ROW_DROPPED,
        outbox,
        row_id,
        principal,
        reason=reason,
        now=now,
    )


def _decide(
    decide: Decide,
    state: QuarantineState,
    action: Action,
    outbox: Outbox,
    row_id: int,
    principal: Principal,
    *,
    reason: str,
    now: datetime,
) -> None:
    """Change a quarantined row, audit the decision, and only then commit the row.

    A decision that is not recorded is never carried out. Where the producer's database
    goes away at the commit, the person gets Unavailable, and the sweeper process
    carries the decision out when it is back.
    """
    principal.require(Scope.OPERATIONS_WRITE)
    reason = audit.clean_reason(reason)
    hidden = hidden_topics(outbox, principal)
    with outbox_row_decisions.session(outbox) as connection:
        quarantine = decide(outbox, connection, row_id, hidden)
        if quarantine is None:
            if not outbox_row_decisions.exists(outbox, connection, row_id, hidden):
                raise Absent(f"There is no row {row_id} of {outbox}.")
            raise Refused(f"Row {row_id} of {outbox} is not quarantined: look again.")
        with transaction.atomic():
            quarantined_rows_and_messages.decide(
                outbox=outbox,
                row_id=row_id,
                quarantine=quarantine,
                state=state,
                now=now,
            )
            audit.record(
                action=action,
                subject=f"outbox:{outbox.name}",
                actor=principal.actor,
                source=principal.source,
                reason=reason,
                now=now,
                detail={"row_id": row_id},
            )
