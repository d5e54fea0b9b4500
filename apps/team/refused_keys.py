"""A key that is refused: a line in the log, and an entry on the trail once an hour."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.core.logs import RateLimitFilter
from apps.team.models import ApiKey
from apps.team.services import digest_of

# A program that was not told of the end of its key asks on and on.
RECORDED_EVERY = timedelta(hours=1)
STRANGER = Actor.system("api-keys")

log = logging.getLogger(__name__)
log.addFilter(RateLimitFilter(lines=60, seconds=60))


@transaction.atomic
def note_refusal(*, secret: str, address: str, now: datetime) -> None:
    """Put on record who uses a key that ended; a secret that is no key is only logged.

    `address` is the sender's.
    """
    key = ApiKey.objects.filter(digest=digest_of(secret)).first()
    if key is None:
        log.warning("a key that does not exist was refused, from %s", address)
        return
    reason = "revoked" if key.revoked_at else "expired"
    log.warning("the key %s was refused, from %s: %s", key.name, address, reason)
    is_due = Q(refused_at=None) | Q(refused_at__lt=now - RECORDED_EVERY)
    if ApiKey.objects.filter(is_due, pk=key.pk).update(refused_at=now):
        audit.record(
            action=Action.KEY_REFUSED,
            subject=f"api_key:{key.name}",
            actor=STRANGER,
            source="api",
            now=now,
            reason=reason,
            detail={"address": address},
        )
