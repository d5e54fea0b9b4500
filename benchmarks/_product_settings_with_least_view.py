"""The product's settings, with the views of the benchmarks beside its own."""

from __future__ import annotations

from poisonweb.settings import *  # noqa: F403 - all of them

ROOT_URLCONF = "benchmarks._bare_insert_view_urls"
