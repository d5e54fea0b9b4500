"""Signed tokens of removals: the topics that the page showed as to be removed."""

from __future__ import annotations

from collections.abc import Iterable

from django.core import signing

from apps.brokers.models import Topic
from apps.capture.unused_topic_removal import ChangedSincePreview
from apps.team.rights import Principal

SALT = "poisonweb.removal"
TOKEN_MAX_AGE_SECONDS = 15 * 60


def sign(of: str, going: Iterable[Topic], principal: Principal) -> str:
    """Return a signed token of the topics that a person saw as to be removed."""
    payload = [of, str(principal.actor), [topic.pk for topic in going]]
    return signing.dumps(payload, salt=SALT, compress=True)


def signed_topics(token: str, of: str, principal: Principal) -> list[int]:
    """Return the topic ids in a removal's signed token.

    Raises ChangedSincePreview if the token is invalid, expired, or for another
    person, topic or broker.
    """
    try:
        signed_of, actor, going = signing.loads(
            token, salt=SALT, max_age=TOKEN_MAX_AGE_SECONDS
        )
    except signing.BadSignature:
        raise ChangedSincePreview from None
    if (signed_of, actor) != (of, str(principal.actor)):
        raise ChangedSincePreview
    return list(going)
