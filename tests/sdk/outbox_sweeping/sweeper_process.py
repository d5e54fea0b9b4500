"""A sweeper in a process of its own, which is killed or stopped at one of its calls.

Its broker is a Redis, or a file, to which it writes each message as a line.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

from poisonguard.locks.postgres import PostgresLocks
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendOutcome
from poisonguard.outbox.publishers.redis_streams import RedisStreamsPublisher
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.sweeper import Sweeper
from tests.sdk.outbox_sweeping.faulty_ports import Faults, faulty_connect
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import FAST, SENT

SENT_FILE, ERRORS_FILE = "sent", "errors"


class SweeperPlan(TypedDict):
    """What a process does: `at` numbers the call at which `signal_number` comes."""

    dsn: str
    folder: str
    redis_url: str | None
    at: int | None
    is_late: bool
    signal_number: int
    seconds: float
    settings: dict[str, Any]


class SignalAtCall(Faults):
    """Sends this process a signal in place of a fault."""

    def __init__(self, plan: SweeperPlan) -> None:
        super().__init__(plan["at"], is_late=plan["is_late"])
        self._number = plan["signal_number"]

    def call(
        self, name: str, work: Callable[[], Any], ruin: Callable[[Any], object] = bool
    ) -> Any:
        return super().call(name, work)

    def fail(self) -> None:
        self.is_over = True
        os.kill(os.getpid(), self._number)


def main(text: str) -> None:
    plan: SweeperPlan = json.loads(text)
    folder, faults = Path(plan["folder"]), SignalAtCall(plan)

    def write(batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        with (folder / SENT_FILE).open("a") as file:
            for message in batch:
                file.write(f"{message.message_id}\n")
                # Half of a window may have been sent.
                file.flush()
        return [SENT] * len(batch)

    send: Callable[[Sequence[OutboxMessage]], list[SendOutcome]] = write
    if plan["redis_url"] is not None:
        send = RedisStreamsPublisher(plan["redis_url"])

    def publish(batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        outcomes: list[SendOutcome] = faults.call("publish", lambda: send(batch))
        return outcomes

    sweeper = Sweeper(
        faulty_connect(plan["dsn"], faults),
        PostgresLocks(plan["dsn"]),
        publish,
        settings=SweeperSettings(**FAST | plan["settings"]),
    )
    until = time.monotonic() + plan["seconds"]
    while time.monotonic() < until:
        time.sleep(min(0.1, sweeper.work_once()))
        kinds = sorted({error.kind for error in sweeper.errors.errors})
        draft = folder / "draft"
        draft.write_text("\n".join(kinds))
        draft.rename(folder / ERRORS_FILE)
    sweeper.close()


def plan_text(**plan: Any) -> str:
    defaults: dict[str, Any] = {
        "redis_url": None,
        "at": None,
        "is_late": False,
        "signal_number": int(signal.SIGKILL),
        "seconds": 600.0,
        "settings": {},
    }
    return json.dumps(defaults | plan)
