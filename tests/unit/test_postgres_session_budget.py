"""All processes together leave sessions of a default Postgres to spare."""

from __future__ import annotations

import re

from apps.capture.management.commands.lanes import MOST_SESSIONS
from apps.outbox.sweeping import sweeper_process as sweeping
from apps.redelivery.gateway.application import STORING_SESSIONS, UPKEEP_SESSIONS
from apps.redelivery.sending import sender_process as sending
from poisonweb import form_and_large_body_process, postgres_pools
from tests.template_database import ROOT

DEFAULT, OF_THE_SUPERUSER, TO_SPARE = 100, 3, 20
SHARED_BY_REQUESTS, FOLLOWING_SKIPS = 16, 2
LOCKS_AND_NOTICES = 2
WORKER_OF_TWO, REPORTS, A_COMMAND = 2 * 2, 4 + 2, 2


def test_one_process_of_each_kind_leaves_twenty_sessions_of_the_default() -> None:
    page = (ROOT / "docs/operators.md").read_text()
    [together] = map(int, re.findall(r"a worker of two, they need (\d+):", page))
    documented = dict(
        re.findall(
            r"^\| (web|lanes|gateway|sender|sweeper) \| (\d+)", page, re.MULTILINE
        )
    )
    second = sum(form_and_large_body_process.MOST_SESSIONS.values())
    web = SHARED_BY_REQUESTS + FOLLOWING_SKIPS + second
    assert sum(postgres_pools.MOST_SESSIONS.values()) == SHARED_BY_REQUESTS
    lanes = MOST_SESSIONS + 1
    gateway = STORING_SESSIONS + UPKEEP_SESSIONS

    sender = sending.MOST_SESSIONS + LOCKS_AND_NOTICES
    sweeper = sweeping.MOST_SESSIONS

    assert documented == {
        "web": str(web),
        "lanes": str(lanes),
        "gateway": str(gateway),
        "sender": str(sender),
        "sweeper": str(sweeper),
    }
    ours = web + lanes + gateway + sender + sweeper
    assert together == ours + WORKER_OF_TWO + REPORTS + A_COMMAND
    assert together <= DEFAULT - OF_THE_SUPERUSER - TO_SPARE
