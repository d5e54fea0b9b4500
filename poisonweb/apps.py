"""The product as a whole, to Django: its commands and its checks."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class PoisonwebConfig(AppConfig):
    name = "poisonweb"
    label = "poisonweb"

    def ready(self) -> None:
        import_module("poisonweb.checks")  # registers them
