"""Publish to Azure's queues and return the outcome of each message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Event

from apps.brokers.adapter_contract import Outbound, OutcomeKind, PublishOutcome
from apps.brokers.adapters.azure_queue import message_text
from apps.brokers.adapters.azure_queue.azure_http_client import AzureTimeout, AzureWire
from apps.brokers.adapters.azure_queue.message_text import Encoding
from apps.brokers.adapters.azure_queue.settings import queue_name
from apps.brokers.errors import NotSent
from apps.core.errors import Invalid, Refused, Unavailable


class AzurePublisher:
    """Publisher that sends in parallel; Azure's answer with an id confirms it."""

    def __init__(self, wire: AzureWire, *, usual: Encoding) -> None:
        self._wire = wire
        self._usual = usual

    def publish(self, messages: Sequence[Outbound]) -> list[PublishOutcome]:
        """Send messages to Azure; return their outcomes in order.

        Raises NotSent if none arrived.
        """
        results = self._wire.map(partial(self._send, outage=Event()), messages)
        unsent = [outcome for outcome in results if isinstance(outcome, NotSent)]
        if unsent and not any(_may_be_there(outcome) for outcome in results):
            raise unsent[0]
        return [
            _unsent_outcome(outcome) if isinstance(outcome, NotSent) else outcome
            for outcome in results
        ]

    def close(self) -> None:
        """Close the connections to Azure."""
        self._wire.close()

    def _send(self, message: Outbound, *, outage: Event) -> PublishOutcome | NotSent:
        """Send one message to Azure, unless another message just had an `outage`.

        Returns its outcome, or NotSent; then notes the outage for the others.
        """
        try:
            queue = queue_name(message.topic, field="topic")
            text = message_text.write(message.body, message.headers, usual=self._usual)
            if outage.is_set():
                return NotSent("Azure went away before this message was sent.")
            azure_message = self._wire.put(queue, text)
        except (Refused, Invalid) as refusal:
            return PublishOutcome(kind=OutcomeKind.REFUSED, detail=str(refusal))
        except NotSent as error:
            outage.set()
            return error
        except Unavailable as error:
            if isinstance(error, AzureTimeout):
                outage.set()
            return _unknown_outcome(error)
        return PublishOutcome(kind=OutcomeKind.SENT, bookmark=azure_message.id)


def _may_be_there(outcome: PublishOutcome | NotSent) -> bool:
    """Tell whether a message with this outcome is at Azure, or may be."""
    return (
        isinstance(outcome, PublishOutcome) and outcome.kind is not OutcomeKind.REFUSED
    )


def _unsent_outcome(error: NotSent) -> PublishOutcome:
    """Return the outcome of a message that was not sent to Azure, and why."""
    return PublishOutcome(kind=OutcomeKind.UNSENT, detail=str(error))


def _unknown_outcome(error: Unavailable) -> PublishOutcome:
    """Return the outcome of a message that Azure may have, and why that is unknown."""
    return PublishOutcome(kind=OutcomeKind.UNKNOWN, detail=str(error))
