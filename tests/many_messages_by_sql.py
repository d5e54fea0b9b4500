"""Messages by the million, as capture stores them, by SQL alone.

Only columns are named that every release since 9a46585 has.
"""

from __future__ import annotations

from typing import Any

import psycopg

AT_ONCE = 100_000

PROBLEMS = """
INSERT INTO poison_problem (topic_id, consumer_group, fingerprint, version, title,
    summary, inputs, first_seen, last_seen)
SELECT topic.id, 'billing', sha256(convert_to(topic.name || n, 'UTF8')), 1,
       'Unpayable' || to_char(n, 'FM00'), 'invoice ' || n, '{}',
       now() - interval '2 hours', now()
FROM generate_series(1, %(problems)s::int) n, brokers_topic topic
WHERE topic.name = %(topic)s
"""
MESSAGES = """
WITH made AS (
    INSERT INTO poison_poison (identity, reuse, topic_id, consumer_group, bookmark,
        problem_id, state, cause, error_type, error_message, size, digest, failures,
        attempts, crashes, redrives, recurrences, first_failed_at, last_failed_at,
        captured_at)
    SELECT sha256(convert_to(%(topic)s::text || n, 'UTF8')), 0, problem.topic_id,
        'billing', convert_to((1763640000000 + n) || '-0', 'UTF8'), problem.id, 'open',
        'exhausted', problem.title, 'invoice ' || n || ' has no customer', 20,
        sha256(convert_to('invoice ' || n, 'UTF8')), 1, 3, 0, 0, 0, moment, moment,
        moment
    FROM (SELECT n, now() - interval '1 hour' * (1 - n::float8 / %(number)s::int)
                 AS moment
          FROM generate_series(%(first)s::int, %(last)s::int) n OFFSET 0) one
    JOIN (SELECT problem.*, row_number() OVER (ORDER BY problem.id) - 1 AS place
          FROM poison_problem problem JOIN brokers_topic topic
               ON topic.id = problem.topic_id
          WHERE topic.name = %(topic)s AND title LIKE 'Unpayable%%') problem
      ON place = n %% %(problems)s::int
    RETURNING id, problem_id, captured_at, bookmark, error_type, error_message
), bodies AS (
    INSERT INTO poison_body (day, poison_id, content, headers)
    SELECT (captured_at AT TIME ZONE 'UTC')::date, id,
           convert_to(split_part(error_message, ' has', 1), 'UTF8'), '{}'
    FROM made
)
INSERT INTO poison_failure (day, poison_id, problem_id, report_id, is_first, bookmark,
    cause, error_type, error_message, traceback, client_name, host, handler_version,
    attempts, failures, crashes, first_failed_at, failed_at, captured_at)
SELECT (captured_at AT TIME ZONE 'UTC')::date, id, problem_id, gen_random_uuid(), true,
       bookmark, 'exhausted', error_type, error_message, 'Traceback',
       'billing-' || id %% 7, 'host-' || id %% 5, 'v' || id %% 3, 3, 1, 0, captured_at,
       captured_at, captured_at
FROM made
"""


def insert_messages(
    session: psycopg.Connection[Any], *, topic: str, number: int, problems: int
) -> None:
    """Insert so many open messages of the last hour into a topic that is there.

    They are spread evenly over so many problems. Bodies are `invoice <n>`.
    """
    values = {"topic": topic, "number": number, "problems": problems}
    session.execute(PROBLEMS, values)
    for first in range(1, number + 1, AT_ONCE):
        last = min(first + AT_ONCE - 1, number)
        session.execute(MESSAGES, {**values, "first": first, "last": last})
        session.commit()
    # As Postgres does by itself a minute later.
    for table in ("poison_problem", "poison_poison", "poison_body", "poison_failure"):
        session.execute(f"ANALYZE {table}")
    session.commit()
