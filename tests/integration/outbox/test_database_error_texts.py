"""No error on a page or in an answer has the address of a producer's database."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from apps.core import clock
from apps.core.errors import Refused, Unavailable
from apps.outbox import outbox_row_decisions, table_inspection
from apps.outbox.database_error_texts import ErrorTexts
from apps.outbox.models import OutboxActivity, OutboxError, QuarantineRecord
from apps.outbox.outbox_row_decisions import RowFilter
from apps.outbox.services.outbox_registration import storable_url
from apps.outbox.sweeping.decision_writeback_thread import DecisionWriteback
from apps.team.rights import Scope
from tests.integration.api.schema_checking_client import program
from tests.integration.outbox.outbox_builders import outbox_at
from tests.integration.outbox.test_sweeping_registered_outboxes import sweeping
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("broker"),
]

SECRETS = ("127.0.0.1", "stranger", "sesame", "localhost")


def address(outbox: OutboxTables, **parts: str) -> str:
    """Give the address of this database with another user, or of another one."""
    real = urlsplit(outbox.dsn)
    port, path = parts.get("port", real.port), parts.get("path", real.path)
    return f"postgresql://stranger:sesame@127.0.0.1:{port}{path}"


def assert_clean(answer: Any) -> None:
    text = answer if isinstance(answer, str) else json.dumps(answer, default=str)
    assert [secret for secret in SECRETS if secret in text] == [], text


@pytest.mark.parametrize("parts", [{}, {"port": "1"}])
def test_rows_and_findings_of_a_database_that_cannot_be_entered(
    outbox: OutboxTables, parts: dict[str, str]
) -> None:
    registered = outbox_at(address(outbox, **parts))

    with pytest.raises(Unavailable) as away:
        outbox_row_decisions.find(registered, RowFilter(), most=9)
    [finding] = table_inspection.findings(
        url=registered.url, schema="", for_manager=False
    )

    assert "did not answer" in str(away.value)
    assert_clean(str(away.value))
    assert_clean(asdict(finding))
    assert "(not shown)" in finding.detail


def test_who_may_change_the_address_sees_its_host_and_user(
    outbox: OutboxTables,
) -> None:
    registered = outbox_at(address(outbox))
    path = f"outboxes/{registered.pk}/findings"

    [finding] = (
        program(Scope.BROKERS_READ, Scope.BROKERS_WRITE).get(path).json["findings"]
    )
    [cleaned] = program(Scope.BROKERS_READ).get(path).json["findings"]

    assert "stranger" in finding["detail"]
    assert "sesame" not in json.dumps(finding)
    assert_clean(cleaned)


def test_sql_that_mends_a_right_names_the_user_to_managers_only(
    outbox: OutboxTables,
) -> None:
    name = f"reader_{uuid4().hex}"
    outbox.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'sesame'")
    outbox.execute(f"GRANT USAGE ON SCHEMA public TO {name}")
    url = storable_url(address(outbox).replace("stranger", name) + "?sslmode=disable")
    try:
        whole = table_inspection.findings(url=url, schema="", for_manager=True)
        cleaned = table_inspection.findings(url=url, schema="", for_manager=False)
    finally:
        outbox.execute(f"REVOKE USAGE ON SCHEMA public FROM {name}")
        outbox.execute(f"DROP ROLE {name}")

    assert any(f"TO {name};" in each.sql for each in whole)
    assert any("TO (not shown);" in each.sql for each in cleaned)
    assert name not in json.dumps([asdict(each) for each in cleaned])


def test_a_name_that_leads_nowhere(outbox: OutboxTables) -> None:
    url = storable_url("postgresql://stranger:sesame@nowhere.invalid/shop")
    registered = outbox_at(outbox.dsn)
    registered.url = url

    with pytest.raises(Unavailable) as away:
        outbox_row_decisions.find(registered, RowFilter(), most=9)
    [finding] = table_inspection.findings(url=url, schema="", for_manager=False)

    assert "cannot be dialled" in str(away.value)
    for text in (str(away.value), finding.detail):
        assert "nowhere.invalid" not in text
        assert_clean(text)


def test_errors_of_the_sweeper_and_of_settling(outbox: OutboxTables) -> None:
    registered = outbox_at(address(outbox))
    QuarantineRecord.objects.create(
        outbox=registered,
        row_id=7,
        state="dropped",
        is_settled=False,
        quarantined_at=clock.now(),
        noted_at=clock.now(),
    )
    DecisionWriteback(clock=clock.now).settle_all()
    with sweeping():
        wait_until(lambda: OutboxActivity.objects.filter(state="unreachable").exists())
        wait_until(lambda: OutboxError.objects.count() == 2)

    reader = program(Scope.BROKERS_READ)
    answer = reader.get(f"outboxes/{registered.pk}").json
    assert {error["step"] for error in answer["sweeper_errors"]} == {
        "connect",
        "settle rows",
    }
    assert all(
        "Traceback" in error["first_stack"] for error in answer["sweeper_errors"]
    )
    assert answer["activity"]["detail"]
    assert_clean(answer)


def test_tables_that_are_not_as_they_should_be(outbox: OutboxTables) -> None:
    registered = outbox_at(outbox.dsn)
    outbox.execute("DROP TABLE poisonguard_outbox")

    with pytest.raises(Refused, match='relation "poisonguard_outbox" does not exist'):
        outbox_row_decisions.find(registered, RowFilter(), most=9)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (
            'connection to server at "db.shop" (10.0.0.5), port 5432 failed: FATAL:'
            '  password authentication failed for user "sue"',
            "connection to server at (not shown), port 5432 failed: FATAL:"
            "  password authentication failed for user (not shown)",
        ),
        (
            'no pg_hba.conf entry for host "fe80::1%eth0", user "sue", database "shop"',
            "no pg_hba.conf entry for host (not shown), user (not shown),"
            ' database "shop"',
        ),
        (
            "- host: 'db.shop', port: '1', hostaddr: '10.0.0.5': refused",
            "- host: (not shown), port: '1', hostaddr: (not shown): refused",
        ),
        (
            'server certificate for "x.shop" does not match host name "db.shop"',
            "server certificate for (not shown) does not match host name (not shown)",
        ),
        ('role "sue" does not exist', "role (not shown) does not exist"),
        ("db.shop cannot be dialled", "(not shown) cannot be dialled"),
        ("a db.shopping of sue and suede", "a db.shopping of (not shown) and suede"),
        ("p+w(d and p+w(d2", "(not shown) and p+w(d2"),
        ('relation "orders" does not exist', 'relation "orders" does not exist'),
    ],
)
def test_texts_of_postgres_and_its_clients(text: str, clean: str) -> None:
    url = storable_url("postgresql://sue:p%2Bw(d@db.shop/shop")

    assert ErrorTexts(url).clean(text) == clean


def test_an_address_that_cannot_be_read_has_nothing_to_leave_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BROKER_GONE", raising=False)

    assert ErrorTexts("env:BROKER_GONE").clean("refused") == "refused"
