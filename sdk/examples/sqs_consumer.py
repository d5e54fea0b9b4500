"""Consume a queue of Amazon SQS with boto3, until SIGTERM: its url is the argument.

    pip install ./sdk[sqs]
    export POISONGUARD_URL=https://key@poisonweb.example.com
    export POISONGUARD_TOPIC=orders POISONGUARD_CONSUMER_GROUP=billing
    python sdk/examples/sqs_consumer.py https://sqs.eu-central-1.amazonaws.com/123/orders

The topic is the name of the queue. Let its `maxReceiveCount` be well above the policy's
`max_attempts`: each retry and each release is a receive.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
import threading
from typing import Any

import boto3

from poisonguard import Guard, RetryPolicy
from poisonguard.readers.sqs import ATTRIBUTES, SqsReader

HIDDEN = 30  # seconds for which a message is ours: more than `charge` takes
POLL_SECONDS = 1  # seconds that a poll waits; longer ones cost less and stop later

log = logging.getLogger("orders")


def charge(message: dict[str, Any]) -> None:
    order = json.loads(message["Body"])
    log.info("charged %s for order %s", order["total"], order["id"])


def consume(url: str, stop: threading.Event) -> None:
    sqs = boto3.client("sqs")

    def hide(message: dict[str, Any], seconds: float) -> None:
        receipt, timeout = message["ReceiptHandle"], math.ceil(seconds)
        try:
            sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=timeout
            )
        except sqs.exceptions.ClientError as error:  # such as: not ours any more
            log.warning("message %s: %s", message["MessageId"], error)

    guard = Guard(
        reader=SqsReader(),
        policy=RetryPolicy(fatal=(ValueError, KeyError)),
        lease=HIDDEN,
        keep_alive=lambda message: hide(message, HIDDEN),
        redeliver=hide,
    )
    with guard:
        while not stop.is_set():
            # One at a time: those behind a slow one would become visible again.
            answer = sqs.receive_message(
                QueueUrl=url,
                WaitTimeSeconds=POLL_SECONDS,
                VisibilityTimeout=HIDDEN,
                **ATTRIBUTES,
            )
            for message in answer.get("Messages", []):
                if guard.handle(message, charge).settles:
                    receipt = message["ReceiptHandle"]
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consume(sys.argv[1], stop)
