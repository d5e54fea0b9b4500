"""`manage.py remove_second_factor NAME`: for a person who lost phone and codes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import PoisonwebError
from apps.team import second_factor
from apps.team.models import User


class Command(BaseCommand):
    help = "Take a person's second factor away, and sign them out everywhere."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")

    def handle(self, *_: Any, **options: Any) -> None:
        """Remove a user's second factor; the password alone then signs in."""
        name = options["username"]
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(f"there is no person {name}")
        actor = Actor.system("command line")
        try:
            second_factor.remove(user=user, actor=actor, now=clock.now())
        except PoisonwebError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(f"{name} signs in with the password alone")
