"""The forms of a position move: the target, and the signed review to confirm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.core import signing
from django.http import QueryDict

from apps.bookmarks.bookmark_parsing import place_of
from apps.bookmarks.models import Mark
from apps.bookmarks.runs_of_settled_positions import LAST
from apps.core.errors import Invalid
from apps.team.rights import Principal
from apps.triage.services.position_moves import (
    MoveTarget,
    PositionChanged,
    Review,
    Strategy,
)

SALT = "poisonweb.move"
TOKEN_MAX_AGE_SECONDS = 15 * 60
LONGEST_NUMBER = 20


def parse_wish(params: QueryDict, marks: Mapping[int, Mark]) -> MoveTarget:
    """Parse the target of a position's move; raises Invalid for a wrong field."""
    strategy = params.get("strategy", "")
    if strategy not in set(Strategy):
        raise Invalid("strategy", "choose where to move it")
    match Strategy(strategy):
        case Strategy.TIME:
            return MoveTarget(strategy=Strategy.TIME, at=_moment(params))
        case Strategy.EXACT:
            return MoveTarget(strategy=Strategy.EXACT, to=_numbers(params, marks))
        case Strategy.SHIFT:
            return MoveTarget(strategy=Strategy.SHIFT, by=_whole_number("by", params))
        case Strategy.COPY:
            return MoveTarget(
                strategy=Strategy.COPY, other=_whole_number("other", params)
            )
        case Strategy.RESTORE:
            return MoveTarget(
                strategy=Strategy.RESTORE, move=_whole_number("move", params)
            )
        case start_or_end:
            return MoveTarget(strategy=start_or_end)


def sign_review(review: Review, principal: Principal) -> str:
    """Sign a position's review for this person to confirm, once."""
    fixed = review.fixed
    return signing.dumps(
        {
            "position": review.position.pk,
            "actor": str(principal.actor),
            "strategy": fixed.strategy,
            "to": dict(fixed.to),
            "move": fixed.move,
            "outcome": review.outcome,
        },
        salt=SALT,
        compress=True,
    )


class SignedReview:
    """A signed review that a person sends back to confirm it."""

    def __init__(self, token: str, *, position_id: int, principal: Principal) -> None:
        """Open the signed token of a review of a position's move.

        Raises PositionChanged if it is invalid, expired, or of another position or
        person.
        """
        try:
            payload = signing.loads(token, salt=SALT, max_age=TOKEN_MAX_AGE_SECONDS)
        except signing.BadSignature:
            raise PositionChanged from None
        if (payload["position"], payload["actor"]) != (
            position_id,
            str(principal.actor),
        ):
            raise PositionChanged
        self.wish = MoveTarget(
            strategy=Strategy(payload["strategy"]),
            to=payload["to"],
            move=payload["move"],
        )
        self._outcome = payload["outcome"]

    def matches(self, review: Review) -> bool:
        """Tell whether the position's move still does what the person confirmed."""
        # JSON turns tuples into lists, as in the token.
        return bool(json.loads(json.dumps(review.outcome)) == self._outcome)


def _moment(params: QueryDict) -> datetime:
    """Parse a move's day and time, entered in a time zone, to UTC; raises Invalid."""
    zone = _zone(params.get("zone") or "UTC")
    try:
        parsed = datetime.fromisoformat(params.get("at", ""))
        moment = parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid("at", "give a day and a time such as 2026-11-20 09:30") from None


def _zone(name: str) -> ZoneInfo:
    """Find a time zone by its name; raises Invalid for an unknown one."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise Invalid("zone", "name a zone such as Europe/Berlin") from None


def _numbers(params: QueryDict, marks: Mapping[int, Mark]) -> dict[str, int]:
    """Parse the new sequence number that a person entered for each publisher.

    A publisher without a number is left out: its position is not moved. Raises Invalid
    if no publisher has one, or for a wrong number.
    """
    texts = {mark: params.get(f"seq-{pk}", "").strip() for pk, mark in marks.items()}
    numbers = {mark.publisher: _seq(mark, text) for mark, text in texts.items() if text}
    if not numbers:
        raise Invalid("seq", "give the number of at least one publisher")
    return numbers


def _seq(mark: Mark, text: str) -> int:
    """Parse a publisher's new sequence number, or its bookmark; raises Invalid."""
    place = place_of(text)
    if place is None or place.publisher not in {"", mark.publisher}:
        remedy = f"give a number from 0 to {LAST}, or a bookmark of this publisher"
        raise Invalid(f"seq-{mark.pk}", remedy)
    return place.seq


def _whole_number(field: str, params: QueryDict) -> int:
    """Parse a submitted whole number, signed or not; raises Invalid for other text."""
    text = params.get(field, "").strip()
    digits = text[1:] if text[:1] in {"-", "+"} else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < LONGEST_NUMBER):
        raise Invalid(field, "give a whole number")
    return int(text)
