"""On servers of one's own: `migrate` and `runserver` are enough, without Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from poisonweb.embedded import postgres, redis
from poisonweb.embedded.free_ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def own_servers(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Give an environment that names two servers and finds no other program."""
    with (
        postgres.temporary(tmp_path / "postgres") as database_url,
        redis.temporary(tmp_path / "redis") as broker_url,
    ):
        yield {
            "PATH": os.defpath,
            "DATABASE_URL": database_url,
            "CELERY_BROKER_URL": broker_url,
            "POISONWEB_VAR": str(tmp_path / "var"),
        }


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        body: bytes = answer.read()
        return body


def read_if_up(url: str) -> str:
    with suppress(OSError):
        return read(url).decode()
    return ""


def test_migrate_and_runserver_serve_the_sign_in_with_its_looks(
    own_servers: dict[str, str],
) -> None:
    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "migrate", "-v0"], cwd=ROOT, env=own_servers, check=True)
    here = f"127.0.0.1:{free_port()}"

    server = subprocess.Popen(
        [*manage, "runserver", here, "--noreload"],
        cwd=ROOT,
        env=own_servers,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        page = wait_until(lambda: read_if_up(f"http://{here}/sign-in"), seconds=180)
        files = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
        sizes = [len(read(f"http://{here}{file}")) for file in files]
    finally:
        server.terminate()
        server.wait(timeout=60)

    assert len(sizes) >= 3
    assert all(sizes)


def test_nothing_of_the_product_needs_spark() -> None:
    probe = (
        "import sys; sys.modules['pyspark'] = None; import django; django.setup();"
        "from django.urls import get_resolver; get_resolver().url_patterns;"
        "import apps.capture.lanes.runner, apps.triage.tasks"
    )
    environment = {
        "PATH": "",
        "PYTHONPATH": str(ROOT / "sdk"),
        "DJANGO_SETTINGS_MODULE": "poisonweb.settings",
        "DATABASE_URL": os.environ["DATABASE_URL"],
        "CELERY_BROKER_URL": os.environ["CELERY_BROKER_URL"],
        "POISONWEB_SECRET_KEY": "probe",
    }

    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, env=environment, check=False
    )

    assert done.returncode == 0
