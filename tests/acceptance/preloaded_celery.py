"""Celery as its command runs it, in a process that has loaded the product already."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from django.db import connection

from poisonweb.celery import app

# What a worker and beat load when they start.
for module in (
    *("celery.bin.celery", "celery.apps.beat", "celery.apps.worker"),
    *("celery.concurrency.prefork", "kombu.transport.redis"),
):
    import_module(module)
app.loader.import_default_modules()


def main(database: str, log: Path, arguments: Sequence[str]) -> None:
    """Lead a group of processes that works for `database`, and writes to `log`."""
    os.setpgid(0, 0)
    with log.open("ab") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    connection.settings_dict["NAME"] = database
    app.start(list(arguments))
