"""Pages at many messages, against a signed-in page that shows none of them.

`--poisons N` is how many messages there are (200,000), a tenth of them in one
operation: 1,200,000 of 10,000,000. They are made by SQL; ten millions take half an
hour and 20 GB in the folder that `TMPDIR` names.

Target: the median of each page is at most 5 times that of the empty page.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks._benchmark_harness import product, web

TOPICS = 40
PROBLEMS = 1_920
DAYS = 28
# Of ten million, those of the operation are 1,200,000.
IN_OPERATION = 0.12
AT_ONCE = 100_000
SAMPLES = 31
WINDOW = 500
TARGET = 5.0
EMPTY = "/help"

_PROBLEMS = """
INSERT INTO poison_problem (topic_id, consumer_group, fingerprint, version, title,
    summary, inputs, first_seen, last_seen)
SELECT topic.id, 'billing', sha256(n::text::bytea), 1, 'KeyError', 'order ' || n, '{}',
       %(now)s - interval '20 days', %(now)s - n * interval '1 minute'
FROM generate_series(0, %(problems)s - 1) n
JOIN (SELECT id, row_number() OVER (ORDER BY id) - 1 AS place FROM brokers_topic) topic
  ON topic.place = n %% %(topics)s
"""

# A few problems have most of the messages, as they do in a flood.
_POISONS = """
WITH made AS (
    INSERT INTO poison_poison (identity, reuse, topic_id, consumer_group, bookmark,
        problem_id, state, cause, error_type, error_message, size, digest, failures,
        attempts, crashes, redrives, recurrences, first_failed_at, last_failed_at,
        captured_at, sent_at, dropped_at)
    SELECT sha256(n::text::bytea), 0, problem.topic_id, 'billing',
        convert_to((1763640000000 + n) || '-0', 'UTF8'), problem.id, one.state,
        'exhausted', 'KeyError', 'order ' || n || ' has no customer', 300,
        sha256(('b' || n)::bytea), 1, 3, 0,
        CASE WHEN one.state IN ('redriven', 'confirmed') THEN 1 ELSE 0 END, 0,
        one.at, one.at, one.at, CASE WHEN one.state IN ('redriven', 'confirmed')
                                THEN %(now)s - interval '1 hour' END,
        CASE WHEN one.state = 'dropped' THEN %(now)s END
    FROM (
        SELECT n, %(now)s - interval '1 minute'
                  - ((%(poisons)s - n)::float8 / %(poisons)s * %(days)s
                     * interval '1 day') AS at,
               (power(random(), 3) * %(problems)s)::int %% %(problems)s AS place,
               CASE WHEN n <= %(dropped)s THEN 'dropped' ELSE
                   (ARRAY['open', 'open', 'open', 'redriven', 'confirmed'])[
                       1 + (random() * 4.99)::int %% 5] END AS state
        FROM generate_series(%(first)s, %(last)s) n OFFSET 0
    ) one
    JOIN (SELECT id, topic_id, row_number() OVER (ORDER BY id) - 1 AS place
          FROM poison_problem) problem USING (place)
    RETURNING id, problem_id, captured_at, identity, error_message
), bodies AS (
    INSERT INTO poison_body (day, poison_id, content, headers)
    SELECT (captured_at AT TIME ZONE 'UTC')::date, id,
           convert_to(repeat('x', 300), 'UTF8'), ARRAY['trace'::bytea, '1'::bytea]
    FROM made
)
INSERT INTO poison_failure (day, poison_id, problem_id, report_id, is_first, bookmark,
    cause, error_type, error_message, traceback, client_name, host, handler_version,
    attempts, failures, crashes, first_failed_at, failed_at, captured_at)
SELECT (captured_at AT TIME ZONE 'UTC')::date, id, problem_id, gen_random_uuid(), true,
       identity, 'exhausted', 'KeyError', error_message, 'Traceback', 'billing-' ||
       id %% 7, 'host-' || id %% 5, 'v' || id %% 3, 3, 1, 0, captured_at, captured_at,
       captured_at
FROM made
"""

# As `running.run` leaves it: each hundredth item was skipped.
_OPERATION = """
INSERT INTO triage_operation (token, verb, state, actor, source, query, topics, reason,
    taken, total, will_act, judged, run, layout, epoch, trouble, troubles, created_at,
    expires_at, confirmed_at, finished_at)
VALUES (gen_random_uuid(), 'drop', 'done', 'user:anna', 'ui', 'is:open', '{*}',
    'a test', true, %(items)s, %(acted)s, %(items)s, 1, 2, 0, '', 0, %(now)s, %(now)s,
    %(now)s, %(now)s)
RETURNING id
"""
_ITEMS = """
INSERT INTO triage_selected_item (operation_id, number, poison_id)
SELECT %(operation)s, row_number() OVER (ORDER BY id) - 1, id
FROM (SELECT id FROM poison_poison ORDER BY id LIMIT %(items)s) one
"""
_SKIPPED = """
INSERT INTO triage_skipped_item (operation_id, number, reason)
SELECT %(operation)s, number, 'already handled'
FROM generate_series(0, %(items)s - 1, 100) number
"""
_WINDOWS = """
INSERT INTO poison_window (operation, first, items, state, run, sending_to, marked_at,
    sending, unknown, sent, moved, confirmed, recurred, refused, skipped, dropped,
    restored)
SELECT %(operation)s, first, least(%(window)s, %(items)s - first), 'done', 1, 0,
    %(now)s, 0, 0, 0, 0, 0, 0, 0, skipped,
    least(%(window)s, %(items)s - first) - skipped, 0
FROM generate_series(0, %(items)s - 1, %(window)s) first,
LATERAL (SELECT count(*) AS skipped
         FROM generate_series(first, least(first + %(window)s, %(items)s) - 1) number
         WHERE number %% 100 = 0) one
"""


def fill(poisons: int) -> dict[str, int]:
    """Store poisons and an operation over them by SQL; return ids that pages show."""
    from django.db import connection

    from apps.brokers.services.topics_and_routing_publisher import topics_named
    from apps.capture import daily_partition_creation
    from apps.poison.services import counts, failure_count_gathering

    now = datetime.now(UTC)
    topics_named(names=[f"topic-{number}" for number in range(TOPICS)])
    items = round(poisons * IN_OPERATION)
    values: dict[str, Any] = {
        "now": now,
        "topics": TOPICS,
        "problems": PROBLEMS,
        "poisons": poisons,
        "days": DAYS,
        "dropped": items,
        "items": items,
        "acted": items - -(-items // 100),
        "window": WINDOW,
    }
    for ago in range(DAYS + 1, -1, -7):
        daily_partition_creation.make(today=(now - timedelta(days=ago)).date())
    with connection.cursor() as cursor:
        cursor.execute(_PROBLEMS, values)
        for first in range(1, poisons + 1, AT_ONCE):
            last = min(first + AT_ONCE - 1, poisons)
            cursor.execute(_POISONS, {**values, "first": first, "last": last})
        cursor.execute(_OPERATION, values)
        (values["operation"],) = cursor.fetchone()
        for statement in (_ITEMS, _SKIPPED, _WINDOWS):
            cursor.execute(statement, values)
        counts.gather()  # as a worker does every ten seconds
        failure_count_gathering.gather()
        cursor.execute("VACUUM ANALYZE")
        cursor.execute(
            "SELECT problem_id FROM poison_poison WHERE state = 'open'"
            " GROUP BY 1 ORDER BY count(*) DESC LIMIT 1"
        )
        (problem,) = cursor.fetchone()
    return {"operation": values["operation"], "problem": problem}


def preview() -> str:
    """Preview the benchmark's large restore; return the preview page's address."""
    from apps.core import clock
    from apps.poison.query_language import Query
    from apps.team.models import User
    from apps.triage.operation_states import Verb
    from apps.triage.services import previews
    from apps.triage.services.selection_requests import SelectionRequest

    anna = User.objects.get(username="anna").principal
    selection = SelectionRequest(verb=Verb.RESTORE, query=Query.parse("is:dropped"))
    began = time.perf_counter()
    operation = previews.preview(
        selection=selection, principal=anna, now=clock.now(), at_once=0
    )
    start = time.perf_counter()
    previews.take(operation_id=operation.pk, now=clock.now())
    done = time.perf_counter()
    print(f"a preview is asked for in {start - began:.2f} s", end=", ")
    print(f"its items are taken in {done - start:.1f} s")
    return f"/operations/preview?token={operation.token}"


def signed_in() -> str:
    """Create a person with all rights; return the cookie of their session."""
    from django.conf import settings
    from django.test import Client

    from apps.core import clock
    from apps.core.actor import Actor
    from apps.team import services as team
    from apps.team.rights import Role

    anna = team.create_user(
        username="anna",
        password="correct horse battery",
        role=Role.ADMIN,
        reads_bodies=True,
        actor=Actor.system("bench"),
        now=clock.now(),
    )
    browser = Client()
    browser.force_login(anna, settings.AUTHENTICATION_BACKENDS[0])
    name = settings.SESSION_COOKIE_NAME
    return f"{name}={browser.cookies[name].value}"


def median(pages: Iterable[str], get: Callable[[str], float]) -> dict[str, float]:
    """Get the web pages in turn; return the median milliseconds of each."""
    pages = list(pages)
    seconds_of: dict[str, list[float]] = {page: [] for page in pages}
    for sample in range(SAMPLES + 2):
        for page in pages:
            took = get(page)
            if sample > 1:  # the first two warm up
                seconds_of[page].append(took)
    return {page: 1_000 * statistics.median(each) for page, each in seconds_of.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--poisons", type=int, default=200_000)
    poisons = parser.parse_args().poisons
    logging.disable()
    began = time.perf_counter()
    ids = fill(poisons)
    print(f"{poisons:,} messages made in {time.perf_counter() - began:.0f} s")
    cookie = signed_in()
    pages = {
        "/problems": "Problems",
        "/": "Overview",
        f"/problems/{ids['problem']}": "the largest problem",
        "/topics": "Topics",
        f"/operations/{ids['operation']}": "an operation",
        "/operations": "Operations",
        preview(): "a preview",
    }
    with web() as url:

        def get(page: str) -> float:
            request = urllib.request.Request(url + page, headers={"Cookie": cookie})
            began = time.perf_counter()
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
            return time.perf_counter() - began

        medians = median([EMPTY, *pages], get)
    empty = medians[EMPTY]
    print(f"an empty page: p50 {empty:.1f} ms")
    for page, name in pages.items():
        ratio = medians[page] / empty
        print(f"{name}: p50 {medians[page]:.1f} ms, ratio {ratio:.1f}", end=" ")
        print(f"(target {TARGET:.0f})" + ("" if ratio <= TARGET else ": missed"))


if __name__ == "__main__":
    with product():
        main()
