"""`manage.py create_api_key NAME --scope ... [--topic ...]`: print a key, once."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import PoisonwebError
from apps.team import services
from apps.team.rights import ALL_TOPICS


def moment(text: str) -> datetime:
    """Parse when an API key expires: at a UTC day's end, or after `90d`."""
    days = re.fullmatch("([0-9]{1,4})d", text)
    if days:
        return clock.now() + timedelta(days=int(days[1]))
    try:
        return datetime.combine(date.fromisoformat(text), time.max, UTC)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no day: write 2027-01-31 or 90d"
        ) from None


class Command(BaseCommand):
    help = "Make an API key and print it; it cannot be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--scope", action="append", default=[], required=True)
        parser.add_argument(
            "--topic", action="append", help="a name, or a pattern with *; default: all"
        )
        parser.add_argument(
            "--expires", type=moment, metavar="WHEN", help="as 2027-01-31 or 90d"
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Create an API key and print its secret, which is not shown again."""
        try:
            new_key = services.create_api_key(
                name=options["name"],
                scopes=options["scope"],
                topics=options["topic"] or ALL_TOPICS,
                expires_at=options["expires"],
                actor=Actor.system("command line"),
                now=clock.now(),
            )
        except PoisonwebError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(new_key.secret)
