"""Tasks of Celery: a decorator that makes a guarded task, and how its message is read.

The id of the task is that of its message. What a requeue can do depends on the broker:

- On RabbitMQ a requeue reaches the task, under the same task id, where the topic in
  Poisonweb is the queue that the worker consumes. Properties and headers are those of
  its message. The body holds the same arguments, serialized again by the same
  serializer: Celery does not pass its bytes to a task.
- On other brokers of Celery (Redis, SQS) a message is an envelope of kombu's, which
  Poisonweb does not make: it keeps what failed, and no requeue reaches the task.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject, TaskPredicate
from kombu.serialization import (  # type: ignore[attr-defined] # no stub has it
    dumps,
    registry,
)

from poisonguard.errors import GuardError
from poisonguard.outcome import Outcome
from poisonguard.readers import Headers, Reader, amqp, to_bytes

if TYPE_CHECKING:
    from poisonguard.guard import Guard

log = logging.getLogger(__name__)

# Attributes of a request that are no headers of its message.
_ADDED = frozenset(
    {
        *("args", "kwargs", "properties", "reply_to", "correlation_id", "hostname"),
        *("delivery_info", "loglevel", "logfile", "is_eager", "called_directly"),
        *("callbacks", "errbacks", "chain", "chord", "headers", "time_limit"),
        *("soft_time_limit", "utc", "_protected"),
    }
)
# The body that is serialized again is not compressed.
_COMPRESSION = "compression"
_EMBEDDED = ("callbacks", "errbacks", "chain", "chord")
AFTER_NO_START = 5.0  # seconds, before a task without a guard is tried again
# A task of Celery gives up after so many retries: that is for the guard to say.
_MOST_RETRIES = 2**31


class NotHandled(GuardError):
    """A task is not run: it is poison, or skipped."""


@dataclass(kw_only=True, slots=True)
class TaskMessage:
    """The message of a running task; `request` is Celery's request."""

    task: Any
    request: Any
    due_in: float | None = None  # seconds, once it is to come again


def redeliver(message: TaskMessage, seconds: float) -> None:
    """Return a task's message to Celery by its own retry, which holds no process.

    This sets when it is due; the retry is raised once the guard releases the message.
    """
    message.due_in = seconds


def guarded_task(
    app: Any, guard: Guard, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Make a task of a function, as `app.task` does, with the guard around it.

    Its message is acknowledged late, and comes again when its process is lost: without
    that, a message that kills could not be found. A task that is poison, or skipped,
    ends in the state FAILURE: what is chained to it does not run.
    """
    bind = options.pop("bind", False)

    def make(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def run(task: Any, /, *args: Any, **kwargs: Any) -> Any:
            bound = (task, *args) if bind else args
            if task.request.called_directly or task.request.is_eager:
                return function(*bound, **kwargs)
            return _run_guarded(guard, task, lambda: function(*bound, **kwargs))

        late = {"acks_late": True, "reject_on_worker_lost": True}
        return app.task(bind=True, **late, **options)(run)

    return make


def _run_guarded(guard: Guard, task: Any, call: Callable[[], Any]) -> Any:
    """Have the guard run a task; return its result, or raise what Celery expects."""
    message = TaskMessage(task=task, request=task.request)
    ended: dict[str, Any] = {}

    def handler(_: object) -> None:
        ended.clear()
        try:
            ended["value"] = call()
        except TaskPredicate as wish:  # Retry, Ignore and Reject are no failures
            ended["wish"] = wish
        except Exception as error:
            ended["error"] = error
            raise

    try:
        outcome = guard.handle(message, handler)
    except GuardError as why:  # the guard could not start: the task did not run
        log.error("%s comes again: %s", task.request.id, why)  # noqa: TRY400
        message.due_in = AFTER_NO_START
        raise _redelivery_of(message) from why
    if outcome is Outcome.RELEASE:
        raise _redelivery_of(message)
    if outcome is Outcome.HANDLED:
        if "wish" in ended:
            raise ended["wish"]
        return ended["value"]
    raise ended.get("error") or NotHandled(f"the task {task.request.id} is {outcome}")


def _redelivery_of(message: TaskMessage) -> Exception:
    """Return the exception that makes Celery deliver a message again."""
    if message.due_in is None:
        return Reject("it was released by its guard", requeue=True)
    try:
        again: Exception = message.task.retry(
            countdown=math.ceil(message.due_in), max_retries=_MOST_RETRIES, throw=False
        )
    except Reject as unsent:  # Celery would drop what it cannot send
        return Reject(str(unsent), requeue=True)
    return again


class CeleryReader(Reader):
    """Read the message of a task."""

    def bookmark(self, message: TaskMessage) -> str:
        """Return the task id as the message's bookmark."""
        return str(message.request.id)

    def message_id(self, message: TaskMessage) -> str:
        """Return the task id as the message's id."""
        return str(message.request.id)

    def body(self, message: TaskMessage) -> bytes:
        """Serialize the task's arguments again, as the producer did."""
        request = message.request
        embedded = {name: getattr(request, name, None) for name in _EMBEDDED}
        payload = (request.args, request.kwargs, embedded)
        serializer = registry.type_to_name[self.content_type(message)]
        return to_bytes(dumps(payload, serializer)[2])

    def headers(self, message: TaskMessage) -> Headers:
        """Return the task's properties and headers as a RabbitMQ lane stores them."""
        request = vars(message.request)
        properties = request.get("properties") or {}
        headers = properties.get("application_headers")
        if headers is None:  # of another broker than RabbitMQ
            headers = {n: value for n, value in request.items() if n not in _ADDED}
        own = {n: value for n, value in headers.items() if n != _COMPRESSION}
        return amqp.pairs(properties, own)

    def redrive(self, message: TaskMessage) -> str | None:
        """Return the value of the task's redrive header, or None."""
        return amqp.redrive(vars(message.request))

    def content_type(self, message: TaskMessage) -> str:
        """Return the media type of the task's serializer, JSON if not named."""
        properties = message.request.properties or {}
        return properties.get("content_type") or "application/json"

    def dequeue_count(self, message: TaskMessage) -> int | None:
        """Return how often a quorum queue delivered the task, or None."""
        properties = message.request.properties or {}
        return amqp.dequeue_count(properties.get("application_headers"))
