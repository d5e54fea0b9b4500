"""Parse a request for a preview: an action, and the poisons to select for it."""

from __future__ import annotations

import uuid

from django.http import QueryDict

from apps.api.parameters.base import flag, members_of, refuse_unknown, text
from apps.core.errors import Invalid
from apps.poison.query import MAX_ID, Query
from apps.triage.services.previews import MOST_IDS, SelectionRequest
from apps.triage.states import REQUESTABLE, Verb
from poisonguard.contract import uuid_of


def parse_preview(data: object) -> SelectionRequest:
    """Read which action to preview, and on which poisons."""
    members = members_of(data)
    refuse_unknown(members, {"verb", "q", "ids", "target_topic", "ordered"})
    return SelectionRequest(
        verb=_verb(members.get("verb")),
        query=_query(members.get("q")),
        ids=_ids(members.get("ids")),
        target_topic=text("target_topic", members.get("target_topic")),
        ordered=flag("ordered", members.get("ordered")),
    )


def parse_token(params: QueryDict) -> uuid.UUID:
    return token_of(params.get("token"))


def token_of(value: object) -> uuid.UUID:
    token = uuid_of(value) if isinstance(value, str) else None
    if token is None:
        raise Invalid("token", "send the token of a preview")
    return token


def _verb(value: object) -> Verb:
    if value not in REQUESTABLE:
        raise Invalid("verb", f"use one of {', '.join(REQUESTABLE)}")
    return Verb(str(value))


def _query(value: object) -> Query | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise Invalid("q", "send text")
    return Query.parse(value)


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(map(_is_id, value)):
        raise Invalid("ids", "send a list of the numbers of messages")
    if len(value) > MOST_IDS:
        raise Invalid("ids", f"give at most {MOST_IDS} ids, or a query")
    return tuple(value)


def _is_id(value: object) -> bool:
    # A bool is an int to Python; True would be message 1.
    return type(value) is int and 0 < value <= MAX_ID
