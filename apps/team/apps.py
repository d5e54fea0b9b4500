"""The app of people, API keys and their rights."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class TeamConfig(AppConfig):
    name = "apps.team"
    label = "team"

    def ready(self) -> None:
        """Connect the receivers that audit each sign-in and sign-out."""
        import_module("apps.team.sign_in")  # connects its receivers
