"""Allow-list of a broker: what it may go on using although a new broker might not.

The upgrade writes the hosts and the variable of each existing broker into its list, so
that it goes on working. An admin then confirms or strikes out each entry. An entry is
`host:port` or `env:NAME`; it holds for its own broker only, and never for a setting of
ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import F, Func, Q, Value

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers import adapters, sealed_addresses
from apps.brokers.address_policy import (
    METADATA,
    HostPort,
    host_ports_in_options,
    host_ports_in_url,
)
from apps.brokers.models import Broker
from apps.core.actor import Actor
from apps.core.errors import Absent, Forbidden, Invalid, Unavailable
from apps.team.rights import Principal, Scope

# The primary key of a broker, and an entry of its list.
Choice = tuple[int, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """One entry of a broker's allow-list."""

    broker: Broker
    entry: str
    is_confirmed: bool

    @property
    def is_variable(self) -> bool:
        """Tell whether this allow-list entry is an environment variable, not a host."""
        return self.entry.startswith(sealed_addresses.FROM_ENVIRONMENT)


def of(broker: Broker) -> frozenset[str]:
    """Return the entries in force of a broker's allow-list of hosts and variables.

    A broker older than the address rules also has those that the upgrade will write.
    """
    written = {*broker.allowed_confirmed, *broker.allowed_unconfirmed}
    unwritten = _entries_of(broker) if broker.predates_address_rules else ()
    return frozenset({*written, *unwritten})


def entries(principal: Principal) -> list[Allowance]:
    """List allow-list entries of all brokers, unconfirmed first; [] without right."""
    if not (principal.may(Scope.BROKERS_WRITE) and principal.sees_every_topic):
        return []
    allowances = [
        Allowance(broker=broker, entry=entry, is_confirmed=is_confirmed)
        for broker in Broker.objects.order_by("name")
        for is_confirmed, listed in (
            (False, broker.allowed_unconfirmed),
            (True, broker.allowed_confirmed),
        )
        for entry in sorted(listed)
    ]
    return sorted(allowances, key=lambda allowance: allowance.is_confirmed)


def write_of_older_brokers(*, actor: Actor, now: datetime) -> int:
    """Write allow-lists of brokers older than the address rules; return how many."""
    brokers = Broker.objects.filter(predates_address_rules=True).order_by("pk")
    return sum(_write_list(broker, actor=actor, now=now) for broker in brokers)


@transaction.atomic
def confirm(*, chosen: Iterable[Choice], principal: Principal, now: datetime) -> None:
    """Confirm entries of brokers' allow-lists; raise Absent where none waits."""
    require_all_topics(principal)
    for broker_id, entry in chosen:
        waiting = Broker.objects.filter(
            pk=broker_id, allowed_unconfirmed__contains=[entry]
        )
        changed = waiting.update(
            allowed_unconfirmed=_array_without("allowed_unconfirmed", entry),
            allowed_confirmed=_array_with("allowed_confirmed", entry),
        )
        if not changed:
            raise Absent(f"{entry} is not waiting to be confirmed.")
        _audit_decision(
            Action.ALLOWANCE_CONFIRMED, broker_id, entry, principal, now=now
        )


@transaction.atomic
def strike(*, chosen: Iterable[Choice], principal: Principal, now: datetime) -> None:
    """Remove allow-list entries, so that new brokers' rules apply to their brokers.

    Raises Absent where an entry is not in the list.
    """
    require_all_topics(principal)
    for broker_id, entry in chosen:
        listed = Broker.objects.filter(
            Q(allowed_unconfirmed__contains=[entry])
            | Q(allowed_confirmed__contains=[entry]),
            pk=broker_id,
        )
        struck = listed.update(
            allowed_unconfirmed=_array_without("allowed_unconfirmed", entry),
            allowed_confirmed=_array_without("allowed_confirmed", entry),
        )
        if not struck:
            raise Absent(f"{entry} is not in the allow-list.")
        _audit_decision(Action.ALLOWANCE_STRUCK, broker_id, entry, principal, now=now)


@transaction.atomic
def _write_list(broker: Broker, *, actor: Actor, now: datetime) -> int:
    """Write and audit an older broker's list of hosts unless written; return 1 or 0."""
    new_entries = sorted(_entries_of(broker))
    unwritten = Broker.objects.filter(pk=broker.pk, predates_address_rules=True)
    written = unwritten.update(
        predates_address_rules=False, allowed_unconfirmed=new_entries
    )
    if written and new_entries:
        audit.record(
            action=Action.ALLOWANCE_WRITTEN,
            subject=f"broker:{broker.name}",
            actor=actor,
            now=now,
            detail={"entries": new_entries},
        )
    return written


def _entries_of(broker: Broker) -> set[str]:
    """Return allow-list entries for what an older broker uses but a new one may not."""
    try:
        used = list(host_ports_in_options(broker.options).values())
        if broker.url.startswith(sealed_addresses.FROM_ENVIRONMENT):
            return {*map(str, used), *_variable_of(broker)}
        url = sealed_addresses.reveal(broker.url)
        used += host_ports_in_url(url)
        kind = adapters.kind_named(broker.kind)
        metadata = {METADATA} if kind.calls_as_this_machine(url) else set()
    except (Invalid, Unavailable):
        return set()  # its address is unusable, so striking nothing stops nothing
    return metadata | {str(host_port) for host_port in used if _was_allowed(host_port)}


def _variable_of(broker: Broker) -> set[str]:
    """Return the older broker's env:NAME if a new broker might not name it."""
    name = broker.url.removeprefix(sealed_addresses.FROM_ENVIRONMENT)
    is_usual = name.startswith(sealed_addresses.VARIABLE_PREFIX) or broker.is_sample
    return set() if is_usual or sealed_addresses.is_own_setting(name) else {broker.url}


def _was_allowed(host_port: HostPort) -> bool:
    """Tell whether the old setting allowed this host before the upgrade."""
    named = settings.POISONWEB_BROKER_HOSTS
    return not named or any(map(host_port.is_named_by, named))


def require_all_topics(principal: Principal) -> None:
    """Raise Forbidden for a key of some topics, or without the right to write brokers.

    A broker also carries topics that such a key does not see.
    """
    principal.require(Scope.BROKERS_WRITE)
    if not principal.sees_every_topic:
        raise Forbidden("Brokers carry topics that this key does not see.")


def _array_without(column: str, entry: str) -> Func:
    """Build SQL for an allow-list column without an entry."""
    return Func(F(column), Value(entry), function="array_remove")


def _array_with(column: str, entry: str) -> Func:
    """Build SQL for an allow-list column with an entry more."""
    return Func(F(column), Value(entry), function="array_append")


def _audit_decision(
    action: Action, broker_id: int, entry: str, principal: Principal, *, now: datetime
) -> None:
    """Append a decision on an allow-list entry to the audit."""
    name = Broker.objects.values_list("name", flat=True).get(pk=broker_id)
    audit.record(
        action=action,
        subject=f"broker:{name}",
        actor=principal.actor,
        source=principal.source,
        now=now,
        detail={"entry": entry},
    )
