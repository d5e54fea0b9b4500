"""`manage.py create_user NAME --role operator`: add a person; asks for the password."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import PoisonwebError
from apps.team import services
from apps.team.management.password_prompt import ask_for_password
from apps.team.rights import Role


class Command(BaseCommand):
    help = "Add a person. The password is asked for, or read from standard input."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--role", choices=list(Role), default=Role.OPERATOR.value)
        parser.add_argument("--reads-bodies", action="store_true")

    def handle(self, *_: Any, **options: Any) -> None:
        """Create a user, with a password that is asked for or read from input."""
        try:
            services.create_user(
                username=options["username"],
                password=ask_for_password(),
                role=Role(options["role"]),
                reads_bodies=options["reads_bodies"],
                actor=Actor.system("command line"),
                now=clock.now(),
            )
        except PoisonwebError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(f"{options['username']} may sign in")
