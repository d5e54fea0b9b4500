"""Usage of sessions is reported for the limit with the fewest free ones."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connection

from apps.core.postgres_connections import open_session
from apps.core.postgres_session_usage import SPARE, Usage, usage
from tests.postgres_connection_limit_and_lock_waits import sessions_left
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


def test_the_server_limit_excludes_sessions_for_superusers() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('max_connections')::int"
            " - current_setting('superuser_reserved_connections')::int"
        )
        (most,) = cursor.fetchone()
    bound = usage()

    assert (bound.kind, bound.most) == ("server", most)
    assert bound.used >= 1
    assert not bound.is_short


def test_a_lower_limit_of_the_database_is_reported() -> None:
    def is_reported() -> bool:
        with sessions_left(1) as most:
            bound = usage()
        return bound.is_short and bound == Usage(
            kind="database", used=most - 1, most=most
        )

    # A session of the test before may end between the two counts.
    wait_until(is_reported)


@pytest.mark.django_db(transaction=True)
def test_the_reported_limit_is_the_one_that_postgres_enforces() -> None:
    def is_enforced() -> bool:
        with sessions_left(1) as most, open_session("test"):
            bound = usage()
            try:
                open_session("test").close()
            except psycopg.OperationalError as refusal:
                is_refused = "too many connections" in str(refusal)
            else:
                is_refused = False
        return is_refused and bound == Usage(kind="database", used=most, most=most)

    wait_until(is_enforced)


def test_usage_is_short_when_few_sessions_are_free() -> None:
    assert Usage(kind="server", used=100 - SPARE, most=100).is_short is False
    assert Usage(kind="server", used=101 - SPARE, most=100).is_short is True


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("server", "raise max_connections of Postgres, or run fewer processes"),
        ("role", "raise the connection limit of our role, or run fewer processes"),
    ],
)
def test_each_bound_has_its_remedy(kind: str, remedy: str) -> None:
    bound = Usage(kind=kind, used=91, most=97)

    assert (str(bound), bound.remedy) == ("91 of 97 are in use", remedy)
