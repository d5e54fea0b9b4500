"""Consume an Azure storage queue, until SIGTERM: its name is the argument.

    pip install ./sdk[azure]
    export AZURE_STORAGE_CONNECTION_STRING=...
    export POISONGUARD_URL=https://key@poisonweb.example.com
    export POISONGUARD_TOPIC=orders POISONGUARD_CONSUMER_GROUP=billing
    python sdk/examples/azure_queue_consumer.py orders

Let the topic's `maxDequeueCount` be well above the policy's `max_attempts`: each retry
and each release is counted there.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import threading
from contextlib import suppress

from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue import QueueClient, QueueMessage

from poisonguard import Guard, RetryPolicy
from poisonguard.readers.azure_queue import AzureQueueReader

HIDDEN = 30  # seconds for which a message is ours: more than `charge` takes
PAUSE = 1  # seconds between two looks into an empty queue

log = logging.getLogger("orders")
reader = AzureQueueReader()  # producers write base64, or plain text


def charge(message: QueueMessage) -> None:
    order = json.loads(reader.body(message))
    log.info("charged %s for order %s", order["total"], order["id"])


def consume(queue: QueueClient, stop: threading.Event) -> None:
    def hide(message: QueueMessage, seconds: float) -> None:
        try:
            hidden = queue.update_message(
                message, visibility_timeout=math.ceil(seconds)
            )
        except ResourceNotFoundError:
            log.warning("message %s is not ours any more", message.id)
            return
        # The former receipt is void: to settle it later takes this one.
        message.pop_receipt = hidden.pop_receipt

    guard = Guard(
        reader=reader,
        policy=RetryPolicy(fatal=(ValueError, KeyError)),
        lease=HIDDEN,
        keep_alive=lambda message: hide(message, HIDDEN),
        redeliver=hide,
    )
    with guard:
        while not stop.is_set():
            message = queue.receive_message(visibility_timeout=HIDDEN)
            if message is None:
                stop.wait(PAUSE)
            elif guard.handle(message, charge).settles:
                with suppress(ResourceNotFoundError):  # it comes, or came, again
                    queue.delete_message(message)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("azure").setLevel(logging.WARNING)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    account = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
    consume(QueueClient.from_connection_string(account, sys.argv[1]), stop)
