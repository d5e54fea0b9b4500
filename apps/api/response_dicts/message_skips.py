"""Skips: as lists, as events of the stream, and the answers to reports of their use."""

from __future__ import annotations

from apps.api.response_dicts.json_object_type import Shape
from apps.poison.skip_list_for_consumers import ListedSkip, SkipListSnapshot
from poisonguard.contract import AppliedSkip


def skip(row: ListedSkip) -> Shape:
    """Show a skip; the value of its matcher is exact, whatever characters it has."""
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


def skip_event(row: ListedSkip) -> Shape:
    """Show a skip as an event, with the revision of this change."""
    return {**skip(row), "revision": row.revision}


def suspect_event(row: ListedSkip) -> Shape:
    """Show a suspected skip as an event, with the revision of this change."""
    return {**suspect(row), "revision": row.revision}


def suspect(row: ListedSkip) -> Shape:
    """Show a skip with the message id and the sequence number of its message.

    A consumer that has handled the message recognises it by any of these.
    """
    return {**skip(row), "message_id": row.message_id, "seq": row.seq}


def unskip(row: ListedSkip) -> Shape:
    """Show the end of a skip as an event of the stream."""
    return {
        "id": row.id,
        "topic": row.topic,
        "revision": row.revision,
        "because": row.because,
    }


def skips(snapshot: SkipListSnapshot) -> Shape:
    """Show a whole skip list with its revision."""
    return {
        "epoch": snapshot.epoch,
        "revision": snapshot.revision,
        "skips": [skip(row) for row in snapshot.in_force],
        "suspects": [suspect(row) for row in snapshot.suspected],
    }


def applied(report: AppliedSkip, *, is_known: bool) -> Shape:
    """Show the answer to a report about applied skips."""
    if is_known:
        return {"status": "ok"}
    return rejected_member("/skip", f"there is no skip {report.skip} here")


def rejected_member(pointer: str, detail: str) -> Shape:
    """Show a rejected member of a report about applied skips: why, and where."""
    return {"status": "rejected", "detail": detail, "pointer": pointer}
