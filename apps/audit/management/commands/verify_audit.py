"""`manage.py verify_audit`: walk the whole chain and say whether it holds."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.audit import verification


class Command(BaseCommand):
    help = "Recompute the audit chain; exit 1 and name the first bad entry if it lies."

    def handle(self, *_: Any, **__: Any) -> None:
        verdict = verification.verify()
        if not verdict.ok:
            raise CommandError(" ".join(verdict.troubles))
        self.stdout.write(f"ok: {verdict.entries} entries, head {verdict.head}")
