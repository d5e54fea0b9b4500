"""Endpoints are created, changed and removed; bad settings are refused by name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction

from apps.brokers.adapter_contract import OutcomeKind
from apps.brokers.services.topics_and_routing_publisher import RoutedMessage
from apps.core import postgres_connections
from apps.core.advisory_locks import names_locked
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.redelivery.endpoint_settings_dataclass import PRESETS, EndpointSettings
from apps.redelivery.gateway import delivery_store
from apps.redelivery.gateway.delivery_store import EndpointAway
from apps.redelivery.models import Delivery, Endpoint
from apps.redelivery.request_message_headers import METHOD
from apps.redelivery.services import deliveries_from_requeued_messages
from apps.redelivery.services.endpoints import (
    LINKS_LOCK,
    change_endpoint,
    create_endpoint,
    remove_endpoint,
)
from apps.redelivery.services.request_acceptance import accept
from apps.team.rights import Principal
from tests.audit_entries import entries
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    ADMIN,
    NOW,
    TARGET,
    endpoint,
    request,
)
from tests.postgres_connection_limit_and_lock_waits import waits_for_a_lock
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("settings", "field", "remedy"),
    [
        ({"target": "ftp://stock.example"}, "target", "http"),
        ({"target": "http://127.0.0.1:9000"}, "target", "POISONWEB_ENDPOINT_HOSTS"),
        ({"target": "http://169.254.169.254"}, "target", "link-local"),
        ({"retries": None}, "retries", "give a number of retries, or an expiry"),
        ({"retries": -1}, "retries", "0 to 10,000"),
        ({"interval": 0.5}, "interval", "1 to 3,600"),
        ({"interval": float("nan")}, "interval", "1 to 3,600"),
        ({"longest_interval": 2.0}, "longest_interval", "the interval of 3 s"),
        (
            {"attempt_timeout": 20.0},
            "claim_timeout",
            "20 s, and an attempt takes up to 20 s",
        ),
        ({"claim_timeout": 14.9}, "claim_timeout", "longer by 5 s at least"),
        ({"client_timeout": 9.0}, "client_timeout", "9 s, and an attempt"),
        ({"failure_statuses": "500, soon"}, "failure_statuses", "'soon' is neither"),
        ({"paths": ("orders",)}, "paths", "begins with /"),
        ({"at_end": "forward"}, "at_end", "one topic or one endpoint"),
        ({"forward_topic": "orders"}, "forward_topic", "leave it empty"),
        ({"at_end": "forward", "forward_topic": "x"}, "forward_topic", "no topic x"),
        ({"response_hook": "nowhere"}, "response_hook", "no endpoint nowhere"),
        ({"jitter": "some"}, "jitter", "use one of none, full, equal, decorrelated"),
        ({"order_header": "a b"}, "order_header", "name of a header"),
        ({"concurrency": 0}, "concurrency", "1 to 1,000"),
    ],
)
def test_a_bad_setting_is_refused_with_its_remedy(
    settings: dict[str, Any], field: str, remedy: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        endpoint(**settings)

    assert refusal.value.field == field
    assert remedy in refusal.value.remedy
    assert not Endpoint.objects.exists()


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_is_a_usable_endpoint(preset: str) -> None:
    create_endpoint(
        name="stock-quote",
        settings=EndpointSettings(target=TARGET, **PRESETS[preset]),
        principal=ADMIN,
        now=NOW,
    )


@pytest.mark.parametrize("name", ["", "a b", "Orders", "-", "a/b", "x" * 101, "é"])
def test_an_unusable_name_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="small letters"):
        endpoint(name)


def test_an_endpoint_comes_with_its_topic_once() -> None:
    assert endpoint().topic.name == "gateway/stock-quote"
    with pytest.raises(Refused, match="already"):
        endpoint()


def test_who_may_not_see_the_topic_creates_no_endpoint() -> None:
    narrow = Principal(actor=ADMIN.actor, scopes=ADMIN.scopes, topics=("gateway/a*",))

    with pytest.raises(Forbidden, match="gateway/stock-quote"):
        create_endpoint(
            name="stock-quote",
            settings=EndpointSettings(target=TARGET),
            principal=narrow,
            now=NOW,
        )


def test_a_change_is_audited_and_refused_where_it_is_stale() -> None:
    endpoint()

    changed = change_endpoint(
        name="stock-quote",
        changes={"retries": 5},
        version=1,
        principal=ADMIN,
        reason="too few",
        now=NOW,
    )

    assert (changed.retries, changed.version) == (5, 2)
    [entry] = entries("endpoint.altered")
    assert '"retries":[2,5]' in entry.record.replace(" ", "")
    with pytest.raises(Refused, match="meanwhile"):
        change_endpoint(
            name="stock-quote",
            changes={"retries": 6},
            version=1,
            principal=ADMIN,
            now=NOW,
        )


def test_a_change_leads_to_no_forbidden_address() -> None:
    endpoint()

    with pytest.raises(Invalid, match="link-local"):
        change_endpoint(
            name="stock-quote",
            changes={"target": "http://169.254.169.254"},
            principal=ADMIN,
            now=NOW,
        )


def test_deliveries_never_go_round() -> None:
    endpoint("a")
    endpoint("b", at_end="forward", forward_endpoint="a")

    with pytest.raises(Invalid, match="a -> b -> a"):
        change_endpoint(
            name="a",
            changes={"at_end": "forward", "forward_endpoint": "b"},
            principal=ADMIN,
            now=NOW,
        )


@pytest.mark.django_db(transaction=True)
def test_who_changes_what_another_person_removes_meanwhile_is_told_so() -> None:
    stock = endpoint()

    def change() -> str:
        try:
            change_endpoint(
                name=stock.name, changes={"retries": 7}, principal=ADMIN, now=NOW
            )
        except Absent as absent:
            return str(absent)
        finally:
            connections.close_all()
        return "changed"

    with ThreadPoolExecutor(1) as others:
        with transaction.atomic():
            remove_endpoint(name=stock.name, principal=ADMIN, now=NOW)
            changed = others.submit(change)
            wait_until(waits_for_a_lock)
        assert changed.result() == f"There is no endpoint {stock.name} here."


def test_nothing_is_stored_for_an_endpoint_that_was_removed() -> None:
    stock = endpoint()
    other = postgres_connections.open_session("test")
    remove_endpoint(name=stock.name, principal=ADMIN, now=NOW)

    # Who stores a request meanwhile waits for the end of the removal.
    with other, pytest.raises(psycopg.errors.LockNotAvailable):
        other.execute("SET lock_timeout = '50ms'")
        other.execute("INSERT INTO redelivery_delivery DEFAULT VALUES")
    stored_at = Endpoint(pk=stock.pk, name=stock.name)
    with pytest.raises(EndpointAway):
        delivery_store.store(stored_at, request())
    message = RoutedMessage(
        topic=stock.topic, body=b"", headers=((METHOD, b"POST"),), dedupe="1"
    )
    [outcome] = deliveries_from_requeued_messages._send(stored_at, [message])
    assert outcome.kind is OutcomeKind.REFUSED
    assert outcome.detail == "the endpoint stock-quote was removed"
    assert not Delivery.objects.exists()


def test_neither_forwards_nor_hooks_lead_back() -> None:
    endpoint("a")
    endpoint("b", at_end="forward", forward_endpoint="a")
    endpoint("c", response_hook="b")

    with pytest.raises(Invalid, match="a -> c -> b -> a") as refusal:
        change_endpoint(
            name="a", changes={"response_hook": "c"}, principal=ADMIN, now=NOW
        )

    assert refusal.value.field == "response_hook"


def test_changes_of_where_endpoints_lead_wait_for_each_other() -> None:
    """The lock is held until the end of the transaction, here that of the test."""
    endpoint()
    assert names_locked([LINKS_LOCK]) == set()

    change_endpoint(
        name="stock-quote", changes={"retries": 5}, principal=ADMIN, now=NOW
    )

    assert names_locked([LINKS_LOCK]) == {LINKS_LOCK}


def test_only_an_unused_endpoint_is_removed() -> None:
    stock, hook = endpoint(), endpoint("hook")
    endpoint("quotes", response_hook="hook")
    accept(endpoint=stock, new=request(), now=NOW)

    with pytest.raises(Refused, match="has deliveries"):
        remove_endpoint(name="stock-quote", principal=ADMIN, now=NOW)
    with pytest.raises(Refused, match="quotes sends to hook"):
        remove_endpoint(name="hook", principal=ADMIN, now=NOW)
    remove_endpoint(name="quotes", principal=ADMIN, now=NOW)
    remove_endpoint(name=hook.name, principal=ADMIN, now=NOW)

    assert [each.name for each in Endpoint.objects.all()] == ["stock-quote"]
