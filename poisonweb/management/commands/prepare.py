"""`manage.py prepare`: prepare database, static files, first admin and sample.

Every step does only what is missing, so a second run changes nothing. Two runs at the
same time take turns.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, ProgrammingError, connection
from django.db.migrations.loader import MigrationLoader
from psycopg.errors import InsufficientPrivilege

from apps.brokers import allow_lists_of_older_brokers, sealed_addresses
from apps.brokers.models import Broker
from apps.brokers.services import broker_registration
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture import daily_partition_creation
from apps.capture.lanes import lane_mode_and_pause
from apps.capture.models import Lane, Mode
from apps.core import advisory_locks, clock, schema_changes
from apps.core.actor import Actor
from apps.core.errors import Invalid, Refused
from apps.core.text_cleaning import one_line
from apps.outbox.models import Outbox
from apps.outbox.outbox_settings_dataclass import OutboxSettings
from apps.outbox.services import outbox_registration
from apps.redelivery.endpoint_settings_dataclass import PRESETS, EndpointSettings
from apps.redelivery.models import Endpoint
from apps.redelivery.services import endpoints
from apps.team import services as team
from apps.team.models import ApiKey, User
from apps.team.rights import Principal, Role, Scope
from poisonweb import database_role_rights
from poisonweb.embedded.postgres import SHOP
from poisonweb.embedded.running_servers_file import SHOP_VARIABLE
from poisonweb.embedded.secrets import secret, write_private
from poisonweb.sample import shop_tables, stock_quote_tcp_port
from poisonweb.sample.stock_quote_client import ENDPOINT as STOCK_QUOTES

log = logging.getLogger(__name__)

SET_UP = Actor.system("set-up")
SETTER_UP = Principal(
    actor=SET_UP, scopes=frozenset({Scope.BROKERS_WRITE}), source="system"
)
ADMIN = "admin"
SAMPLE_BROKER = "sample"
SAMPLE_URL = f"{sealed_addresses.FROM_ENVIRONMENT}{sealed_addresses.SAMPLE_VARIABLE}"
SAMPLE_OUTBOX = "sample-shop"
SAMPLE_TOPICS = ("ContentTopic", "orders", "shipments")
SAMPLE_SCOPES = (Scope.CAPTURE_WRITE, Scope.SKIPS_READ, Scope.GATEWAY_CALL)
SAMPLE_KEY = "sample consumers"
KEY_TOPICS = (*SAMPLE_TOPICS, endpoints.topic_name_of(STOCK_QUOTES))


class Command(BaseCommand):
    help = "Make database, static files, first admin and sample ready; idempotent."
    # The checks import every page, which the processes do soon anyway.
    requires_system_checks = ()

    def handle(self, *_: Any, **__: Any) -> None:
        try:
            with _exclusive_lock():
                _refuse_newer()
                schema_changes.migrate()
                _grant_application_role()
                daily_partition_creation.make(today=clock.now().date())
                _collect_static(settings.STATIC_ROOT)
                _make_admin(settings.POISONWEB_VAR / "admin-password")
                allow_lists_of_older_brokers.write_of_older_brokers(
                    actor=SET_UP, now=clock.now()
                )
                if settings.POISONWEB_DEMO and settings.POISONWEB_REDIS_URL:
                    _make_sample(settings.POISONWEB_VAR / "sample-api-key")
        except (Invalid, Refused) as refusal:
            raise CommandError(str(refusal)) from refusal
        except OperationalError as trouble:
            raise CommandError(f"the database: {one_line(str(trouble))}") from trouble
        except ProgrammingError as trouble:
            if not isinstance(trouble.__cause__, InsufficientPrivilege):
                raise
            why = one_line(str(trouble))
            remedy = "let DATABASE_URL name the owner of the tables"
            raise CommandError(f"the database: {why}: {remedy}.") from trouble


@contextmanager
def _exclusive_lock() -> Iterator[None]:
    """Let only one `prepare` of a database work at a time; the others wait."""
    # A session lock, because migrations use transactions of their own.
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_lock(%s)", [advisory_locks.key_of("prepare")]
        )
    try:
        yield
    finally:
        connection.close()


def _refuse_newer() -> None:
    """Refuse a database with migrations that this release does not know."""
    loader = MigrationLoader(connection)
    unknown = sorted(loader.applied_migrations.keys() - loader.disk_migrations.keys())
    if unknown:
        raise CommandError(
            f"the database was used by a newer Poisonweb ({'.'.join(unknown[-1])} is "
            "unknown here): bring this one up to date, or choose another database."
        )


def _grant_application_role() -> None:
    """Grant the rights of the application's database role, if there is one."""
    role = settings.POISONWEB_APPLICATION_ROLE
    if role:
        password = settings.POISONWEB_APPLICATION_PASSWORD
        database_role_rights.grant(role=role, password=password)


def _collect_static(root: Path) -> None:
    """Collect the static files, unless they are unchanged since the last time."""
    stamp, digest = root / ".collected", _digest_of_static()
    if stamp.exists() and stamp.read_text(encoding="ascii") == digest:
        return
    call_command("collectstatic", interactive=False, clear=True, verbosity=0)
    stamp.write_text(digest, encoding="ascii")


def _digest_of_static() -> str:
    """Return a digest that changes with any collected file."""
    digest = hashlib.sha256()
    for finder in get_finders():
        for name, storage in sorted(finder.list([]), key=lambda item: item[0]):
            stat = Path(storage.path(name)).stat()
            digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _make_admin(file: Path) -> None:
    """Create the first admin, or set the password that the environment gives."""
    password = settings.POISONWEB_ADMIN_PASSWORD
    admin = User.objects.filter(username=ADMIN).first()
    if admin is None:
        team.create_user(
            username=ADMIN,
            password=password or secret(file),
            role=Role.ADMIN,
            reads_bodies=True,
            actor=SET_UP,
            now=clock.now(),
        )
    elif password and not admin.check_password(password):
        now = clock.now()
        team.set_password(user=admin, password=password, actor=SET_UP, now=now)
    if password:
        # The generated password is not valid any more: remove its file.
        file.unlink(missing_ok=True)


def _make_sample(key_file: Path) -> None:
    """Register the sample's topics, lanes, endpoint and outbox; make its API key.

    New lanes capture; other lanes and a usable key stay as they are.
    """
    broker = _sample_broker()
    for topic in SAMPLE_TOPICS:
        sample_topic = brokers.register_topic(
            name=topic,
            broker=broker,
            dead_letter_queue=f"{topic}-poison",
            policy={},
            actor=SET_UP,
            now=clock.now(),
        )
        if not Lane.objects.filter(topic=sample_topic).exists():
            # Keeps the mode that people have set since.
            lane_mode_and_pause.set_mode(
                topic=sample_topic,
                mode=Mode.CAPTURE,
                principal=SETTER_UP,
                now=clock.now(),
            )
    _make_stock_quote_endpoint(stock_quote_tcp_port.read(settings.POISONWEB_VAR))
    _make_outbox(os.environ.get(SHOP_VARIABLE), broker)
    if not _is_usable(key_file):
        write_private(key_file, _new_key())


def _make_stock_quote_endpoint(port: int | None) -> None:
    """Add the gateway's endpoint for the sample's service, by the plan of the article.

    An endpoint that is there only gets the service's port. Without one, do nothing.
    """
    if port is None:
        return
    target = f"http://127.0.0.1:{port}"
    if Endpoint.objects.filter(name=STOCK_QUOTES).exists():
        # People may have changed the rest.
        endpoints.change_endpoint(
            name=STOCK_QUOTES,
            changes={"target": target},
            principal=SETTER_UP,
            now=clock.now(),
        )
    else:
        endpoints.create_endpoint(
            name=STOCK_QUOTES,
            settings=EndpointSettings(target=target, **PRESETS["article"]),
            principal=SETTER_UP,
            now=clock.now(),
        )


def _make_outbox(url: str | None, broker: Broker) -> None:
    """Make the tables of the sample's shop, and add its outbox if it is missing."""
    # The embedded Postgres of an earlier release has no database for it.
    if url is None or not _is_database(SHOP):
        return
    shop_tables.make(url)
    if Outbox.objects.filter(name=SAMPLE_OUTBOX).exists():
        return
    try:
        outbox_registration.add_outbox(
            name=SAMPLE_OUTBOX,
            settings=OutboxSettings(
                url=f"{sealed_addresses.FROM_ENVIRONMENT}{SHOP_VARIABLE}",
                broker=broker.name,
                sent_rows_days=1,
                sent_ids_days=1,
            ),
            principal=SETTER_UP,
            now=clock.now(),
        )
    except Invalid as refusal:
        # People may have added its table under another name.
        log.warning("the sample's outbox is not added: %s", refusal)


def _is_database(name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_database WHERE datname = %s", [name])
        return cursor.fetchone() is not None


def _sample_broker() -> Broker:
    """Return the sample's broker as people have left it; add it without one."""
    # The first release did not mark it.
    unmarked = Broker.objects.filter(name=SAMPLE_BROKER, url=SAMPLE_URL)
    unmarked.update(is_sample=True)
    existing = Broker.objects.filter(is_sample=True).order_by("-pk").first()
    return existing or broker_registration.add(
        name=SAMPLE_BROKER,
        kind="redis_streams",
        url=SAMPLE_URL,
        options={},
        is_sample=True,
        principal=SETTER_UP,
        now=clock.now(),
    )


def _is_usable(key_file: Path) -> bool:
    """Check if the key file has a valid key of the sample, all scopes and topics."""
    if not key_file.exists():
        return False
    secret_of_file = key_file.read_text(encoding="utf-8")
    key = team.recognise(secret=secret_of_file, now=clock.now())
    # A key of an earlier release may lack scopes or topics.
    return (
        key is not None
        and {*SAMPLE_SCOPES} <= {*key.scopes}
        and {*KEY_TOPICS} <= {*key.topics}
    )


def _new_key() -> str:
    """Revoke the sample's API keys and create one; return its secret."""
    ours = ApiKey.objects.filter(name__startswith=SAMPLE_KEY)
    for old_key in ours.filter(revoked_at=None):
        team.revoke_api_key(name=old_key.name, actor=SET_UP, now=clock.now())
    key = team.create_api_key(
        # Names of keys are unique, even of revoked ones.
        name=f"{SAMPLE_KEY} {ours.count() + 1}",
        scopes=SAMPLE_SCOPES,
        topics=KEY_TOPICS,
        actor=SET_UP,
        now=clock.now(),
    )
    return key.secret
