"""Make a worker refuse messages in Celery's queue that are not Poisonweb's tasks.

Celery passes an error in a message's headers to the worker's main loop, which ends; the
message goes back to the queue and ends the next worker, too. Here the worker refuses
such a message with a line in the log, and goes on.
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
# The headers of our tasks. A worker would also obey any other header.
HEADERS = frozenset(
    {
        *("task", "id", "lang", "origin", "argsrepr", "kwargsrepr"),
        *("root_id", "parent_id", "retries", "expires", "redelivered"),
    }
)


class CheckedRequest(Request):
    """A task request with the headers of our tasks only, and with valid arguments.

    Other headers, such as time limits and stamps, are dropped: our tasks do not use
    them.
    """

    def __init__(self, message: Any, **kwargs: Any) -> None:
        body = kwargs.get("body") if kwargs.get("decoded") else message.payload
        _require_arguments(body)
        headers = (
            message.headers if kwargs.get("headers") is None else kwargs["headers"]
        )
        kwargs["headers"] = _plain(headers)
        super().__init__(message, **kwargs)


class CheckingConsumer(Consumer):
    """A consumer that refuses a message that it cannot handle, and goes on."""

    connection_errors: tuple[type[Exception], ...]

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        """Return the handler of messages of Poisonweb's Celery worker.

        It rejects a message whose handling raises. Errors of the broker's
        connection are raised.
        """
        handle = super().create_task_handler(*args, **kwargs)

        def handle_or_refuse(message: Any) -> None:
            try:
                handle(message)
            except self.connection_errors:
                raise
            except Exception as error:  # noqa: BLE001 - any of them would end the worker
                log.error("a message in Celery's queue is refused: %r", type(error))  # noqa: TRY400 - its contents stay out of the log
                if not message.acknowledged:
                    message.reject_log_error(log, self.connection_errors)

        return handle_or_refuse


def _require_arguments(body: object) -> None:
    """Raise InvalidTaskError if a message to our Celery worker has no task's body."""
    if not isinstance(body, list | tuple) or len(body) != 3:
        raise InvalidTaskError("its body is no list of arguments, names and embeds")
    arguments, named, embed = body
    if not isinstance(arguments, list | tuple) or not isinstance(named, dict):
        raise InvalidTaskError("its arguments are no list with an object")
    if not isinstance(embed, dict | None):
        raise InvalidTaskError("what it embeds is no object")


def _plain(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain headers of a message to our Celery worker, those in HEADERS.

    Raise InvalidTaskError without a valid id.
    """
    number = headers.get("id")
    if not isinstance(number, str) or not 0 < len(number) <= LONGEST_ID:
        raise InvalidTaskError("its id is no text, or too long")
    return {
        name: value
        for name, value in headers.items()
        if name in HEADERS and isinstance(value, str | int | float | None)
    }
