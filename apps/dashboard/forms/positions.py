"""The forms of a move: where to, and the agreement to what was looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.core import signing
from django.http import QueryDict

from apps.bookmarks.models import Mark
from apps.bookmarks.places import place_of
from apps.bookmarks.runs import LAST
from apps.core.errors import Invalid
from apps.team.rights import Principal
from apps.triage.services.moves import PositionChanged, Review, Strategy, Wish

SALT = "poisonweb.move"
GOOD_FOR_SECONDS = 15 * 60
LONGEST_NUMBER = 20


def wish(asked: QueryDict, marks: Mapping[int, Mark]) -> Wish:
    """Read where to move; raises Invalid with the name of the field that is wrong."""
    strategy = asked.get("strategy", "")
    if strategy not in set(Strategy):
        raise Invalid("strategy", "choose where to move it")
    match Strategy(strategy):
        case Strategy.TIME:
            return Wish(strategy=Strategy.TIME, at=_moment(asked))
        case Strategy.EXACT:
            return Wish(strategy=Strategy.EXACT, to=_numbers(asked, marks))
        case Strategy.SHIFT:
            return Wish(strategy=Strategy.SHIFT, by=_number("by", asked))
        case Strategy.COPY:
            return Wish(strategy=Strategy.COPY, other=_number("other", asked))
        case Strategy.RESTORE:
            return Wish(strategy=Strategy.RESTORE, move=_number("move", asked))
        case start_or_end:
            return Wish(strategy=start_or_end)


def seal(review: Review, principal: Principal) -> str:
    """Sign what is shown, for this person to agree to; its epoch lets it pass once."""
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


class Agreement:
    """What somebody has looked at and agreed to."""

    def __init__(self, token: str, *, position_id: int, principal: Principal) -> None:
        """Open the token; raises PositionChanged for one that is old, or not theirs."""
        try:
            told = signing.loads(token, salt=SALT, max_age=GOOD_FOR_SECONDS)
        except signing.BadSignature:
            raise PositionChanged from None
        if (told["position"], told["actor"]) != (position_id, str(principal.actor)):
            raise PositionChanged
        self.wish = Wish(
            strategy=Strategy(told["strategy"]), to=told["to"], move=told["move"]
        )
        self._outcome = told["outcome"]

    def holds(self, review: Review) -> bool:
        """Tell whether what would be done now is what was agreed to."""
        # As it comes out of a token, where there are no tuples.
        return bool(json.loads(json.dumps(review.outcome)) == self._outcome)


def _moment(asked: QueryDict) -> datetime:
    zone = _zone(asked.get("zone") or "UTC")
    try:
        told = datetime.fromisoformat(asked.get("at", ""))
        moment = told if told.tzinfo else told.replace(tzinfo=zone)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid("at", "give a day and a time such as 2026-11-20 09:30") from None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise Invalid("zone", "name a zone such as Europe/Berlin") from None


def _numbers(asked: QueryDict, marks: Mapping[int, Mark]) -> dict[str, int]:
    """Read a number for each publisher; those without one stay where they are."""
    told = {mark: asked.get(f"seq-{pk}", "").strip() for pk, mark in marks.items()}
    numbers = {mark.publisher: _seq(mark, text) for mark, text in told.items() if text}
    if not numbers:
        raise Invalid("seq", "give the number of at least one publisher")
    return numbers


def _seq(mark: Mark, text: str) -> int:
    place = place_of(text)
    if place is None or place.publisher not in {"", mark.publisher}:
        remedy = f"give a number from 0 to {LAST}, or a bookmark of this publisher"
        raise Invalid(f"seq-{mark.pk}", remedy)
    return place.seq


def _number(field: str, asked: QueryDict) -> int:
    text = asked.get(field, "").strip()
    digits = text[1:] if text[:1] in {"-", "+"} else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < LONGEST_NUMBER):
        raise Invalid(field, "give a whole number")
    return int(text)
