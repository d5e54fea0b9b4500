"""`manage.py verify_audit`: walk the whole chain and say whether it holds."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.audit import services


class Command(BaseCommand):
    help = "Recompute the audit chain; exit 1 and name the first bad entry if it lies."

    def handle(self, *_: Any, **__: Any) -> None:
        verdict = services.verify()
        if not verdict.ok:
            raise CommandError(
                f"the audit chain is broken at entry {verdict.first_bad}"
            )
        self.stdout.write(f"ok: {verdict.entries} entries, head {verdict.head}")
