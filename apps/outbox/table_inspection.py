"""Find what to mend in the tables of a producer before they are swept."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg

from apps.core.errors import PoisonwebError
from apps.core.postgres_connections import give_back_session
from apps.outbox.database_error_texts import ErrorTexts
from apps.outbox.producer_database_answer_limits import limit_answers
from apps.outbox.producer_database_url import ProducerDatabase, search_path_to
from poisonguard.outbox.sweeping.inspection import Finding, FindingKind, inspect
from poisonguard.outbox.sweeping.settings import SweeperSettings

PURPOSE = "outbox inspection"
STATEMENT_SECONDS = 10.0
# Of all that is asked.
INSPECTION_SECONDS = 15.0
# As libpq says it.
NO_TLS = "server does not support SSL"
REMEDY_WITHOUT_TLS = (
    "give the server TLS, or end the address with ?sslmode=disable: without sslmode"
    " TLS is required"
)


def findings(*, url: str, schema: str, for_manager: bool = False) -> list[Finding]:
    """List what is wrong with a producer's outbox tables, the worst first.

    It is [] if nothing is. `url` is as it is stored; only a manager sees its host and
    its user. Never call it in a transaction: it waits for the database.
    """
    give_back_session()
    settings = SweeperSettings(
        schema=schema or None, statement_seconds=STATEMENT_SECONDS
    )
    try:
        database = ProducerDatabase.read(url)
        parameters = database.parameters(
            purpose=PURPOSE, settings=search_path_to(schema)
        )
        with ExitStack() as limits:
            listed = inspect(partial(_connect, parameters, limits), settings)
    except PoisonwebError as refusal:
        remedy = "check the address, and where it leads"
        listed = [Finding(kind=FindingKind.AWAY, detail=str(refusal), remedy=remedy)]
    except psycopg.OperationalError as too_much:
        remedy = "see what keeps the database busy, and look again"
        listed = [Finding(kind=FindingKind.AWAY, detail=str(too_much), remedy=remedy)]
    listed = [_with_way_around_tls(each) for each in listed]
    return listed if for_manager else [_cleaned(each, url) for each in listed]


def _with_way_around_tls(finding: Finding) -> Finding:
    """Say how a server without TLS is reached, where that is what is wrong."""
    if NO_TLS not in finding.detail:
        return finding
    return replace(finding, remedy=f"{REMEDY_WITHOUT_TLS}; or {finding.remedy}")


def _cleaned(finding: Finding, url: str) -> Finding:
    texts = ErrorTexts(url)
    return replace(
        finding, detail=texts.clean(finding.detail), sql=texts.clean(finding.sql)
    )


def _connect(parameters: dict[str, Any], limits: ExitStack) -> psycopg.Connection[Any]:
    """Connect to a producer's database, its answers limited until the stack ends."""
    connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
    limits.enter_context(limit_answers(connection, seconds=INSPECTION_SECONDS))
    return connection
