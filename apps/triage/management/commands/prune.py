"""`manage.py prune`: delete old previews, idempotency keys and sessions."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from apps.core import clock
from apps.triage.services import orphaned_operations_and_expired_rows


class Command(BaseCommand):
    help = "Delete unconfirmed previews and idempotency keys that are past their time."

    def handle(self, *_: Any, **__: Any) -> None:
        """Delete old previews and more, as the nightly task does; print numbers."""
        pruned = orphaned_operations_and_expired_rows.prune(now=clock.now())
        self.stdout.write(
            f"{pruned.previews} previews, {pruned.idempotency_keys} idempotency keys"
        )
