"""What a worker makes of a message in Celery's queue that is no task of ours.

Celery hands an error in a message's headers to the worker's main loop, which ends; the
message is restored, and ends the next worker, too. Here such a message is refused, with
a line in the log, and the worker goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery.exceptions import InvalidTaskError
from celery.worker.consumer import Consumer
from celery.worker.request import Request

log = logging.getLogger(__name__)

LONGEST_ID = 255
# All that our tasks are sent with. A worker believes whatever else stands in a header.
HEADERS = frozenset(
    {
        *("task", "id", "lang", "origin", "argsrepr", "kwargsrepr"),
        *("root_id", "parent_id", "retries", "expires", "redelivered"),
    }
)


class CheckedRequest(Request):
    """A request for a task with the headers that ours have, and with arguments.

    Time limits, stamps and the like, with which none of our tasks is sent, are left
    out.
    """

    def __init__(self, message: Any, **given: Any) -> None:
        body = given.get("body") if given.get("decoded") else message.payload
        _require_arguments(body)
        headers = message.headers if given.get("headers") is None else given["headers"]
        given["headers"] = _plain(headers)
        super().__init__(message, **given)


class CheckingConsumer(Consumer):
    """A consumer that refuses a message whose handling fails, and goes on."""

    connection_errors: tuple[type[Exception], ...]

    def create_task_handler(self, *given: Any, **named: Any) -> Callable[[Any], None]:
        handle = super().create_task_handler(*given, **named)

        def handle_or_refuse(message: Any) -> None:
            try:
                handle(message)
            except self.connection_errors:
                raise
            except Exception as error:  # noqa: BLE001 - any of them would end the worker
                log.error("a message in Celery's queue is refused: %r", type(error))  # noqa: TRY400 - what it holds is no business of a log
                if not message.acknowledged:
                    message.reject_log_error(log, self.connection_errors)

        return handle_or_refuse


def _require_arguments(body: object) -> None:
    if not isinstance(body, list | tuple) or len(body) != 3:
        raise InvalidTaskError("its body is no list of arguments, names and embeds")
    arguments, named, embed = body
    if not isinstance(arguments, list | tuple) or not isinstance(named, dict):
        raise InvalidTaskError("its arguments are no list with an object")
    if not isinstance(embed, dict | None):
        raise InvalidTaskError("what it embeds is no object")


def _plain(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Give the headers that ours have; raises InvalidTaskError without an id."""
    number = headers.get("id")
    if not isinstance(number, str) or not 0 < len(number) <= LONGEST_ID:
        raise InvalidTaskError("its id is no text, or too long")
    return {
        name: value
        for name, value in headers.items()
        if name in HEADERS and isinstance(value, str | int | float | None)
    }
