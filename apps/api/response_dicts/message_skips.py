"""Skips: as lists, as events of the stream, and the answers to reports of their use."""

from __future__ import annotations

from apps.api.response_dicts.json_object_type import Shape
from apps.poison.skip_addition_and_removal import SkipTerms
from apps.poison.skip_list_for_consumers import ListedSkip, SkipListSnapshot
from poisonguard.contract import AppliedSkip


def skip(row: ListedSkip) -> Shape:
    """Return a skip as a dict for JSON.

    The value of its matcher is exact, whatever characters it has.
    """
    return {
        "id": row.id,
        "topic": row.topic,
        "matcher": {"kind": row.kind, "value": row.matcher.wire_value},
        "consumer_group": row.consumer_group,
        "handler_version": row.handler_version,
        "redrive": row.redrive,
        "expires_at": row.expires_at,
        "reason": row.reason,
        "by": row.by,
        "at": row.at,
        "poison": row.poison,
    }


def added_skip(row: ListedSkip, renews: SkipTerms | None) -> Shape:
    """Return an added skip, with the values that an active one had until now."""
    return {**skip(row), "renews": None if renews is None else _terms(renews)}


def _terms(terms: SkipTerms) -> Shape:
    return {
        "by": terms.by,
        "at": terms.at,
        "expires_at": terms.expires_at,
        "reason": terms.reason,
        "handler_version": terms.handler_version,
        "poison": terms.poison,
        "automatic": terms.is_automatic,
    }


def skip_event(row: ListedSkip) -> Shape:
    """Return the data of a skip's event: the skip, with the revision of this change."""
    return {**skip(row), "revision": row.revision}


def suspect_event(row: ListedSkip) -> Shape:
    """Return the data of a suspected skip's event, with the revision of this change."""
    return {**suspect(row), "revision": row.revision}


def suspect(row: ListedSkip) -> Shape:
    """Return a skip as a dict, with its message's id and sequence number.

    A consumer that has handled the message recognises it by any of these.
    """
    return {**skip(row), "message_id": row.message_id, "seq": row.seq}


def unskip(row: ListedSkip) -> Shape:
    """Return the data of the event that ends a skip: its id, the revision, and why."""
    return {
        "id": row.id,
        "topic": row.topic,
        "revision": row.revision,
        "because": row.because,
    }


def skip_list(snapshot: SkipListSnapshot) -> Shape:
    """Render a topic's whole skip list as a dict of the API: epoch, revision, skips."""
    return {
        "epoch": snapshot.epoch,
        "revision": snapshot.revision,
        "skips": [skip(row) for row in snapshot.in_force],
        "suspects": [suspect(row) for row in snapshot.suspected],
    }


def applied_skip_answer(report: AppliedSkip, *, is_known: bool) -> Shape:
    """Return the answer to a consumer's report of an applied skip: ok, or rejected."""
    if is_known:
        return {"status": "ok"}
    return rejected_member("/skip", f"there is no skip {report.skip} here")


def rejected_member(pointer: str, detail: str) -> Shape:
    """Return the answer to a rejected member of a report about applied skips.

    It says why, and where in the member.
    """
    return {"status": "rejected", "detail": detail, "pointer": pointer}
