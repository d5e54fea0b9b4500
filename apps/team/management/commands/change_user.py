"""`manage.py change_user NAME`: change a role or password, disable, sign out."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import PoisonwebError
from apps.team import services
from apps.team.management.password_prompt import ask_for_password
from apps.team.rights import Role

HERE = Actor.system("command line")


class Command(BaseCommand):
    help = "Change a person: role, right to read bodies, password, or whether enabled."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--role", choices=list(Role))
        _add_choice(parser, "--reads-bodies", "--reads-no-bodies", dest="reads_bodies")
        _add_choice(parser, "--enable", "--disable", dest="is_active")
        parser.add_argument(
            "--password", action="store_true", help="ask for a new one; ends sessions"
        )
        parser.add_argument(
            "--end-sessions", action="store_true", help="sign out everywhere"
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Change a user as the options say; print that it was done."""
        try:
            self._change(options["username"], options)
        except PoisonwebError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(f"{options['username']} is changed")

    def _change(self, username: str, options: dict[str, Any]) -> None:
        """Set role, rights and password, and end sessions, as the options say."""
        role = options["role"]
        user = services.alter_user(
            username=username,
            role=None if role is None else Role(role),
            reads_bodies=options["reads_bodies"],
            is_active=options["is_active"],
            actor=HERE,
            now=clock.now(),
        )
        if options["password"]:
            services.set_password(
                user=user, password=ask_for_password(), actor=HERE, now=clock.now()
            )
        if options["end_sessions"]:
            services.end_sessions(username=username, actor=HERE, now=clock.now())


def _add_choice(parser: CommandParser, yes: str, no: str, *, dest: str) -> None:
    """Add two opposite options of a user; neither leaves the value as it is."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(yes, action="store_true", dest=dest, default=None)
    choice.add_argument(no, action="store_false", dest=dest, default=None)
