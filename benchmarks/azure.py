"""Publish messages to Azure Storage Queues, each confirmed, against Azure's own client.

Target: at least 0.9 of as many threads that send with the official Azure client, on
the same Azurite, in windows of the same size.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from benchmarks._bench import compare

NUMBER = 1_000
WINDOW = 200
THREADS = 32


def main(url: str) -> float:
    from azure.storage.queue import QueueServiceClient

    from apps.brokers.adapters.adapter import BrokerSettings
    from apps.brokers.adapters.azure_queue.adapter import ADAPTER
    from apps.brokers.ports import Outbound, OutcomeKind

    body = os.urandom(768)
    service = QueueServiceClient.from_connection_string(url)
    theirs = service.create_queue(f"theirs-{uuid4().hex}")
    ours = service.create_queue(f"ours-{uuid4().hex}").queue_name
    publisher = ADAPTER.publisher(BrokerSettings(url=url))
    threads = ThreadPoolExecutor(THREADS)
    text = "x" * 1_024  # what base64 makes of the body

    def redrive() -> None:
        window = [Outbound(topic=ours, body=body, headers=())] * WINDOW
        for _ in range(0, NUMBER, WINDOW):
            outcomes = publisher.publish(window)
            assert {outcome.kind for outcome in outcomes} == {OutcomeKind.SENT}

    def put() -> None:
        for _ in range(0, NUMBER, WINDOW):
            list(threads.map(lambda _: theirs.send_message(text), range(WINDOW)))

    ratio = compare(
        "publisher",
        number=NUMBER,
        ours=redrive,
        baseline=put,
        named=f"{THREADS} threads of the official client",
    )
    publisher.close()
    threads.shutdown()
    return ratio


if __name__ == "__main__":
    from tests.brokers.azurite import Server

    with tempfile.TemporaryDirectory(prefix="pw-bench-") as folder:
        server = Server(Path(folder))
        try:
            main(server.url)
        finally:
            server.stop()
