"""Decisions over many items, carried out by one engine."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class TriageConfig(AppConfig):
    name = "apps.triage"
    label = "triage"

    def ready(self) -> None:
        """Register poisons as items that operations can act on."""
        kinds = import_module("apps.triage.item_kinds")
        poison_items = import_module("apps.triage.services.messages_as_operation_items")
        kinds.register(poison_items.POISONS)
