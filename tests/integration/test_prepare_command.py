"""What must be true before the processes start, and that nothing is done twice."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from pytest_django import Settings

from apps.audit.models import Entry
from apps.brokers.models import Broker, Topic
from apps.core.actor import Actor
from apps.outbox import table_inspection
from apps.outbox.models import Outbox
from apps.redelivery.models import Endpoint
from apps.team import services as team
from apps.team.models import ApiKey, User
from poisonguard.outbox.sweeping.inspection import FindingKind
from poisonweb.embedded.free_ports import LOOPBACK
from poisonweb.sample import stock_quote_tcp_port
from tests.fast_password_hasher import ONE_ROUND
from tests.sdk.outbox_sweeping.conftest import outbox_database

__all__ = ["outbox_database"]

pytestmark = pytest.mark.django_db(transaction=True)

TOPICS = ("ContentTopic", "orders", "shipments")
KEY_TOPICS = (*TOPICS, "gateway/stock-quote")
SCOPES = ["capture:write", "gateway:call", "skips:read"]


@pytest.fixture(autouse=True)
def var(tmp_path: Path, settings: Settings) -> Path:
    settings.POISONWEB_VAR = tmp_path
    settings.STATIC_ROOT = tmp_path / "static"
    settings.POISONWEB_DEMO = True
    settings.POISONWEB_REDIS_URL = "redis://127.0.0.1:1/1"
    settings.POISONWEB_ADMIN_PASSWORD = None
    settings.PASSWORD_HASHERS = ONE_ROUND
    return tmp_path


def prepare(*_: object) -> None:
    call_command("prepare")


def admin() -> User:
    return User.objects.get(username="admin")


def test_the_first_admin_may_sign_in_with_what_is_in_the_file(var: Path) -> None:
    prepare()

    file = var / "admin-password"
    assert file.stat().st_mode & 0o777 == 0o600
    assert admin().check_password(file.read_text())
    assert (admin().role, admin().reads_bodies) == ("admin", True)
    assert (admin().is_superuser, admin().is_staff) == (False, False)


def test_a_chosen_password_stands_in_no_file(var: Path, settings: Settings) -> None:
    settings.POISONWEB_ADMIN_PASSWORD = "chosen by somebody"

    prepare()

    assert admin().check_password("chosen by somebody")
    assert not (var / "admin-password").exists()


def test_another_password_takes_the_place_of_the_first(
    var: Path, settings: Settings
) -> None:
    prepare()
    settings.POISONWEB_ADMIN_PASSWORD = "chosen by somebody"

    prepare()

    assert admin().check_password("chosen by somebody")
    assert not (var / "admin-password").exists()


def test_the_sample_has_a_broker_its_topics_and_a_key(var: Path) -> None:
    prepare()

    file = var / "sample-api-key"
    key = team.recognise(secret=file.read_text(), now=datetime.now(UTC))
    assert file.stat().st_mode & 0o777 == 0o600
    assert key
    assert (key.scopes, tuple(key.topics)) == (SCOPES, KEY_TOPICS)
    broker = Broker.objects.get()
    assert (broker.name, broker.kind, broker.url) == (
        "sample",
        "redis_streams",
        "env:POISONWEB_REDIS_URL",
    )
    topics = Topic.objects.order_by("name").values_list("name", "dead_letter_queue")
    assert list(topics) == [(name, f"{name}-poison") for name in TOPICS]


def test_the_sample_has_an_endpoint_where_its_service_is(
    var: Path, settings: Settings
) -> None:
    settings.POISONWEB_ENDPOINT_HOSTS = ("127.0.0.1",)
    for port in (stock_quote_tcp_port.choose(var), 32_768):  # never chosen
        (var / stock_quote_tcp_port.FILE).write_text(str(port))

        prepare()
        prepare()

        endpoint = Endpoint.objects.get()
        assert (endpoint.name, endpoint.topic.name) == (
            "stock-quote",
            "gateway/stock-quote",
        )
        assert endpoint.target == f"http://127.0.0.1:{port}"
        assert (endpoint.retries, endpoint.interval) == (10, 3.0)
    # Only another port is a change.
    assert Endpoint.objects.get().version == 2


def test_the_sample_has_an_outbox_where_its_shop_has_a_database(
    outbox_database: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.POISONWEB_LOOPBACK_BROKERS = True
    monkeypatch.setattr("poisonweb.management.commands.prepare.SHOP", "not_there")
    monkeypatch.setenv("BROKER_SAMPLE_SHOP", f"{outbox_database}?sslmode=disable")
    prepare()
    assert not Outbox.objects.exists()
    name = outbox_database.rpartition("/")[2]
    monkeypatch.setattr("poisonweb.management.commands.prepare.SHOP", name)

    prepare()
    prepare()

    shop = Outbox.objects.get()
    assert (shop.name, shop.url, shop.broker.name) == (
        "sample-shop",
        "env:BROKER_SAMPLE_SHOP",
        "sample",
    )
    assert shop.version == 1
    findings = table_inspection.findings(url=shop.url, schema=shop.schema)
    # As the table of the article: its page has the SQL that mends it.
    assert [finding.kind for finding in findings] == [FindingKind.MISSING_UNIQUE_INDEX]


def test_a_table_of_the_shop_that_has_another_outbox_keeps_nothing_from_its_start(
    outbox_database: str,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.POISONWEB_LOOPBACK_BROKERS = True
    name = outbox_database.rpartition("/")[2]
    monkeypatch.setattr("poisonweb.management.commands.prepare.SHOP", name)
    monkeypatch.setenv("BROKER_SAMPLE_SHOP", f"{outbox_database}?sslmode=disable")
    prepare()
    Outbox.objects.update(name="renamed")

    prepare()

    assert Outbox.objects.get().name == "renamed"
    assert "the outbox renamed has this table already" in caplog.text


def test_the_port_of_the_sample_service_stays(tmp_path: Path) -> None:
    port = stock_quote_tcp_port.choose(tmp_path)
    assert stock_quote_tcp_port.read(tmp_path) == port

    with socket.create_server((LOOPBACK, port)):
        other = stock_quote_tcp_port.choose(tmp_path)

    assert other != port
    assert stock_quote_tcp_port.read(tmp_path) == other


def test_allow_lists_are_written_for_existing_brokers() -> None:
    Broker.objects.create(
        name="old",
        kind="redis_streams",
        url="env:CORP_REDIS",
        predates_address_rules=True,
    )

    prepare()

    lists = dict(Broker.objects.values_list("name", "allowed_unconfirmed"))
    assert lists == {"old": ["env:CORP_REDIS"], "sample": []}


def sample() -> tuple[str, str, bool]:
    broker = Broker.objects.get()
    return broker.name, broker.url, broker.is_sample


def test_the_broker_of_the_sample_stays_as_people_changed_it() -> None:
    prepare()
    Broker.objects.update(name="made up", url="env:BROKER_ELSEWHERE")

    prepare()

    assert sample() == ("made up", "env:BROKER_ELSEWHERE", True)
    assert set(Topic.objects.values_list("broker__name")) == {("made up",)}


def test_the_broker_of_a_sample_of_the_first_release_is_marked() -> None:
    url = "env:POISONWEB_REDIS_URL"
    Broker.objects.create(name="sample", kind="redis_streams", url=url)

    prepare()

    assert sample() == ("sample", url, True)


def test_another_broker_of_the_samples_name_is_not_changed() -> None:
    url = "env:BROKER_OURS"
    Broker.objects.create(name="sample", kind="rabbitmq", url=url)

    with pytest.raises(CommandError, match="there is a broker sample already"):
        prepare()

    assert sample() == ("sample", url, False)
    assert not Topic.objects.exists()


def test_a_lost_key_is_made_again_and_the_old_one_ends(var: Path) -> None:
    prepare()
    lost = (var / "sample-api-key").read_text()
    (var / "sample-api-key").unlink()

    prepare()

    now = datetime.now(UTC)
    secret = (var / "sample-api-key").read_text()
    assert team.recognise(secret=lost, now=now) is None
    assert team.recognise(secret=secret, now=now)


def test_a_revoked_key_is_made_again(var: Path) -> None:
    prepare()
    now, name = datetime.now(UTC), ApiKey.objects.get().name
    team.revoke_api_key(name=name, actor=Actor.system("test"), now=now)

    prepare()

    assert team.recognise(secret=(var / "sample-api-key").read_text(), now=now)


@pytest.mark.parametrize(
    "before",
    [{"scopes": ["capture:write"]}, {"topics": ["ContentTopic", "orders"]}],
    ids=["fewer scopes", "fewer topics"],
)
def test_a_key_of_the_release_before_is_replaced_by_one_with_more_scopes(
    var: Path, before: dict[str, list[str]]
) -> None:
    prepare()
    old = (var / "sample-api-key").read_text()
    ApiKey.objects.update(**before)

    prepare()

    now = datetime.now(UTC)
    assert team.recognise(secret=old, now=now) is None
    key = team.recognise(secret=(var / "sample-api-key").read_text(), now=now)
    assert key
    assert (key.scopes, tuple(key.topics)) == (SCOPES, KEY_TOPICS)


@pytest.mark.parametrize(
    "without", [{"POISONWEB_DEMO": False}, {"POISONWEB_REDIS_URL": None}]
)
def test_without_the_sample_nothing_of_it_is_made(
    var: Path, settings: Settings, without: dict[str, Any]
) -> None:
    for name, value in without.items():
        setattr(settings, name, value)

    prepare()

    assert not Topic.objects.exists()
    assert not ApiKey.objects.exists()
    assert not (var / "sample-api-key").exists()


def test_a_second_run_changes_nothing(var: Path) -> None:
    prepare()
    entries, files = Entry.objects.count(), contents(var)

    prepare()

    assert (Entry.objects.count(), contents(var)) == (entries, files)


def contents(var: Path) -> dict[Path, tuple[bytes, int]]:
    files = (path for path in var.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_static_files_are_collected_again_when_one_changes(
    tmp_path: Path, settings: Settings
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    settings.STATICFILES_DIRS = [source]
    (source / "app.css").write_text("a {}")
    prepare()
    (source / "app.css").write_text("b { }")

    prepare()

    assert (settings.STATIC_ROOT / "app.css").read_text() == "b { }"


def test_four_at_once_take_turns(var: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(prepare, range(4)))

    actions = Entry.objects.order_by("seq").values_list("action", flat=True)
    assert list(actions) == [
        "user.created",
        "broker.registered",
        *["topic.registered", "lane.set"] * len(TOPICS),
        "api_key.created",
    ]


def test_makes_the_partitions_of_the_coming_days() -> None:
    coming = f"capture_counter_{datetime.now(UTC) + timedelta(days=3):%Y%m%d}"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {coming}")

    prepare()

    assert coming in connection.introspection.table_names(include_views=True)


def test_a_database_that_is_away_is_told_in_one_line() -> None:
    options = connections["default"].settings_dict
    port, options["PORT"] = options["PORT"], "1"
    connection.close()

    try:
        with pytest.raises(CommandError, match="^the database: ") as error:
            prepare()
    finally:
        options["PORT"] = port

    assert "\n" not in str(error.value)
