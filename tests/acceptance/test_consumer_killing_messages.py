"""A message that kills its consumer is found and poisoned, and no other message.

A consumer is killed from outside at random instants, while some of its messages kill
it from within, each in its own way. It is started again each time, and told nothing.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from apps.poison.models import Poison
from poisonguard.journal.failed_attempts_store import Attempts
from poisonweb.embedded import process_control
from tests import preloaded_fork_server
from tests.acceptance import killed_stream_consumer
from tests.acceptance.killed_stream_consumer import DEATHS, ConsumerFiles
from tests.acceptance.web_server_process import Web, api_key
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

SOAK = bool(os.environ.get("SOAK"))
KILLS, KILLERS, MESSAGES = (1_000, 20, 100_000) if SOAK else (25, 6, 3_000)
LONGEST_LIFE = 0.4
# A busy machine is no failure; to stand still for so long is one.
PATIENCE = 60
FORKS = preloaded_fork_server.of(killed_stream_consumer.__name__)


@pytest.mark.parametrize(("width", "deaths"), [(1, 2), (16, 3)])
def test_only_messages_that_kill_are_poisoned(
    web: Web, redis_url: str, tmp_path: Path, width: int, deaths: int
) -> None:
    place = ConsumerFiles(
        topic="orders",
        redis_url=redis_url,
        url=web.url,
        api_key=api_key(),
        folder=tmp_path,
        width=width,
    )
    with Redis.from_url(redis_url) as redis:
        messages, killers = send(redis, place)

        keep_killing(place, redis, killers)

    handled, begun = Counter(lines(place.handled)), Counter(lines(place.begun))
    poisons = {bytes(poison.bookmark) for poison in Poison.objects.all()}
    assert poisons == killers
    assert set(Poison.objects.values_list("cause", flat=True)) == {"crash"}
    assert handled.keys() == messages - killers
    assert all(begun[killer] <= deaths for killer in killers)
    assert all(begun[killer] == 2 for killer in killers) or width > 1
    assert sum(handled.values()) - len(handled) <= (KILLS + 3 * KILLERS) * width
    assert suspects(place) == set()


def send(redis: Redis, place: ConsumerFiles) -> tuple[set[bytes], set[bytes]]:
    """Put all messages on the stream; give their ids, and those of the killers."""
    killed_stream_consumer.make_group(redis, place.topic)
    deadly = random.sample(range(MESSAGES), KILLERS)
    ways = list(DEATHS) * KILLERS
    bodies = {n: ways[place] for place, n in enumerate(deadly)}
    pipe = redis.pipeline(transaction=False)
    for n in range(MESSAGES):
        pipe.xadd(place.topic, {"body": bodies.get(n, b"%d" % n)})
    ids: list[bytes] = pipe.execute()
    return set(ids), {ids[n] for n in deadly}


def keep_killing(place: ConsumerFiles, redis: Redis, killers: set[bytes]) -> None:
    """Kill and start again until there were enough kills and all is settled.

    What a kill has hit is let end before the next one: no guard can tell two outside
    kills of one message from a message that kills.
    """
    kills, handled, since = 0, 0, time.monotonic()
    while not (all_is_settled := is_settled(redis, place)) or kills < KILLS:
        if all_is_settled or handled != (handled := len(lines(place.handled))):
            since = time.monotonic()
        # On a busy machine a start alone may take longer than a whole life.
        stalled = time.monotonic() - since
        assert stalled < PATIENCE, "it does not get on"
        process = FORKS.Process(target=killed_stream_consumer.consume, args=(place,))
        hit = {*lines(place.begun)} - {*lines(place.handled)} - killers
        process.start()
        while process.is_alive() and not hit <= {*lines(place.handled)}:
            time.sleep(0.01)
        process.join(random.uniform(0.05, LONGEST_LIFE + stalled))
        was_alive = process.is_alive()
        kill_from_outside(process, place, killers)
        process.join()
        # It may have died of a killer in between.
        kills += was_alive and process.exitcode == -signal.SIGKILL


def kill_from_outside(
    process: ForkServerProcess, place: ConsumerFiles, killers: set[bytes]
) -> None:
    """Kill a consumer, but not while a killer waits for its handler to begin.

    Its guard may have noted it already, and cannot tell who killed it then. Where it
    handles several at once, a death charges them all in any case.
    """
    until = time.monotonic() + PATIENCE
    while place.width == 1 and process.is_alive():
        assert time.monotonic() < until, "a message that kills is not handled"
        assert process.pid
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGSTOP)
            wait_until(partial(is_stopped, process.pid))
            if not waits_for_its_handler(place, killers):
                break
            os.kill(process.pid, signal.SIGCONT)
        process.join(0.001)
    process.kill()


def is_stopped(pid: int) -> bool:
    """Tell whether a process does nothing more: it was stopped, or has ended."""
    fields = process_control.stat(pid)
    return not fields or fields[0] in "TZX"


def waits_for_its_handler(place: ConsumerFiles, killers: set[bytes]) -> bool:
    """Tell whether the last message that came is a killer that will kill once more."""
    received, begun = lines(place.received), lines(place.begun)
    if not received or (last := received[-1]) not in killers:
        return False
    return begun.count(last) < min(2, received.count(last))


def is_settled(redis: Redis, place: ConsumerFiles) -> bool:
    groups: Any = redis.xinfo_groups(place.topic)
    last: Any = redis.xrevrange(place.topic, count=1)
    [group], [(newest, _)] = groups, last
    return group["last-delivered-id"] == newest and not group["pending"]


def lines(file: Path) -> list[bytes]:
    return file.read_bytes().split() if file.exists() else []


def suspects(place: ConsumerFiles) -> set[int]:
    """Give the numbers of all messages that anything is held against."""
    [file] = place.journal.glob("*.attempts")
    attempts = Attempts(file)
    attempts.refresh()
    return attempts.suspects - attempts.given_up
