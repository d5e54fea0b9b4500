"""A consumer of its own process, for messages that kill it.

    python crashing_guarded_consumer.py URL FOLDER HOW THREADS BOOKMARK...

Its broker is a file in FOLDER: whatever was settled there does not come again. The
message `killer` makes its handler end the process as HOW says.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

from poisonguard import Guard, RetryPolicy

URL, FOLDER, HOW, THREADS, *BOOKMARKS = sys.argv[1:]
SETTLED = Path(FOLDER, "settled")
HANDLED = Path(FOLDER, "handled")

ENDS = {
    "exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "sys.exit": lambda: sys.exit(3),
    "hang": lambda: time.sleep(3600),
    "wait": lambda: time.sleep(3600),
    "stubborn": lambda: time.sleep(3600),
}
FIRST = not HANDLED.exists()
together = threading.Barrier(int(THREADS))


def append(file: Path, line: str) -> None:
    with file.open("a") as opened:
        opened.write(f"{line}\n")


def handle(message: dict[str, str]) -> None:
    if HOW == "together" and FIRST:
        together.wait(timeout=30)
    if message["bookmark"] == "killer":
        append(HANDLED, "killer")
        ENDS.get(HOW, ENDS["kill"])()
    # In the first process no message is done before the killer strikes.
    time.sleep(30 if HOW == "together" and FIRST else 0.01)
    append(HANDLED, message["bookmark"])


def work() -> None:
    while True:
        try:
            bookmark = waiting.get_nowait()
        except queue.Empty:
            return
        if guard.handle({"bookmark": bookmark, "body": "{}"}, handle).settles:
            append(SETTLED, bookmark)


guard = Guard(
    topic="orders",
    consumer_group="billing",
    client_name="billing-1",
    url=URL,
    api_key="pw_test_key",
    journal=Path(FOLDER, "journal"),
    policy=RetryPolicy(max_attempts=5, base=0.01, cap=0.01),
    handler_timeout=2.5 if HOW == "hang" else None,
    hold_for=20,
)
settled = set(SETTLED.read_text().split()) if SETTLED.exists() else set()
waiting: queue.Queue[str] = queue.Queue()
for name in BOOKMARKS:
    if name not in settled:
        waiting.put(name)

if __name__ == "__main__":
    Path(FOLDER, "journal").mkdir(exist_ok=True)
    if HOW == "stubborn":
        signal.signal(signal.SIGTERM, lambda *_: append(Path(FOLDER, "told"), "stop"))
    with guard:
        if THREADS == "1":
            work()
        else:
            threads = [threading.Thread(target=work) for _ in range(int(THREADS))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
