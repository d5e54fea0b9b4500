"""What consumers tell of the use of skips."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from apps.api.parameters import skips as asked
from apps.api.shapes.base import Shape
from apps.capture.intake import suspicions
from apps.core.errors import Invalid
from apps.poison import skip_counts
from apps.poison.skip_counts import AppliedSkip
from apps.team.rights import Principal

OK: Shape = {"status": "ok"}


def applied(
    members: Sequence[object], principal: Principal, *, now: datetime
) -> list[Shape]:
    """Count what can be counted; answer each member for itself, in order."""
    answers: dict[int, Shape] = {}
    told: dict[int, AppliedSkip] = {}
    for place, member in enumerate(members):
        try:
            told[place] = asked.applied(member)
        except Invalid as reason:
            answers[place] = _rejected(reason.remedy, reason.field)
    known = skip_counts.count_applied(
        reports=list(told.values()), principal=principal, now=now
    )
    handled = [each.skip for each in told.values() if each.handled]
    if handled:
        suspicions.end_handled(skips=handled, principal=principal, now=now)
    for place, is_known in zip(told, known, strict=True):
        unknown = f"there is no skip {told[place].skip} here"
        answers[place] = OK if is_known else _rejected(unknown, "skip")
    return [answers[place] for place in range(len(members))]


def _rejected(detail: str, field: str) -> Shape:
    pointer = f"/{field}" if field else ""
    return {"status": "rejected", "detail": detail, "pointer": pointer}
