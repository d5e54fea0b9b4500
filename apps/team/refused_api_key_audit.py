"""Record refused API keys: in the log, and once an hour on the audit trail."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.core.log_formatting import RateLimitFilter
from apps.team.models import ApiKey
from apps.team.services import digest_of

# A program that does not know that its key ended sends requests forever.
RECORDED_EVERY = timedelta(hours=1)
STRANGER = Actor.system("api-keys")

log = logging.getLogger(__name__)
log.addFilter(RateLimitFilter(lines=60, seconds=60))


@transaction.atomic
def note_refusal(*, secret: str, address: str, now: datetime) -> None:
    """Log a request's refused API key; audit one that ended, at most once an hour.

    An unknown secret is only logged. `address` is the sender's.
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
