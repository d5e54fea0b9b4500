"""A topic that is at work goes nowhere: whoever writes of it holds it, or learns.

A foreign key would ask, too, but only at the commit, when it is too late to say which
topic went; and not every table that tells of topics has one.
"""

from __future__ import annotations

from collections.abc import Collection

from django.db import connection

from apps.brokers.errors import Removed
from apps.brokers.models import Broker
from apps.core.errors import Absent

# The weakest lock that stops a removal: others may hold it and change the row, too.
_TOPICS = """
SELECT count(*) FROM (
    SELECT FROM brokers_topic WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE
) held
"""
_BROKER = "SELECT id FROM brokers_broker WHERE id = %s FOR KEY SHARE"


def hold(*, topics: Collection[int]) -> None:
    """Let nobody remove these topics before the transaction ends.

    Raises Removed where one of them is gone already.
    """
    ids = set(topics)
    with connection.cursor() as cursor:
        cursor.execute(_TOPICS, [list(ids)])
        (locked_count,) = cursor.fetchone()
    if locked_count < len(ids):
        raise Removed


def hold_broker(broker: Broker) -> None:
    """Let nobody remove a broker before the transaction ends; raises Absent."""
    with connection.cursor() as cursor:
        cursor.execute(_BROKER, [broker.pk])
        if cursor.fetchone() is None:
            raise Absent(f"There is no broker {broker.name} here any more.")
