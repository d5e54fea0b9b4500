"""moto's SQS with an extra path that shows a queue without receiving.

It also reports what SQS does and moto does not: the queue that a dead letter came from.
And it does not count a whole queue for each message sent to it.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.sqs.models import Message, Queue, sqs_backends
from moto.sqs.responses import SQSResponse
from werkzeug.serving import run_simple

from tests.brokers.moto import LOOK, LOOPBACK, REGION

CAME_FROM = "DeadLetterQueueSourceArn"

SENDS = "AmazonSQS.SendMessage"
BY_CONTENT = "ContentBasedDeduplication"

_add, _receive = Queue.add_message, SQSResponse.receive_message
_attributes: Any = Queue.attributes
_homes: dict[str, str] = {}
_request = threading.local()


def add_message(queue: Queue, message: Message) -> None:
    _homes.setdefault(message.id, queue.queue_arn)
    _add(queue, message)


def receive_message(response: SQSResponse) -> Any:
    answer: Any = _receive(response)
    queue = response.sqs_backend.get_queue(response._get_queue_name())
    for message in answer.result.get("Messages", []):
        if _homes[message["MessageId"]] != queue.queue_arn:
            message["Attributes"][CAME_FROM] = _homes[message["MessageId"]]
    return answer


def attributes(queue: Any) -> dict[str, Any]:
    """Return a queue's attributes; to a sender, only the one that it asks for."""
    if not _request.sends:
        values: dict[str, Any] = _attributes.fget(queue)
        return values
    if not queue.fifo_queue:
        return {}
    return {BY_CONTENT: str(queue.content_based_deduplication).lower()}


def serve(port: int) -> None:
    moto_queue: Any = Queue
    moto_answers: Any = SQSResponse
    moto_queue.add_message = add_message
    moto_queue.attributes = property(attributes)
    moto_answers.receive_message = receive_message
    app = DomainDispatcherApplication(create_backend_app)

    def application(
        environ: dict[str, Any], start: Callable[..., Any]
    ) -> Iterable[bytes]:
        _request.sends = environ.get("HTTP_X_AMZ_TARGET", "").startswith(SENDS)
        if environ["PATH_INFO"] != LOOK:
            answer: Iterable[bytes] = app(environ, start)
            return answer
        (queue,) = parse_qs(environ["QUERY_STRING"]).get("queue", [""])
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(_contents(queue)).encode()]

    run_simple(
        LOOPBACK, port, application, threaded=True, request_handler=MotoRequestHandler
    )


def _contents(queue: str) -> list[dict[str, Any]]:
    backend = sqs_backends[DEFAULT_ACCOUNT_ID][REGION].queues.get(queue)
    return [_plain(message) for message in (backend._messages if backend else ())]


def _plain(message: Any) -> dict[str, Any]:
    return {
        "body": message.body,
        "attributes": {
            name: (value["DataType"], _base64(value))
            for name, value in message.message_attributes.items()
        },
        "group": message.group_id,
        "dedupe": message.deduplication_id,
        "receives": message.approximate_receive_count,
        "visible_at": message.visible_at,
    }


def _base64(value: dict[str, Any]) -> str:
    content = value.get("BinaryValue") or value["StringValue"].encode()
    # moto keeps a binary value as it came over the wire, which is in base64.
    return content if isinstance(content, str) else base64.b64encode(content).decode()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
