"""Looks at the tables of a producer's database before they are swept."""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg

from apps.core.errors import PoisonwebError
from apps.outbox.producer_database import ProducerDatabase, search_path_to
from poisonguard.outbox.sweeping.inspection import Finding, FindingKind, inspect
from poisonguard.outbox.sweeping.settings import SweeperSettings

PURPOSE = "outbox inspection"
STATEMENT_SECONDS = 10.0


def findings(*, url: str, schema: str) -> list[Finding]:
    """Return what is wrong with the tables, the worst first; [] if nothing is.

    `url` is as it is stored. Never call it in a transaction: it waits for the database.
    """
    settings = SweeperSettings(
        schema=schema or None, statement_seconds=STATEMENT_SECONDS
    )
    try:
        database = ProducerDatabase.read(url)
        parameters = database.parameters(
            purpose=PURPOSE, settings=search_path_to(schema)
        )
    except PoisonwebError as refusal:
        remedy = "check the address, and where it leads"
        return [Finding(kind=FindingKind.AWAY, detail=str(refusal), remedy=remedy)]
    return inspect(partial(_connect, parameters), settings)


def _connect(parameters: dict[str, Any]) -> psycopg.Connection[Any]:
    return psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
