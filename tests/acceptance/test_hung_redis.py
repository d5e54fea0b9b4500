"""A Redis that hangs, the sample's and Celery's at once: decisions go on being made."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.client import Client
from tests.acceptance.product import (
    ROOT,
    Product,
    copy_of_tree,
    environment,
    eventually,
    started,
)

pytestmark = pytest.mark.acceptance

PYTHON = ".venv/bin/python"
SCOPES = ("poisons:read", "operations:read", "operations:write", "problems:read")
# More than the web has connections to Postgres.
PEOPLE = 20


@pytest.fixture
def visitor(tmp_path: Path) -> Iterator[tuple[Product, Client]]:
    tree = copy_of_tree(tmp_path / "a clone")
    (tree / ".venv").symlink_to(ROOT / ".venv")
    with started(tree, PYTHON, "-m", "poisonweb.embedded", seconds=60) as product:
        scopes = [word for scope in SCOPES for word in ("--scope", scope)]
        made = subprocess.run(
            [PYTHON, "manage.py", "create_api_key", "visitor", *scopes],
            cwd=tree,
            env=environment(POISONWEB_VAR=str(product.var)),
            capture_output=True,
            text=True,
            check=True,
        )
        yield product, Client(url=product.url, key=made.stdout.strip())


def test_confirming_does_not_wait_for_celery(visitor: tuple[Product, Client]) -> None:
    product, client = visitor
    eventually(lambda: len(client.get("poisons")["results"]) >= PEOPLE, seconds=60)
    ids = [poison["id"] for poison in client.get("poisons")["results"]]
    ask = {"verb": "redrive"}
    tokens = [
        client.post("operations/preview", {**ask, "ids": [pk]})["token"]
        for pk in ids[:PEOPLE]
    ]
    accepted: list[int] = []

    def confirm(token: str) -> None:
        body: dict[str, object] = {"token": token, "reason": "hung"}
        accepted.append(client.post("operations", body)["id"])

    os.kill(product.pid("redis"), signal.SIGSTOP)
    try:
        began = time.monotonic()
        people = [threading.Thread(target=confirm, args=(t,)) for t in tokens]
        for each in people:
            each.start()
        for each in people:
            each.join()
        took = time.monotonic() - began
        still_reads = client.get("problems")["results"]
    finally:
        os.kill(product.pid("redis"), signal.SIGCONT)

    assert len(accepted) == PEOPLE
    assert took < 10
    assert still_reads
    for operation in accepted:
        path = f"operations/{operation}"
        eventually(lambda p=path: client.get(p)["state"] == "done", seconds=60)  # type: ignore[misc]
