"""A gateway in a process of its own, on the database of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from poisonweb.embedded.free_ports import LOOPBACK
from tests.acceptance.product_process import ROOT
from tests.acceptance.web_server_process import url_of_this_database
from tests.waiting import await_start


@contextmanager
def gateway_process(port: int, key: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `manage.py gateway` until the end of the block, or until it is killed."""
    process = subprocess.Popen(
        (sys.executable, "manage.py", "gateway", "--port", str(port)),
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": url_of_this_database(),
            "POISONWEB_ENDPOINT_HOSTS": LOOPBACK,
        },
    )
    try:
        await_start(process, lambda: _answers(port, key), seconds=300)
        yield process
    finally:
        process.kill()
        process.wait()


def _answers(port: int, key: str) -> bool:
    """Tell whether the gateway has read its keys: until then it answers 503."""
    request = Request(f"http://{LOOPBACK}:{port}/gateway/none/")
    request.add_header("X-Poisonweb-Key", key)
    try:
        with urlopen(request):
            return False
    except HTTPError as error:
        return error.code == HTTPStatus.NOT_FOUND
    except OSError:
        return False
