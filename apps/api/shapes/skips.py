"""What consumers pass over, whole and as it changes."""

from __future__ import annotations

from apps.api.shapes.base import Shape
from apps.poison.skip_reading import ListedSkip, SkipListSnapshot


def skip(told: ListedSkip) -> Shape:
    """Tell of a skip; its matcher is exact, whatever characters its message bears."""
    return {
        "id": told.id,
        "topic": told.topic,
        "matcher": {"kind": told.kind, "value": told.matcher.wire_value},
        "consumer_group": told.consumer_group,
        "handler_version": told.handler_version,
        "redrive": told.redrive,
        "expires_at": told.expires_at,
        "reason": told.reason,
        "by": told.by,
        "at": told.at,
        "poison": told.poison,
    }


def skip_at(told: ListedSkip) -> Shape:
    return {**skip(told), "revision": told.revision}


def suspect_at(told: ListedSkip) -> Shape:
    return {**suspect(told), "revision": told.revision}


def suspect(told: ListedSkip) -> Shape:
    """Show a skip with the message id and the number of its message.

    A consumer that has handled the message recognises it by any of them.
    """
    return {**skip(told), "message_id": told.message_id, "seq": told.seq}


def unskip(told: ListedSkip) -> Shape:
    return {
        "id": told.id,
        "topic": told.topic,
        "revision": told.revision,
        "because": told.because,
    }


def skips(taken: SkipListSnapshot) -> Shape:
    return {
        "epoch": taken.epoch,
        "revision": taken.revision,
        "skips": [skip(told) for told in taken.in_force],
        "suspects": [suspect(told) for told in taken.suspected],
    }
