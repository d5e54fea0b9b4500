"""Publish to Azure Storage Queues, each message confirmed, against Azure's own client.

Target: at least 0.9 of as many threads that send with the official Azure client, on
the same Azurite, in windows of the same size. That client is set up as well as it can
be: as many connections as threads, and no retries, redirects, proxies or log lines.
"""

from __future__ import annotations

import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from benchmarks._benchmark_harness import compare, product

NUMBER = 1_000
WINDOW = 200
THREADS = 32


def main(url: str) -> float:
    from azure.core.pipeline.transport import RequestsTransport
    from azure.storage.queue import QueueServiceClient
    from requests import Session
    from requests.adapters import HTTPAdapter

    from apps.brokers.adapter_contract import Outbound, OutcomeKind
    from apps.brokers.adapters.adapter import BrokerSettings
    from apps.brokers.adapters.azure_queue.adapter import ADAPTER

    logging.getLogger("azure").setLevel(logging.WARNING)
    session = Session()
    session.mount("http://", HTTPAdapter(pool_maxsize=THREADS, pool_block=True))
    service = QueueServiceClient.from_connection_string(
        url,
        transport=RequestsTransport(session=session, use_env_settings=False),
        retry_total=0,
        permit_redirects=False,
    )
    theirs = service.create_queue(f"theirs-{uuid4().hex}")
    ours = service.create_queue(f"ours-{uuid4().hex}").queue_name
    publisher = ADAPTER.publisher(BrokerSettings(url=url))
    threads = ThreadPoolExecutor(THREADS)
    body = os.urandom(768)
    text = "x" * 1_024  # what base64 makes of the body

    def redrive() -> None:
        window = [Outbound(topic=ours, body=body, headers=())] * WINDOW
        for _ in range(0, NUMBER, WINDOW):
            outcomes = publisher.publish(window)
            assert {outcome.kind for outcome in outcomes} == {OutcomeKind.SENT}

    def put(_: int) -> None:
        theirs.send_message(text, time_to_live=-1)

    def put_all() -> None:
        for _ in range(0, NUMBER, WINDOW):
            list(threads.map(put, range(WINDOW)))

    ratio = compare(
        "publisher",
        number=NUMBER,
        ours=redrive,
        baseline=put_all,
        named=f"{THREADS} threads of the official client",
    )
    publisher.close()
    threads.shutdown()
    return ratio


if __name__ == "__main__":
    from tests.brokers.azurite import AzuriteServer

    with product(), tempfile.TemporaryDirectory(prefix="pw-bench-") as folder:
        server = AzuriteServer(Path(folder))
        try:
            main(server.url)
        finally:
            server.stop()
