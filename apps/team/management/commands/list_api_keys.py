"""`manage.py list_api_keys`: list the keys, their rights and their last use."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand

from apps.core import clock
from apps.team.models import ApiKey


class Command(BaseCommand):
    help = "List the API keys, one a line, separated by tabs; secrets are not kept."

    def handle(self, *_: Any, **__: Any) -> None:
        """Print the API keys, a line each, with tabs; secrets are not stored."""
        now = clock.now()
        self.stdout.write("name\tstate\tscopes\ttopics\texpires\tlast used")
        for key in ApiKey.objects.order_by("name"):
            fields = (
                key.name,
                key.state(now),
                " ".join(key.scopes),
                " ".join(key.topics),
                _format_moment(key.expires_at),
                _format_moment(key.last_used_at),
            )
            self.stdout.write("\t".join(fields))


def _format_moment(moment: datetime | None) -> str:
    """Format the time of an API key; "-" for none."""
    return "-" if moment is None else moment.isoformat(timespec="seconds")
