"""A guarded task of Celery; the worker consumes the queue that is the topic.

    pip install ./sdk[celery]
    export BROKER_URL=amqp://guest:guest@localhost/
    export POISONGUARD_URL=https://key@poisonweb.example.com
    export POISONGUARD_TOPIC=orders POISONGUARD_CONSUMER_GROUP=billing
    cd sdk/examples && celery -A celery_tasks worker -Q orders

The sender of `charge.apply_async([order], queue="orders")` needs the same settings.
A requeue reaches the task on RabbitMQ, and on no other broker of Celery's.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_shutdown
from celery.utils.log import get_task_logger

from poisonguard import Guard, RetryPolicy
from poisonguard.readers.celery import CeleryReader, guarded_task, redeliver

log = get_task_logger(__name__)
app = Celery("orders", broker=os.environ["BROKER_URL"])

# Each process of the worker starts it with its first task.
guard = Guard(
    reader=CeleryReader(),
    policy=RetryPolicy(fatal=(ValueError, KeyError)),
    redeliver=redeliver,
)


@guarded_task(app, guard, name="charge")
def charge(order: dict[str, Any]) -> None:
    log.info("charged %s for order %s", order["total"], order["id"])


@worker_process_shutdown.connect
def close(**_: object) -> None:
    guard.close()
