"""HTTP API v1: JSON in and out; views parse, ask one thing, answer."""

from __future__ import annotations

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "apps.api"
    label = "api"
