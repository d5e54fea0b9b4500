"""The outbox that the project's settings describe."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from poisonguard.errors import Misconfigured
from poisonguard.outbox import Outbox

SETTING = "POISONGUARD_OUTBOX"


def outbox(using: str = DEFAULT_DB_ALIAS) -> Outbox:
    """Return the outbox of a Django database for this thread; it is cheap to make."""
    return Outbox(connections[using], **_options())


def _options() -> dict[str, Any]:
    """Return the keyword arguments of `Outbox` that Django's settings have.

    Raise Misconfigured for others.
    """
    options: object = getattr(settings, SETTING, None)
    if not isinstance(options, dict) or "producer" not in options:
        raise Misconfigured(
            f"{SETTING} is {options!r:.80}: set it to a dictionary with the keywords of"
            " poisonguard.outbox.Outbox, such as {'producer': 'shop'}."
        )
    if unknown := options.keys() - {"producer", "limits", "schema"}:
        raise Misconfigured(
            f"{SETTING}: {', '.join(map(repr, sorted(unknown)))} is no keyword of"
            " Outbox: producer, limits and schema are."
        )
    return options
