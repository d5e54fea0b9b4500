"""Add and change brokers, and register the topics that they have."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers import (
    adapters,
    allow_lists_of_older_brokers,
    refusal_of_celerys_own_broker,
    sealed_addresses,
)
from apps.brokers.adapter_contract import FoundTopic
from apps.brokers.adapters.adapter import BrokerSettings
from apps.brokers.address_policy import host_ports_in_options
from apps.brokers.allow_lists_of_older_brokers import require_all_topics
from apps.brokers.models import BROKER_NAME_LIMIT, Broker, Topic
from apps.brokers.queue_ownership import reader_of_queue
from apps.brokers.row_locks import lock_broker
from apps.brokers.services.topics_and_routing_publisher import (
    convention_of,
    refuse_taken,
    register_topic,
    target_of,
)
from apps.core.errors import Absent, Forbidden, Invalid, Refused, Unavailable
from apps.core.text_cleaning import is_name, storable
from apps.team.rights import Principal, Scope

log = logging.getLogger(__name__)

URL_LIMIT = 4_000


def add(
    *,
    name: str,
    kind: str,
    url: str,
    options: Mapping[str, object],
    is_sample: bool = False,
    principal: Principal,
    now: datetime,
) -> Broker:
    """Add a broker; raise Invalid for unusable values or a missing client.

    `url` is env:NAME, or an address in the clear, which is stored sealed.
    `is_sample`: what it carries is made up, and `url` may be the sample's variable.
    """
    require_all_topics(principal)
    adapters.kind_named(kind)
    if remedy := adapters.missing_client(kind):
        raise Invalid("kind", remedy)
    _check_name(name)
    stored_url = _storable_url(url)
    sealed_addresses.check_variable(stored_url, is_sample=is_sample)
    values = {"kind": kind, "url": stored_url, "options": options}
    _check_address(Broker(**values))
    with transaction.atomic():
        broker, is_new = Broker.objects.get_or_create(
            name=name, defaults={**values, "is_sample": is_sample}
        )
        if not is_new:
            raise Invalid("name", f"there is a broker {name} already.")
        _audit_broker(
            Action.BROKER_REGISTERED, broker.name, principal, now, {"kind": broker.kind}
        )
    return broker


def alter(
    *,
    broker: Broker,
    name: str | None = None,
    url: str | None = None,
    options: Mapping[str, object] | None = None,
    principal: Principal,
    now: datetime,
) -> Broker:
    """Change the given values of a broker and leave the others and its kind."""
    require_all_topics(principal)
    if broker.predates_address_rules:
        # Write the list before any change: it names what the broker used so far.
        allow_lists_of_older_brokers.write_of_older_brokers(
            actor=principal.actor, now=now
        )
        broker = one(broker_id=broker.pk)
    values: dict[str, Any] = {}
    if name is not None and name != broker.name:
        _check_name(name)
        values["name"] = name
    if options is not None and dict(options) != broker.options:
        values["options"] = dict(options)
    if url is not None:
        values["url"] = _storable_url(url)
    if {"url", "options"} & values.keys():
        _check_change(broker, values)
    return _store_changes(broker, values, principal, now=now) if values else broker


@transaction.atomic
def _store_changes(
    broker: Broker, values: Mapping[str, object], principal: Principal, *, now: datetime
) -> Broker:
    """Lock a broker, store its new values, and audit which were changed."""
    lock_broker(broker)
    others = Broker.objects.exclude(pk=broker.pk)
    if others.filter(name=values.get("name")).exists():
        raise Invalid("name", f"there is a broker {values['name']} already.")
    Broker.objects.filter(pk=broker.pk).update(**values)
    # An address or option may be a secret: record only that it changed.
    detail = {"changed": sorted(values), "name": values.get("name", "")}
    _audit_broker(Action.BROKER_ALTERED, broker.name, principal, now, detail)
    return Broker.objects.get(pk=broker.pk)


def one(*, broker_id: int) -> Broker:
    """Return a broker by its id; raise Absent without one."""
    broker = Broker.objects.filter(pk=broker_id).first()
    if broker is None:
        raise Absent(f"There is no broker {broker_id} here.")
    return broker


@transaction.atomic
def adopt_topics(
    *,
    broker: Broker,
    topics: Sequence[FoundTopic],
    principal: Principal,
    now: datetime,
) -> list[Topic]:
    """Register topics that a broker has; leave registered ones as they are.

    A topic without a dead-letter queue gets the one by convention of its kind, even if
    that does not exist yet. A topic whose queue another topic reads is registered
    without one, so it can have no lane. If a topic of another broker has the name, this
    broker's name is appended.
    """
    principal.require(Scope.BROKERS_WRITE)
    return [_adopt_topic(broker, topic, principal, now=now) for topic in topics]


def _adopt_topic(
    broker: Broker, topic: FoundTopic, principal: Principal, *, now: datetime
) -> Topic:
    """Register one topic of a broker, or return the registered one."""
    if not is_keepable(topic):
        raise Refused("A topic whose name is no text cannot be kept here.")
    existing = broker.topics.filter(native_name=topic.name).first()
    name = existing.name if existing else _free_name(broker, topic.name)
    sees_it = principal.sees(name) and (existing or principal.sees(topic.name))
    if not sees_it:
        raise Forbidden(f"The topic {name} is outside your topics.")
    refuse_taken(name=name, native_name=topic.name, broker=broker)
    if existing and existing.dead_letter_queue:
        return existing
    convention = convention_of(kind=broker.kind, topic=topic.name)
    queue = topic.dead_letter_queue or convention.queue
    is_taken = reader_of_queue(broker=broker, queue=queue, besides=name) is not None
    return register_topic(
        name=name,
        broker=broker,
        dead_letter_queue="" if is_taken else queue,
        policy={},
        native_name=topic.name,
        actor=principal.actor,
        principal=principal,
        now=now,
    )


def is_keepable(topic: FoundTopic) -> bool:
    """Tell whether Postgres and HTTP can carry a topic's names as text."""
    names = (topic.name, topic.dead_letter_queue)
    return all(name == storable(name) for name in names)


def _free_name(broker: Broker, name: str) -> str:
    """Return a topic's name, with the broker's added if another topic has it."""
    namesakes = Topic.objects.filter(name=name).exclude(broker=None)
    return f"{name}@{broker.name}" if namesakes.exists() else name


def _check_name(name: str) -> None:
    """Raise Invalid for a name that cannot be that of a broker."""
    if not is_name(name, limit=BROKER_NAME_LIMIT):
        remedy = f"give up to {BROKER_NAME_LIMIT} characters that can be seen."
        raise Invalid("name", remedy)


def _storable_url(url: str) -> str:
    """Return the form to store of a broker's address that a person entered."""
    if len(url) > URL_LIMIT or not url.isprintable():
        raise Invalid("url", f"give at most {URL_LIMIT} characters that can be seen.")
    if url.startswith(sealed_addresses.SEALED):
        raise Invalid("url", "give the address itself; it is sealed here.")
    return sealed_addresses.seal(url.strip())


def _check_change(broker: Broker, values: Mapping[str, Any]) -> None:
    """Raise Invalid where a broker's new address or option is unusable."""
    changed = copy(broker)
    for name, value in values.items():
        setattr(changed, name, value)
    if "url" in values:
        sealed_addresses.check_variable(
            changed.url,
            is_sample=broker.is_sample,
            allowed=allow_lists_of_older_brokers.of(broker),
        )
    elif broker.url.startswith(sealed_addresses.SEALED):
        _require_address_again(broker, changed)
    _check_address(changed)


def _require_address_again(broker: Broker, changed: Broker) -> None:
    """Refuse an option that sends a broker's sealed password to a new host."""
    try:
        known_hosts = {host_port.host for host_port in target_of(broker).host_ports}
    except Unavailable:
        return  # sealed under another key: nothing can be sent anywhere
    for option, host_port in host_ports_in_options(changed.options).items():
        if host_port.host not in known_hosts:
            raise Invalid(
                "url",
                f"{option} names another host, {host_port.host}: enter the address "
                "again, with its password, so that it is sent there on purpose.",
            )


def _check_address(broker: Broker) -> None:
    """Raise Invalid for a broker's address that can never work.

    A missing client or variable of the environment shows only when it is used.
    """
    try:
        settings = BrokerSettings(
            url=sealed_addresses.reveal(broker.url), options=broker.options
        )
        # Check this first: it explains best what is wrong, and dials nothing.
        adapters.adapter(broker.kind).broker_admin(settings).close()
    except Unavailable as later:
        log.info("an address of %s was not checked: %s", broker.kind, later)
    try:
        refusal_of_celerys_own_broker.refuse(
            sealed_addresses.reveal(broker.url), resolve=False
        )
        target_of(broker).check(resolve=False)
    except Unavailable as later:
        log.info("the hosts of %s are not known yet: %s", broker.kind, later)


def _audit_broker(
    action: Action,
    name: str,
    principal: Principal,
    now: datetime,
    detail: Mapping[str, object],
) -> None:
    """Append a decision on a broker to the audit."""
    audit.record(
        action=action,
        subject=f"broker:{name}",
        actor=principal.actor,
        source=principal.source,
        now=now,
        detail=detail,
    )
