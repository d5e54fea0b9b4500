"""Lock poisons in id order, as capture does: no two writers wait in a circle."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection

from apps.core.arrays import array


def lock(poisons: Iterable[int]) -> None:
    """Lock these poisons until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM poison_poison WHERE id = ANY(%s::int8[]) ORDER BY id"
            " FOR NO KEY UPDATE",
            [array(poisons)],
        )
