"""Brokers of tests, registered as a program of ours does it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType

from apps.brokers.models import Broker
from apps.brokers.services import broker_registration
from apps.core.actor import Actor
from apps.team.rights import Principal, Scope

SYSTEM = Principal(actor=Actor.system("test"), scopes=frozenset(Scope), source="system")
NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


def broker_named(
    name: str,
    *,
    kind: str,
    url: str,
    options: Mapping[str, object] = NO_OPTIONS,
    now: datetime,
) -> Broker:
    """Return the broker of this name; add it where it is missing."""
    existing = Broker.objects.filter(name=name).first()
    return existing or broker_registration.add(
        name=name,
        kind=kind,
        url=url,
        options=dict(options),
        principal=SYSTEM,
        now=now,
    )


def sample_broker(now: datetime) -> Broker:
    return broker_registration.add(
        name="sample",
        kind="redis_streams",
        url="env:POISONWEB_REDIS_URL",
        options={},
        is_sample=True,
        principal=SYSTEM,
        now=now,
    )
