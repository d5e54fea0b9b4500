"""The app of the outbox's tables."""

from __future__ import annotations

from django.apps import AppConfig


class PoisonguardConfig(AppConfig):
    """An app with a migration and a model to read."""

    name = "poisonguard_django"
    verbose_name = "Outbox"
    default_auto_field = "django.db.models.BigAutoField"
