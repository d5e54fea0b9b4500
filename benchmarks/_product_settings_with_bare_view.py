"""The product's settings, with the views of the benchmarks and least middleware."""

from __future__ import annotations

from benchmarks._product_settings_with_least_view import *  # noqa: F403 - all of them

# Its app refuses to start without it.
MIDDLEWARE = ["allauth.account.middleware.AccountMiddleware"]
