"""The gateway while Postgres is away: what goes on, for how long, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import connection

from apps.core.errors import Unavailable
from apps.redelivery.gateway import delivery_store
from apps.redelivery.gateway.database_threads import GatewayDatabaseThreads
from apps.redelivery.gateway.delivery_store import PerhapsStored
from apps.redelivery.gateway.key_and_endpoint_cache import KeyAndEndpointCache
from apps.redelivery.models import CallCount, Delivery, DeliveryBody
from apps.redelivery.services.endpoints import change_endpoint
from tests.integration.redelivery import endpoint_and_delivery_builders as builders
from tests.integration.redelivery.gateway.gateway_in_a_thread import (
    Gateway,
    endpoint_of,
    key,
    ok,
    running_gateway,
)
from tests.manual_clock import ManualClock
from tests.postgres_connection_limit_and_lock_waits import sessions_limited
from tests.unit.redelivery.scripted_back_end import answering
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def postgres_away() -> Iterator[None]:
    """Leave only the test's own session, and refuse others."""
    with sessions_limited(1):
        end_other_sessions()
        yield


def end_other_sessions() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with running_gateway() as running:
        yield running


def test_first_tries_go_on_and_a_failure_says_that_nothing_was_kept(
    gateway: Gateway,
) -> None:
    with (
        endpoint_of(answering(ok())) as (works, _),
        endpoint_of(answering(ok(status=b"503 Down"))) as (fails, _),
        endpoint_of(answering(ok()), mode="async") as (later, server),
    ):
        assert gateway.call(f"/gateway/{works}/").status == 200
        with postgres_away():
            success = gateway.call(f"/gateway/{works}/")
            failure = gateway.call(f"/gateway/{fails}/")
            soap = gateway.call(
                f"/gateway/{fails}/", Content_Type="application/soap+xml"
            )
            refused = gateway.call(f"/gateway/{later}/", method="POST", body=b"1")
            status = gateway.call(
                "/gateway/-/deliveries/00000000-0000-7000-8000-000000000000"
            )
            unknown = gateway.call(f"/gateway/{works}/", secret="pw_local_unknown")
        back = gateway.call(f"/gateway/{works}/")
        wait_until(lambda: gateway.call(f"/gateway/{fails}/").document.get("delivery"))

    assert (success.status, failure.status, soap.status) == (200, 502, 500)
    assert failure.document["detail"] == (
        "The back end answered 503. Postgres is away, so nothing was kept: send it"
        " again later."
    )
    assert failure.document["kept"] is False
    assert "delivery" not in failure.document
    assert b"nothing was kept" in soap.body
    assert (refused.status, refused.header("retry-after")) == (503, "5")
    assert refused.document["kept"] is False
    assert (status.status, unknown.status, back.status) == (503, 503, 200)
    assert server.requests == []
    # Successes are counted when Postgres is back.
    wait_until(
        lambda: sum(count.succeeded_at_first for count in CallCount.objects.all()) == 3
    )


def test_calls_with_an_order_key_are_not_tried_without_postgres(
    gateway: Gateway,
) -> None:
    with endpoint_of(answering(ok()), order_header="X-Account") as (endpoint, server):
        address = f"/gateway/{endpoint}/"
        before = gateway.call(address, X_Account="7")
        with postgres_away():
            ordered = gateway.call(address, X_Account="7")
            other = gateway.call(address)

    assert (before.status, ordered.status, other.status) == (200, 502, 200)
    assert ordered.document["detail"].startswith("Whether an earlier request of its")
    assert ordered.document["kept"] is False
    assert len(server.requests) == 2


def test_a_session_that_breaks_after_the_first_one_committed_leaves_it_open() -> None:
    endpoint, new = builders.endpoint(), builders.request()
    inserts = []

    def break_sessions(
        execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        is_insert = "INSERT INTO redelivery_delivery (" in sql
        if is_insert:
            inserts.append(sql)
        if is_insert and len(inserts) == 2:
            execute(sql, params, many, context)  # the first session, so to say
        elif len(inserts) == (1 if is_insert else 2):
            assert connection.connection is not None
            connection.connection.close()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(break_sessions), pytest.raises(PerhapsStored):
        delivery_store.store(endpoint, new)


def test_sessions_that_broke_meanwhile_lose_nothing(gateway: Gateway) -> None:
    with endpoint_of(answering(ok()), mode="async") as (endpoint, _):
        address = f"/gateway/{endpoint}/"
        statuses = []
        for _ in range(10):
            statuses.append(gateway.call(address, method="POST", body=b"1").status)
            end_other_sessions()

    assert statuses == [202] * 10
    assert Delivery.objects.count() == DeliveryBody.objects.count() == 10


async def start(
    clock: ManualClock,
) -> tuple[GatewayDatabaseThreads, KeyAndEndpointCache]:
    database = GatewayDatabaseThreads(1)
    return database, KeyAndEndpointCache(database, monotonic=clock)


def test_keys_and_endpoints_are_used_for_five_minutes_without_postgres() -> None:
    endpoint, secret, clock = builders.endpoint(), key(), ManualClock()

    with asyncio.Runner() as runner:
        database, cache = runner.run(start(clock))
        assert runner.run(cache.key(secret))
        with postgres_away():
            for age in (0.9, 1.1, 299.0):
                clock.now = 1_000 + age
                assert runner.run(cache.key(secret))
                assert runner.run(cache.endpoint(endpoint.name)) == endpoint
            with pytest.raises(Unavailable):
                runner.run(cache.key("pw_local_unknown"))
            with pytest.raises(Unavailable):
                runner.run(cache.endpoint("none"))
            clock.now = 1_300.1
            with pytest.raises(Unavailable):
                runner.run(cache.key(secret))

        def is_back() -> bool:
            clock.now += 1.1
            with suppress(Unavailable):
                return runner.run(cache.key(secret)) is not None
            return False

        wait_until(is_back)
        runner.run(cache.aclose())
        runner.run(database.aclose())


def test_an_endpoint_has_the_new_settings_of_the_one_it_forwards_to() -> None:
    builders.endpoint("spare")
    builders.endpoint("stock", at_end="forward", forward_endpoint="spare")
    clock, expiries = ManualClock(), list[float | None]()

    with asyncio.Runner() as runner:
        database, cache = runner.run(start(clock))
        for expiry in (60.0, 90.0):
            change_endpoint(
                name="spare",
                changes={"expiry": expiry},
                principal=builders.ADMIN,
                now=builders.NOW,
            )
            clock.now += 1.1
            stock = runner.run(cache.endpoint("stock"))
            assert stock
            assert stock.forward_endpoint
            expiries.append(stock.forward_endpoint.expiry)
        runner.run(cache.aclose())
        runner.run(database.aclose())

    assert expiries == [60.0, 90.0]
