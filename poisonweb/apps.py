"""The Django app of the whole product, with its commands and checks."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class PoisonwebConfig(AppConfig):
    name = "poisonweb"
    label = "poisonweb"

    def ready(self) -> None:
        import_module("poisonweb.checks")  # registers them
