"""A Celery task that kills its process where its order says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Ignore

from poisonguard import Guard, RetryPolicy
from poisonguard.readers.celery import CeleryReader, guarded_task, redeliver

app = Celery("deadly", broker=os.environ["BROKER_URL"])
guard = Guard(
    reader=CeleryReader(),
    policy=RetryPolicy(max_attempts=3, base=0.01, cap=0.01),
    redeliver=redeliver,
)


@guarded_task(app, guard, name="charge", bind=True)
def charge(task: Any, order: dict[str, Any]) -> int:
    name = order["id"]
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{name}\n")
    if order.get("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    if order.get("ignores"):
        raise Ignore
    if order.get("fails", 0) > task.request.retries:
        raise ValueError("not yet")
    return int(name)
