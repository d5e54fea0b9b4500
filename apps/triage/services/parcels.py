"""Redrives made ready for their brokers, and brokers' answers made ready for us."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from apps.brokers import ports
from apps.brokers.services import Addressed
from apps.brokers.vocabularies import poisonweb as vocabulary
from apps.poison import tokens
from apps.poison.models import Body, Redrive
from apps.poison.services import Answered
from apps.poison.states import Outcome
from poisonguard.contract import REDRIVE_HEADER


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """One redrive, ready for the broker."""

    redrive: uuid.UUID
    poison: int
    moves: bool
    message: Addressed


def pack(redrives: Sequence[uuid.UUID]) -> list[Parcel]:
    """Read what is to be sent, in the order given."""
    rows = Redrive.objects.select_related("poison", "topic__broker").in_bulk(redrives)
    wanted = [rows[redrive].poison_id for redrive in redrives]
    bodies = {body.poison_id: body for body in Body.objects.filter(poison__in=wanted)}
    return [
        _pack_one(rows[redrive], bodies[rows[redrive].poison_id])
        for redrive in redrives
    ]


def _pack_one(redrive: Redrive, body: Body) -> Parcel:
    token = tokens.sign(
        redrive=redrive.pk, topic=redrive.topic.name, digest=redrive.poison.digest
    )
    flat = [bytes(part) for part in body.headers]
    headers = tuple(zip(flat[::2], flat[1::2], strict=True))
    mark = (REDRIVE_HEADER.encode(), token.encode())
    return Parcel(
        redrive=redrive.pk,
        poison=redrive.poison_id,
        moves=redrive.topic_id != redrive.poison.topic_id,
        message=Addressed(
            topic=redrive.topic,
            body=bytes(body.content),
            headers=(*vocabulary.leaving(headers), mark),
        ),
    )


def answered(parcel: Parcel, outcome: ports.Outcome) -> Answered:
    became = {
        ports.OutcomeKind.SENT: Outcome.MOVED if parcel.moves else Outcome.SENT,
        ports.OutcomeKind.REFUSED: Outcome.REFUSED,
        ports.OutcomeKind.UNKNOWN: Outcome.UNKNOWN,
    }
    return Answered(
        redrive=parcel.redrive,
        outcome=became[outcome.kind],
        detail=outcome.detail,
        bookmark=outcome.bookmark,
    )
