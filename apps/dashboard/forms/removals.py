"""The agreement to a removal: which topics somebody has seen that would go."""

from __future__ import annotations

from collections.abc import Iterable

from django.core import signing

from apps.brokers.models import Topic
from apps.capture.topic_removal import Otherwise
from apps.team.rights import Principal

SALT = "poisonweb.removal"
GOOD_FOR_SECONDS = 15 * 60


def seal(of: str, going: Iterable[Topic], principal: Principal) -> str:
    """Sign what is shown of a broker or a topic, for this person to agree to."""
    payload = [of, str(principal.actor), [topic.pk for topic in going]]
    return signing.dumps(payload, salt=SALT, compress=True)


def agreed(token: str, of: str, principal: Principal) -> list[int]:
    """Open a token; raises Otherwise for one that is old, or of something else."""
    try:
        signed_of, actor, going = signing.loads(
            token, salt=SALT, max_age=GOOD_FOR_SECONDS
        )
    except signing.BadSignature:
        raise Otherwise from None
    if (signed_of, actor) != (of, str(principal.actor)):
        raise Otherwise
    return list(going)
