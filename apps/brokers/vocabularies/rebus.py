"""Rebus: what it adds to a message that it moves to the error queue.

The exceptions stand in one text, as .NET prints them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from apps.brokers.vocabularies import stacks
from apps.brokers.vocabularies.story import Found, Told
from poisonguard import contract

NAME = "rebus"

DETAILS = "rbs2-error-details"
SOURCE = "rbs2-source-queue"
DELIVERIES = "rbs2-delivery-count"
# Rebus goes by the counts where it finds them: a message with its deliveries used up
# would go straight back to the error queue.
_WROTE = (DETAILS, SOURCE, DELIVERIES, "rbs2-defer-count")


def told(found: Found) -> Told:
    message = Told(
        content_type=found.text("rbs2-content-type"),
        message_type=found.text("rbs2-msg-type").partition(",")[0].strip(),
    )
    if DETAILS not in found and SOURCE not in found:
        return message
    details = found.text(DETAILS)
    kind, words = stacks.dotnet(details)
    return replace(
        message,
        cause=contract.Cause.EXHAUSTED,
        exception_type=kind,
        exception_message=words,
        exception_traceback=details,
        origin=found.text(SOURCE),
        attempts=found.count(DELIVERIES),
    )


def wrote(found: Found) -> Collection[bytes]:
    return found.among(_WROTE)
