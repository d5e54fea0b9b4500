"""People, keys and their rights; sign-ins are recorded wherever they happen."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class TeamConfig(AppConfig):
    name = "apps.team"
    label = "team"

    def ready(self) -> None:
        import_module("apps.team.sign_in")  # connects its receivers
