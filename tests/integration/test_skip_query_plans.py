"""The rules of a topic are found without its automatic skips, however many it has."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection

from apps.poison import skip_addition_and_removal, skip_matching
from apps.poison.models import Skip
from tests.skip_builders_and_list_mirror import ANNA, added, rule, topic_named

pytestmark = pytest.mark.django_db

AUTOMATIC = 20_000
# The two rules, and what it takes to check them, among thousands of automatic skips.
MOST_READ = 20
FILL = """
INSERT INTO poison_skip (topic_id, consumer_group, kind, value, reason, by,
    is_automatic, at, expires_at, revision, because, removed_by, removed_reason,
    applied)
SELECT %(topic)s, 'billing', 'bookmark', n::text::bytea, '', 'system:capture',
       true, %(now)s, %(expiry)s, n, '', '', '', 0
FROM generate_series(1, %(number)s) AS n
"""


@pytest.fixture
def rules(db: None, now: datetime) -> list[Skip]:
    """Give two rules of a topic that has thousands of automatic skips."""
    values: dict[str, int | datetime] = {"topic": topic_named().pk, "now": now}
    values |= {"number": AUTOMATIC, "expiry": now + timedelta(days=1)}
    with connection.cursor() as cursor:
        cursor.execute(FILL, values)
        skips = [added(now, rule(header="tenant", equals=name)) for name in ("a", "b")]
        cursor.execute("ANALYZE poison_skip")
    return skips


def skips_read() -> int:
    """Count the skips that this transaction has read so far, by index or without."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
            " WHERE relname = 'poison_skip'"
        )
        return int(cursor.fetchone()[0])


def test_the_rules_of_a_topic_come_from_an_index_of_their_own(
    rules: list[Skip], now: datetime
) -> None:
    before = skips_read()
    in_force = skip_matching.rules_in_force([topic_named().pk], now=now)

    assert set(in_force) == set(rules)
    assert skips_read() - before < MOST_READ
    assert "poison_skip_rules" in in_force.explain()


def test_to_renew_or_remove_a_rule_reads_no_automatic_skip(
    rules: list[Skip], now: datetime
) -> None:
    before = skips_read()
    added(now, rule(header="Tenant", equals="a"))
    skip_addition_and_removal.remove(
        skip_id=rules[1].pk,
        reason="",
        principal=ANNA,
        now=now,
    )

    assert skips_read() - before < MOST_READ * 3
