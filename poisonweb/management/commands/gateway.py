"""`manage.py gateway`: answer calls of endpoints until a signal stops it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from poisonweb import gateway


class Command(BaseCommand):
    help = "Answer calls of endpoints at /gateway/{endpoint}/{path}."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the gateway's address; only this machine reaches the usual one."""
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8001)

    def handle(self, *_: Any, host: str, port: int, **__: Any) -> None:
        """Run the gateway until a signal."""
        gateway.serve(host=host, port=port)
