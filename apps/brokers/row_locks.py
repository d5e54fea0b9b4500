"""Row locks that keep a topic or broker from being removed while we write about it.

A foreign key would fail only at the commit, without saying which topic is gone; and not
every table that names topics has one.
"""

from __future__ import annotations

from collections.abc import Collection

from django.db import connection

from apps.brokers.errors import Removed
from apps.brokers.models import Broker
from apps.core.errors import Absent

# The weakest lock that stops a removal: others may share it, or change the row.
_TOPICS = """
SELECT count(*) FROM (
    SELECT FROM brokers_topic WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE
) held
"""
_BROKER = "SELECT id FROM brokers_broker WHERE id = %s FOR KEY SHARE"


def lock_topics(*, topics: Collection[int]) -> None:
    """Lock topics against removal until the transaction ends.

    Raises Removed where one of them is already gone.
    """
    ids = set(topics)
    with connection.cursor() as cursor:
        cursor.execute(_TOPICS, [list(ids)])
        (locked_count,) = cursor.fetchone()
    if locked_count < len(ids):
        raise Removed


def lock_broker(broker: Broker) -> None:
    """Lock a broker against removal until the transaction ends; raise Absent."""
    with connection.cursor() as cursor:
        cursor.execute(_BROKER, [broker.pk])
        if cursor.fetchone() is None:
            raise Absent(f"There is no broker {broker.name} here any more.")
