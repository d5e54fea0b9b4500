"""The whole list of a topic as it leaves, and what consumers tell of its use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

from rest_framework.utils.encoders import JSONEncoder

from apps.api.parameters import skips as asked
from apps.api.shapes import skips as shapes
from apps.api.shapes.base import Shape
from apps.capture import suspicions
from apps.core.errors import Invalid
from apps.poison import skip_counts, skip_reading
from apps.poison.skip_counts import Applied
from apps.team.rights import Principal

OK: Shape = {"status": "ok"}
# Lists of a hundred thousand skips weigh tens of megabytes.
MOST_KEPT = 8


def rendered(wanted: asked.Wanted) -> bytes:
    """Give the list as JSON; consumers that all start at once cost one of them."""
    head = skip_reading.head(topic=wanted.topic)
    return _rendered(wanted, head.epoch, head.revision)


@lru_cache(maxsize=MOST_KEPT)
def _rendered(wanted: asked.Wanted, _: str, __: int) -> bytes:
    taken = skip_reading.snapshot(
        topic=wanted.topic, consumer_group=wanted.consumer_group
    )
    # In ASCII: a bookmark may hold what UTF-8 has no bytes for.
    return json.dumps(shapes.skips(taken), cls=JSONEncoder).encode()


def applied(
    members: Sequence[object], principal: Principal, *, now: datetime
) -> list[Shape]:
    """Count what can be counted; answer each member for itself, in order."""
    answers: dict[int, Shape] = {}
    told: dict[int, Applied] = {}
    for place, member in enumerate(members):
        try:
            told[place] = asked.applied(member)
        except Invalid as reason:
            answers[place] = _rejected(reason.remedy, reason.field)
    known = skip_counts.applied(told=list(told.values()), principal=principal, now=now)
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
