"""`manage.py create_api_key NAME --scope ... [--topic ...]`: print a key, once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import PoisonwebError
from apps.team import services
from apps.team.rights import ALL_TOPICS


class Command(BaseCommand):
    help = "Make an API key and print it; it cannot be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--scope", action="append", default=[], required=True)
        parser.add_argument(
            "--topic", action="append", help="a name, or a pattern with *; default: all"
        )

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            made = services.create_api_key(
                name=options["name"],
                scopes=options["scope"],
                topics=options["topic"] or ALL_TOPICS,
                actor=Actor.system("command line"),
                now=clock.now(),
            )
        except PoisonwebError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(made.secret)
