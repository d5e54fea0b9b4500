"""A consumer that sets its SIGTERM handler when its guard has started already.

    python late_sigterm_handler_consumer.py URL FOLDER HOW

HOW says where it does so. It notes in FOLDER each start of its slow message, and each
SIGTERM; that message is good, and takes longer than any test waits.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from pathlib import Path

from poisonguard import Guard
from tests.waiting import wait_until

URL, FOLDER, HOW = sys.argv[1:]
HOUR = 3600
SLOW = {"bookmark": "slow", "body": "{}"}
QUICK = {"bookmark": "quick", "body": "{}"}

guard = Guard(
    topic="orders",
    consumer_group="billing",
    client_name="billing-1",
    url=URL,
    api_key="pw_test_key",
    journal=Path(FOLDER, "journal"),
)


def append(name: str, line: str) -> None:
    with Path(FOLDER, name).open("a") as opened:
        opened.write(f"{line}\n")


def on_signal(*_: object) -> None:
    if HOW == "started off the main thread":
        guard.stopping()
    append("told", "stop")


def until_another_handler_than(late: object) -> None:
    wait_until(lambda: signal.getsignal(signal.SIGTERM) is not late)


def quick(_message: object) -> None:
    """Handle the first message, at which the guard checks the handlers."""


def slow(_message: object) -> None:
    if HOW not in ("before the first message", "started off the main thread"):
        until_another_handler_than(on_signal)
    append("started", "slow")
    time.sleep(HOUR)


async def slow_async(_message: object) -> None:
    late = signal.getsignal(signal.SIGTERM)
    await asyncio.to_thread(until_another_handler_than, late)
    append("started", "slow")
    await asyncio.sleep(HOUR)


async def in_a_loop() -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, on_signal)
    await guard.handle_async(SLOW, slow_async)


def main() -> None:
    if HOW == "started off the main thread":
        starting = threading.Thread(target=guard.start)
        starting.start()
        starting.join()
    else:
        guard.start()
    if HOW not in ("before the first message", "started off the main thread"):
        guard.handle(QUICK, quick)
    if HOW == "in a loop":
        asyncio.run(in_a_loop())
    signal.signal(signal.SIGTERM, on_signal)
    if HOW in ("beside the thread that handles", "started off the main thread"):
        handling = threading.Thread(target=guard.handle, args=(SLOW, slow))
        handling.start()
        handling.join()
    guard.handle(SLOW, slow)


if __name__ == "__main__":
    main()
