"""A process that is frozen inside a transaction does not keep rows from others."""

from __future__ import annotations

import pytest
from django.db import connection

from apps.core.postgres_connections import borrow
from apps.redelivery.management.commands.sender import sessions
from poisonweb.gateway import session_parameters

pytestmark = pytest.mark.django_db(transaction=True)


def idle_limit() -> str:
    with borrow(), connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        limit: str = cursor.fetchone()[0]
    return limit


def test_sessions_of_a_sender_end_that_are_idle_in_a_transaction() -> None:
    assert idle_limit() == "0"

    with sessions():
        assert idle_limit() == "5s"


def test_sessions_of_a_gateway_end_that_are_idle_in_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = session_parameters(connection.settings_dict["OPTIONS"])
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", parameters)
    try:
        assert idle_limit() == "5s"
    finally:
        connection.close()
