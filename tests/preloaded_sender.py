"""`manage.py sender` or `lanes`, in a process that has loaded the product already."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from django.conf import settings
from django.core.management import call_command
from django.db import connection

for module in (
    "apps.redelivery.management.commands.sender",
    "apps.capture.management.commands.lanes",
):
    import_module(module)


def main(database: dict[str, Any], log: Path, command: str) -> None:
    """Run the command for this database, and write to `log`."""
    with log.open("ab") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    connection.settings_dict |= database
    settings.POISONWEB_ENDPOINT_HOSTS = ("127.0.0.1",)
    call_command(command)
