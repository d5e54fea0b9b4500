"""Add, change and remove outboxes; each change is a decision on the audit trail."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers import sealed_addresses
from apps.brokers.models import Broker, Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.core.advisory_locks import wait_for
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.outbox.models import (
    MOST_OUTBOXES,
    OUTBOX_NAME_LIMIT,
    Outbox,
    OutboxActivity,
)
from apps.outbox.outbox_fields import URL_LIMIT
from apps.outbox.outbox_settings_dataclass import OutboxSettings
from apps.outbox.producer_database_url import ProducerDatabase
from apps.outbox.table_of_another_outbox import TableOwners
from apps.team.rights import Principal, Scope

TOPIC_PREFIX = "outbox/"
# Two at the same time would be one too many, or would have one table.
COUNTING = "the number of outboxes"
# In place of a changed address, which may be a secret.
ANOTHER_ADDRESS = "another address"
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")


def visible_outbox(*, name: str, principal: Principal) -> Outbox:
    """Find an outbox that this principal may see; raise Absent otherwise."""
    outbox = (
        Outbox.objects.matching(principal.topics)
        .select_related("topic", "broker", "activity")
        .filter(name=name)
        .first()
    )
    if outbox is None:
        raise Absent(f"There is no outbox {name} here.")
    return outbox


def hidden_topics(outbox: Outbox, principal: Principal) -> tuple[str, ...]:
    """List the topics whose rows this principal may not see, as the broker names them.

    Rows of topics that are not registered belong to the outbox's own topic.
    """
    if principal.sees_every_topic:
        return ()
    registered = Topic.objects.filter(broker=outbox.broker_id)
    hidden = registered.exclude(pk__in=Topic.objects.matching(principal.topics))
    return tuple(hidden.order_by("pk").values_list("native_name", flat=True))


def topic_name_of(outbox: str) -> str:
    """Return the name of the topic that is made with an outbox of this name.

    Keys and people who see the topic see the outbox.
    """
    return TOPIC_PREFIX + outbox


def add_outbox(
    *,
    name: str,
    settings: OutboxSettings,
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> Outbox:
    """Add an outbox with its topic; sweepers begin within a second.

    It waits for databases, so never call it in a transaction. Raises Invalid for an
    unusable setting, also a table that another outbox has, and Refused for a name that
    is in use or where there are too many.
    """
    principal.require(Scope.BROKERS_WRITE)
    if not _NAME.fullmatch(name) or len(name) > OUTBOX_NAME_LIMIT:
        raise Invalid(
            "name",
            f"use up to {OUTBOX_NAME_LIMIT} small letters, digits, dots, hyphens and"
            " underscores, with a letter or digit at both ends",
        )
    if not principal.sees(topic_name_of(name)):
        raise Forbidden(f"This key is not for the topic {topic_name_of(name)}.")
    settings = replace(settings, url=storable_url(settings.url))
    settings.check()
    check_address(settings.url)
    owners = _owners(name, settings)
    return _add(name, settings, owners, principal, reason=reason, now=now)


@transaction.atomic
def _add(
    name: str,
    settings: OutboxSettings,
    owners: TableOwners,
    principal: Principal,
    *,
    reason: str,
    now: datetime,
) -> Outbox:
    """Insert an outbox, its topic and its activity."""
    wait_for(COUNTING)
    if Outbox.objects.count() >= MOST_OUTBOXES:
        raise Refused(
            f"There are {MOST_OUTBOXES} outboxes already, as many as a sweeper empties:"
            " remove one that is not needed."
        )
    if Outbox.objects.filter(name=name).exists():
        raise Refused(
            f"There is an outbox {name} already: choose another name.", field="name"
        )
    _refuse_shared_table(owners, name, principal, field="url")
    outbox = Outbox.objects.create(
        name=name,
        topic=_topic_for(name),
        created_at=now,
        created_by=str(principal.actor),
        **_columns(settings),
    )
    OutboxActivity.objects.create(outbox=outbox)
    _record(
        Action.OUTBOX_ADDED,
        outbox,
        principal,
        reason=reason,
        now=now,
        detail=_readable(settings),
    )
    return outbox


def change_outbox(
    *,
    name: str,
    changes: dict[str, Any],
    version: int | None = None,
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> Outbox:
    """Change some settings of an outbox; its sweeper follows within a second.

    A new `url` is in the clear or env:NAME. It waits for databases, so never call it in
    a transaction. Raises Refused where it was changed since `version` was read.
    """
    principal.require(Scope.BROKERS_WRITE)
    before = OutboxSettings.of(visible_outbox(name=name, principal=principal))
    if "url" in changes:
        changes = changes | {"url": storable_url(changes["url"])}
        check_address(changes["url"])
    settings = replace(before, **changes)
    settings.check()
    has_table = (before.url, before.schema) == (settings.url, settings.schema)
    owners = None if has_table else _owners(name, settings)
    return _change(name, changes, version, owners, principal, reason=reason, now=now)


@transaction.atomic
def _change(
    name: str,
    changes: dict[str, Any],
    version: int | None,
    owners: TableOwners | None,
    principal: Principal,
    *,
    reason: str,
    now: datetime,
) -> Outbox:
    """Change an outbox's settings under its lock, and audit that; return the outbox.

    `owners` are those of its table, where that becomes another one. Raises Refused
    where the outbox was changed meanwhile, and Invalid for an unusable setting or a
    table that another outbox has.
    """
    if owners is not None:
        wait_for(COUNTING)
    outbox = _locked_outbox(name)
    if version is not None and version != outbox.version:
        raise Refused(f"The outbox {name} was changed meanwhile: look again.")
    before = OutboxSettings.of(outbox)
    settings = replace(before, **changes)
    if settings == before:
        return outbox
    settings.check()  # others may have changed since
    if owners is not None:
        if (owners.url, owners.schema) != (settings.url, settings.schema):
            raise Refused(f"The outbox {name} was changed meanwhile: look again.")
        field = "schema" if settings.url == before.url else "url"
        _refuse_shared_table(owners, name, principal, field=field)
    for column, value in _columns(settings).items():
        setattr(outbox, column, value)
    outbox.version += 1
    outbox.save()
    old, new = _readable(before), _readable(settings)
    if before.url != settings.url:
        new["url"] = ANOTHER_ADDRESS
    _record(
        Action.OUTBOX_ALTERED,
        outbox,
        principal,
        reason=reason,
        now=now,
        detail={
            field: [old[field], new[field]] for field in new if old[field] != new[field]
        },
    )
    return outbox


@transaction.atomic
def remove_outbox(
    *, name: str, principal: Principal, reason: str = "", now: datetime
) -> None:
    """Remove an outbox here; its table, its topic and its messages stay."""
    principal.require(Scope.BROKERS_WRITE)
    visible_outbox(name=name, principal=principal)
    outbox = _locked_outbox(name)
    subject = f"outbox:{name}"
    outbox.delete()
    audit.record(
        action=Action.OUTBOX_REMOVED,
        subject=subject,
        actor=principal.actor,
        source=principal.source,
        reason=reason,
        now=now,
    )


def _owners(name: str, settings: OutboxSettings) -> TableOwners:
    """Ask databases' servers which other outboxes have the table of these settings."""
    others = list(Outbox.objects.exclude(name=name))
    return TableOwners(url=settings.url, schema=settings.schema, others=others)


def _refuse_shared_table(
    owners: TableOwners, name: str, principal: Principal, *, field: str
) -> None:
    """Raise Invalid where another outbox has the same table.

    Call it while `COUNTING` is locked.
    """
    owner = owners.first_of(Outbox.objects.exclude(name=name).select_related("topic"))
    if owner is None:
        return
    is_visible = principal.sees(owner.topic.name)
    words = (
        f"the outbox {owner.name}" if is_visible else "an outbox that you do not see"
    )
    raise Invalid(
        field,
        f"{words} has this table already, and two would send each message to either"
        " broker: change or remove that outbox, or give the schema of another table",
    )


def _locked_outbox(name: str) -> Outbox:
    """Lock an outbox that was there a moment ago; raise Absent if it was removed."""
    outbox = Outbox.objects.select_for_update(of=("self",)).filter(name=name).first()
    if outbox is None:
        raise Absent(f"There is no outbox {name} here.")
    return outbox


def _columns(settings: OutboxSettings) -> dict[str, Any]:
    """Translate checked settings into the columns of an outbox."""
    broker = Broker.objects.filter(name=settings.broker).first()
    if broker is None:
        raise Invalid("broker", f"there is no broker {settings.broker} here")
    return asdict(settings) | {"broker": broker}


def _topic_for(name: str) -> Topic:
    """Create or find the topic of a new outbox; raise Refused if it has a broker."""
    topic_name = topic_name_of(name)
    topic = brokers.topics_named(names={topic_name})[topic_name]
    if topic.broker_id is not None:
        raise Refused(f"The topic {topic_name} has a broker: choose another name.")
    return topic


def storable_url(url: str) -> str:
    """Return a database address that a person entered, in the form to store.

    It is sealed, or env:NAME as it is. Raises Invalid for one that cannot be stored.
    """
    if len(url) > URL_LIMIT or not url.isprintable():
        raise Invalid("url", f"give at most {URL_LIMIT:,} characters that can be seen")
    if url.startswith(sealed_addresses.SEALED):
        raise Invalid("url", "give the address itself; it is sealed here.")
    url = url.strip()
    sealed_addresses.check_variable(url)
    return sealed_addresses.seal(url)


def check_address(url: str) -> None:
    """Raise Invalid for an outbox's database address that is unusable or forbidden.

    The variable of an env:NAME address must be set: without it nothing can be checked.
    """
    variable = url.removeprefix(sealed_addresses.FROM_ENVIRONMENT)
    if variable != url and variable not in os.environ:
        raise Invalid(
            "url",
            f"{variable} is not set in this web process: start it and manage.py"
            " sweeper with the address of the producer's database in that variable",
        )
    ProducerDatabase.read(url).check(resolve=True)


def _readable(settings: OutboxSettings) -> dict[str, Any]:
    """Return an outbox's settings for the audit, with where its address is stored.

    The address itself is a secret.
    """
    return asdict(settings) | {"url": sealed_addresses.storage_of(settings.url)}


def _record(
    action: Action,
    outbox: Outbox,
    principal: Principal,
    *,
    reason: str,
    now: datetime,
    detail: dict[str, Any],
) -> None:
    audit.record(
        action=action,
        subject=f"outbox:{outbox.name}",
        actor=principal.actor,
        source=principal.source,
        reason=reason,
        now=now,
        detail=detail,
    )
