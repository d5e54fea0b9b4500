"""`manage.py grant_application_role`: grant the processes' database role its rights."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.errors import Invalid, Refused
from poisonweb import database_role_rights


class Command(BaseCommand):
    help = (
        "Give a database role the rights that web, worker, beat, lanes, sender and "
        "reports need, and no others; run it as the owner of the tables, after each "
        "migration. With POISONWEB_APPLICATION_PASSWORD a missing role is made. "
        "`prepare` does the same for POISONWEB_APPLICATION_ROLE."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("role", help="its name in Postgres")

    def handle(self, *_: Any, role: str, **__: Any) -> None:
        try:
            database_role_rights.grant(
                role=role, password=settings.POISONWEB_APPLICATION_PASSWORD
            )
        except (Invalid, Refused) as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(f"{role} has the rights of the application.")
