"""A Redis that hangs, the sample's and Celery's at once: decisions go on being made."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from functools import partial

import pytest

from tests.acceptance.api_client import ApiClient
from tests.acceptance.product_process import PYTHON, Product, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

SCOPES = ("poisons:read", "operations:read", "operations:write", "problems:read")
# More than the web has connections to Postgres.
PEOPLE = 20
# What is promised, where nothing else works beside it.
TEN_SECONDS = 10.0 if os.environ.get("SOAK") else 30.0


@pytest.fixture
def visitor(product: Product) -> ApiClient:
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    result = subprocess.run(
        [PYTHON, "manage.py", "create_api_key", "visitor", *scopes],
        cwd=product.tree,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return ApiClient(url=product.url, key=result.stdout.strip())


def undecided(visitor: ApiClient) -> list[int]:
    return [poison["id"] for poison in visitor.get("poisons", q="is:open")["results"]]


def is_done(visitor: ApiClient, operation: int) -> bool:
    return bool(visitor.get(f"operations/{operation}")["state"] == "done")


def test_confirming_does_not_wait_for_celery(
    product: Product, visitor: ApiClient
) -> None:
    wait_until(lambda: len(undecided(visitor)) >= PEOPLE)
    ids = undecided(visitor)
    selection = {"verb": "redrive"}
    tokens = [
        visitor.post("operations/preview", {**selection, "ids": [pk]})["token"]
        for pk in ids[:PEOPLE]
    ]
    accepted: list[int] = []

    def confirm(token: str) -> None:
        body: dict[str, object] = {"token": token, "reason": "hung"}
        accepted.append(visitor.post("operations", body)["id"])

    os.kill(product.pid("redis"), signal.SIGSTOP)
    try:
        began = time.monotonic()
        people = [threading.Thread(target=confirm, args=(t,)) for t in tokens]
        for each in people:
            each.start()
        for each in people:
            each.join()
        took = time.monotonic() - began
        still_reads = visitor.get("problems")["results"]
    finally:
        os.kill(product.pid("redis"), signal.SIGCONT)

    assert len(accepted) == PEOPLE
    assert took < TEN_SECONDS
    assert still_reads
    for operation in accepted:
        wait_until(partial(is_done, visitor, operation))
