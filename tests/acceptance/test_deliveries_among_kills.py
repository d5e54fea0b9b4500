"""Deliveries while senders, the back end and Postgres die: none is lost or doubled."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.models import Sum
from django.test import Client, override_settings
from pytest_django.plugin import DjangoDbBlocker

from apps.core import clock
from apps.core.actor import Actor
from apps.poison.models import Poison
from apps.redelivery.models import Attempt, Delivery, Endpoint
from apps.redelivery.services.request_acceptance import accept_all
from apps.team.rights import Role
from apps.team.services import create_user
from poisonweb.embedded import postgres, process_control
from poisonweb.embedded.free_ports import free_port
from tests.delivery_back_end import BackEnd, back_end_in
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    endpoint,
    request,
)
from tests.sender_processes import SenderProcess, senders
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

SOAK = "SOAK" in os.environ
DELIVERIES, KILLS, BACK_END_KILLS, RESTARTS = (
    (10_000, 100, 30, 2) if SOAK else (300, 20, 5, 1)
)
PATIENCE = 1_800 if SOAK else 120  # seconds
RETRIES = 6
# Most are answered at once, some late, some only after failures, and some never well.
PATHS = ("/ok", "/ok", "/ok", "/slow/0.2", "/down-for/2", "/status/503")


class Database:
    """Django's database in this test: a Postgres that can be restarted."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        postgres.prepare(folder)
        program = postgres.program(folder, port=port)
        self._running = partial(process_control.running, program, folder=folder)
        self._server: AbstractContextManager[None] | None = None
        address = urlsplit(postgres.url(folder, port=port))
        self.settings = {
            "NAME": address.path.removeprefix("/"),
            "HOST": address.hostname,
            "PORT": str(address.port),
            "USER": address.username,
            "PASSWORD": address.password,
        }

    def start(self) -> None:
        self._server = self._running()
        self._server.__enter__()

    def stop(self) -> None:
        connection.close()
        if self._server is not None:
            self._server.__exit__(None, None, None)
            self._server = None


@pytest.fixture
def database(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Database]:
    database = Database(tmp_path / "postgres")
    with django_db_blocker.unblock():
        connection.close()
        for name, value in database.settings.items():
            monkeypatch.setitem(connection.settings_dict, name, value)
        try:
            database.start()
            call_command("migrate", verbosity=0)
            yield database
        finally:
            database.stop()


@pytest.fixture
def back_end(tmp_path: Path) -> Iterator[BackEnd]:
    with back_end_in(tmp_path / "back-end") as back_end:
        yield back_end


def accept(of: Endpoint, number: int) -> None:
    new = [
        request(
            path=random.choice(PATHS).encode(),
            idempotency_key=str(uuid4()),
        )
        for _ in range(number)
    ]
    accept_all(endpoint=of, deliveries=new, now=clock.now())


def await_more_requests(back_end: BackEnd, started: list[SenderProcess]) -> None:
    before = back_end.size()
    wait_until(
        lambda: back_end.size() > before,
        seconds=PATIENCE,
        describe=partial(last_words, started),
    )


def last_words(started: list[SenderProcess]) -> str:
    return "\n".join(each.said()[-2_000:] for each in started)


def test_no_delivery_is_lost_doubled_or_tried_too_often_whoever_is_killed(
    database: Database, back_end: BackEnd, tmp_path: Path
) -> None:
    stock = endpoint(
        target=back_end.url,
        retries=RETRIES,
        interval=1.0,
        attempt_timeout=1.0,
        claim_timeout=6.0,
    )
    with senders(tmp_path, number=2) as started:
        for round_ in range(KILLS):
            accept(stock, DELIVERIES // KILLS)
            await_more_requests(back_end, started)
            kill(round_, started, back_end, database)
        wait_until(
            lambda: not Delivery.objects.filter(finished_at=None).exists(),
            seconds=PATIENCE,
            describe=partial(last_words, started),
        )
        assert [each.stop() for each in started] == [0, 0]

    assert Delivery.objects.count() == DELIVERIES // KILLS * KILLS
    assert not Attempt.objects.filter(outcome="trying").exists()
    given_up = Delivery.objects.filter(state="given_up")
    assert Poison.objects.count() == given_up.count() > 0
    agree_with_ledger(back_end)
    agree_with_page(stock, static_files=tmp_path)


def kill(
    round_: int, started: list[SenderProcess], back_end: BackEnd, database: Database
) -> None:
    """Kill a sender in the midst of its work, and now and then others with it."""
    takes_back_end = round_ % (KILLS // BACK_END_KILLS) == 1
    if takes_back_end:
        back_end.kill()
    if round_ % (KILLS // (RESTARTS + 1)) == KILLS // (RESTARTS + 1) - 1:
        database.stop()
        database.start()
    victim = started[round_ % 2]
    victim.kill()
    victim.start()
    if takes_back_end:
        back_end.start()


def agree_with_ledger(back_end: BackEnd) -> None:
    """Compare every delivery and its attempts with what the back end wrote down."""
    requests, effects = back_end.requests_by_delivery(), Counter(back_end.effects())
    attempts = Counter(map(str, Attempt.objects.values_list("delivery", flat=True)))
    successes = Attempt.objects.filter(outcome="succeeded")
    succeeded = set(successes.values_list("delivery", flat=True))
    assert set(effects.values()) == {1}
    assert requests.keys() <= attempts.keys()
    for each in Delivery.objects.all():
        name, is_delivered = str(each.pk), each.state == "delivered"
        assert each.state in {"delivered", "given_up"}
        assert requests[name] <= each.attempts == attempts[name] <= 1 + RETRIES
        assert each.retry_count == each.attempts - is_delivered
        assert (each.pk in succeeded) == is_delivered
        assert effects[each.idempotency_key] or not is_delivered
        assert is_delivered or each.retry_count == 1 + RETRIES


def agree_with_page(of: Endpoint, *, static_files: Path) -> None:
    """Compare the calls of the day on the endpoint's page with its deliveries."""
    plain = "django.contrib.staticfiles.storage.StaticFilesStorage"
    storages = {**settings.STORAGES, "staticfiles": {"BACKEND": plain}}
    user = create_user(
        username="anna",
        password="correct horse",
        role=Role.VIEWER,
        reads_bodies=False,
        actor=Actor.system("test"),
        now=clock.now(),
    )
    with override_settings(STORAGES=storages, STATIC_ROOT=static_files):
        client = Client()
        client.force_login(user)
        page = client.get(f"/endpoints/{of.pk}").content.decode()
    [cells] = re.findall(r'<th scope="row">All</th>(.*?)</tr>', page)
    numbers = [int(re.sub(r"\D", "", cell)) for cell in cells.split("</td>")[:-1]]

    delivered = Delivery.objects.filter(state="delivered")
    at_first = delivered.filter(attempts=1).count()
    failures = Delivery.objects.aggregate(sum=Sum("retry_count"))["sum"]
    assert numbers == [
        *(at_first, delivered.count() - at_first, failures),
        Delivery.objects.filter(state="given_up").count(),
    ]
