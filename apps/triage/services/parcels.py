"""Redrives made ready for their brokers, and brokers' answers made ready for us."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from apps.brokers import ports
from apps.brokers import vocabularies as vocabulary
from apps.brokers.ports import Header
from apps.brokers.services import Addressed
from apps.poison import tokens
from apps.poison.models import Body, Redrive
from apps.poison.services import Answered
from apps.poison.states import Outcome
from poisonguard.contract import REDRIVE_HEADER

NOT_THIS_ONE = (
    "the broker says that it had this message before, but it was never sent there: "
    "it takes it for another, and has put it nowhere"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """One redrive, ready for the broker; `again` tells that it may well have it."""

    redrive: uuid.UUID
    poison: int
    moves: bool
    again: bool
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
    return Parcel(
        redrive=redrive.pk,
        poison=redrive.poison_id,
        moves=redrive.queue != "" or redrive.topic_id != redrive.poison.topic_id,
        again=redrive.copies > 1,
        message=Addressed(
            topic=redrive.topic,
            queue=redrive.queue,
            body=bytes(body.content),
            headers=_headers(redrive, body),
            dedupe=f"poisonweb-{redrive.poison_id}-{redrive.n}",
        ),
    )


def _headers(redrive: Redrive, body: Body) -> tuple[Header, ...]:
    """Give what it leaves with: what is given back leaves exactly as it came."""
    flat = [bytes(part) for part in body.headers]
    headers = tuple(zip(flat[::2], flat[1::2], strict=True))
    if redrive.queue:
        return headers
    if redrive.digest is not None:
        return vocabulary.leaving(headers)
    token = tokens.sign(
        redrive=redrive.pk, topic=redrive.topic.name, digest=redrive.poison.digest
    )
    mark = (REDRIVE_HEADER.encode(), token.encode())
    return (*vocabulary.leaving(headers), mark)


def answered(parcel: Parcel, outcome: ports.Outcome) -> Answered:
    arrived = Outcome.MOVED if parcel.moves else Outcome.SENT
    became = {
        ports.OutcomeKind.SENT: arrived,
        ports.OutcomeKind.REFUSED: Outcome.REFUSED,
        ports.OutcomeKind.UNKNOWN: Outcome.UNKNOWN,
        # Only a send that was tried before can be what the broker has already.
        ports.OutcomeKind.DUPLICATE: arrived if parcel.again else Outcome.REFUSED,
    }[outcome.kind]
    detail = outcome.detail
    if outcome.kind is ports.OutcomeKind.DUPLICATE and not parcel.again:
        detail = f"{NOT_THIS_ONE}. {detail}".strip()
    return Answered(
        redrive=parcel.redrive,
        outcome=became,
        detail=detail,
        bookmark=outcome.bookmark,
    )
