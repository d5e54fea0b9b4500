"""A project with `poisonguard_django` alone; prints what it did as JSON.

It runs in a process of its own, since a process has one set of settings.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import django
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction
from django.test import override_settings

from poisonguard import MessageIdTaken
from poisonguard.outbox import OutboxLimits, OutboxMessage, SendKind, SendOutcome
from poisonguard_django import outbox

APP = "poisonguard_django"


def configure(dsn: str) -> None:
    address = urlsplit(dsn)
    settings.configure(
        INSTALLED_APPS=[APP],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": address.path[1:],
                "HOST": address.hostname,
                "PORT": address.port,
                "USER": address.username,
                "PASSWORD": address.password,
            },
            "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        },
        USE_TZ=True,
        POISONGUARD_OUTBOX={"producer": "shop", "limits": OutboxLimits(rows=1_000)},
    )
    django.setup()


def error_of(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the test reads it
        return f"{type(error).__name__}: {error}"
    return ""


def migrate_and_put() -> dict[str, object]:
    results: dict[str, object] = {}
    call_command("migrate", verbosity=0)
    call_command("migrate", database="other", verbosity=0)  # has no outbox
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)

    with transaction.atomic():
        outbox().put("orders", b"one", headers={"h": "v"}, message_id="m-7")
        try:
            outbox().put("orders", b"one", headers={"h": "v"}, message_id="m-7")
        except MessageIdTaken as error:
            results["is_same"] = error.is_same
        results["inside"] = error_of(
            lambda: outbox().send_or_put(lambda _: [], "orders", b"")
        )
    with transaction.atomic():
        outbox().put("orders", b"two", message_id="m-8")
        transaction.set_rollback(True)
    outbox().put("orders", b"three", message_id="m-9")

    def publish(batch: Sequence[OutboxMessage]) -> Sequence[SendOutcome]:
        results["open while publishing"] = connection.in_atomic_block
        return [SendOutcome(kind=SendKind.UNKNOWN)]

    outbox().send_or_put(publish, "bills", b"four", message_id="m-10")
    connection.set_autocommit(False)
    outbox().send_or_put(publish, "notes", b"five", message_id="m-11")
    connection.rollback()
    connection.set_autocommit(True)
    entries = apps.get_model(APP, "OutboxEntry").objects.order_by("row_id")
    results["rows"] = [[each.producer, str(each), each.body_bytes] for each in entries]
    results["other"] = error_of(lambda: outbox("other").put("orders", b"one"))
    results["room"] = outbox().wait_for_room("orders", 0)
    return results


def migrate_back() -> dict[str, object]:
    results: dict[str, object] = {
        "waiting": error_of(lambda: call_command("migrate", APP, "zero", verbosity=0))
    }
    with connection.cursor() as cursor:
        cursor.execute("UPDATE poisonguard_outbox SET sent_at = now()")
    results["rows"] = apps.get_model(APP, "OutboxEntry").objects.count()
    call_command("migrate", APP, "zero", verbosity=0)
    results["left"] = [
        name
        for name in connection.introspection.table_names()
        if name.startswith("poisonguard")
    ]
    call_command("migrate", verbosity=0)
    return results


def misconfigure() -> dict[str, object]:
    errors = []
    for value in (None, {}, {"producer": "shop", "limit": 7}):
        with override_settings(POISONGUARD_OUTBOX=value):
            errors.append(error_of(outbox))
    return {"errors": errors}


if __name__ == "__main__":
    configure(os.environ["DSN"])
    json.dump(globals()[sys.argv[1]](), sys.stdout)
