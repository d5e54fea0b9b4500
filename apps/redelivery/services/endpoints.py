"""Create, change and remove endpoints; each change is a decision on the audit trail."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import Q

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.brokers.topic_policies import ENDPOINT_TOPICS
from apps.core import advisory_locks
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.redelivery.endpoint_settings_dataclass import EndpointSettings
from apps.redelivery.models import Endpoint, EndpointActivity
from apps.redelivery.models.endpoints import ENDPOINT_NAME_LIMIT
from apps.redelivery.outbound.address_rules import check_target
from apps.redelivery.outbound.target_url import EndpointTarget
from apps.team.rights import Principal, Scope

# Two changes at once, each without a circle, could make one together.
LINKS_LOCK = "endpoint links"
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")


def topic_name_of(endpoint: str) -> str:
    """Return the name of the topic that is made with an endpoint of this name.

    Keys and people who see the topic see the endpoint.
    """
    return ENDPOINT_TOPICS + endpoint


def is_endpoint_name(text: str) -> bool:
    """Tell whether an endpoint may have this name."""
    return len(text) <= ENDPOINT_NAME_LIMIT and bool(_NAME.fullmatch(text))


def visible_endpoint(*, name: str, principal: Principal) -> Endpoint:
    """Find an endpoint that this principal may see; raise Absent otherwise."""
    endpoint = (
        Endpoint.objects.matching(principal.topics)
        .select_related("topic", "forward_topic", "forward_endpoint", "response_hook")
        .filter(name=name)
        .first()
    )
    if endpoint is None:
        raise Absent(f"There is no endpoint {name} here.")
    return endpoint


def create_endpoint(
    *,
    name: str,
    settings: EndpointSettings,
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> Endpoint:
    """Create an endpoint with its topic; see `add_endpoint`.

    It looks the host of the target up, so never call it in a transaction.
    """
    return add_endpoint(
        name=name,
        settings=settings,
        refusal=refusal_of_target(settings.target),
        principal=principal,
        reason=reason,
        now=now,
    )


def refusal_of_target(target: str) -> Invalid | None:
    """Look the host of a target up; return why an endpoint may not lead there."""
    try:
        check_target(EndpointTarget.parse(target, field="target"))
    except Invalid as refusal:
        return refusal
    return None


def add_endpoint(
    *,
    name: str,
    settings: EndpointSettings,
    refusal: Invalid | None,
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> Endpoint:
    """Create an endpoint with its topic, unless its target has a refusal.

    Raises Invalid for an unusable setting, and Refused for a name that is in use.
    """
    principal.require(Scope.BROKERS_WRITE)
    if not is_endpoint_name(name):
        raise Invalid(
            "name",
            f"use up to {ENDPOINT_NAME_LIMIT} small letters, digits, dots, hyphens and"
            " underscores, with a letter or digit at both ends",
        )
    if not principal.sees(topic_name_of(name)):
        raise Forbidden(f"This key is not for the topic {topic_name_of(name)}.")
    settings.check()
    if refusal is not None:
        raise refusal
    return _create(name, settings, principal, reason=reason, now=now)


@transaction.atomic
def _create(
    name: str,
    settings: EndpointSettings,
    principal: Principal,
    *,
    reason: str,
    now: datetime,
) -> Endpoint:
    """Insert an endpoint, its topic and its activity."""
    values = _columns(settings, own_name=name, principal=principal)
    if Endpoint.objects.filter(name=name).exists():
        raise Refused(
            f"There is an endpoint {name} already: choose another name.", field="name"
        )
    endpoint = Endpoint.objects.create(
        name=name,
        topic=_topic_for(name),
        created_at=now,
        created_by=str(principal.actor),
        **values,
    )
    EndpointActivity.objects.create(endpoint=endpoint)
    _record(
        Action.ENDPOINT_CREATED,
        endpoint,
        principal,
        reason=reason,
        now=now,
        detail=asdict(settings),
    )
    return endpoint


def change_endpoint(
    *,
    name: str,
    changes: dict[str, Any],
    version: int | None = None,
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> Endpoint:
    """Change some settings of an endpoint, also for what waits for it already.

    It looks the host of a new target up, so never call it in a transaction. Raises
    Refused where it was changed since `version` was read.
    """
    principal.require(Scope.BROKERS_WRITE)
    before = EndpointSettings.of(visible_endpoint(name=name, principal=principal))
    settings = before.changed(changes)
    settings.check()
    if settings.target != before.target:
        check_target(EndpointTarget.parse(settings.target, field="target"))
    return _change(name, changes, version, principal, reason=reason, now=now)


@transaction.atomic
def _change(
    name: str,
    changes: dict[str, Any],
    version: int | None,
    principal: Principal,
    *,
    reason: str,
    now: datetime,
) -> Endpoint:
    """Update an endpoint under its lock."""
    advisory_locks.wait_for(LINKS_LOCK)
    endpoint = _locked_endpoint(name)
    if version is not None and version != endpoint.version:
        raise Refused(f"The endpoint {name} was changed meanwhile: look again.")
    before = EndpointSettings.of(endpoint)
    settings = before.changed(changes)
    if settings == before:
        return endpoint
    settings.check()  # others may have changed since
    values = _columns(settings, own_name=name, principal=principal)
    for column, value in values.items():
        setattr(endpoint, column, value)
    endpoint.version += 1
    endpoint.save()
    _record(
        Action.ENDPOINT_ALTERED,
        endpoint,
        principal,
        reason=reason,
        now=now,
        detail=_differences(before, settings),
    )
    return endpoint


@transaction.atomic
def remove_endpoint(
    *, name: str, principal: Principal, reason: str = "", now: datetime
) -> None:
    """Remove an endpoint that has no deliveries and that no other endpoint names.

    Its topic stays, because its messages do.
    """
    principal.require(Scope.BROKERS_WRITE)
    visible_endpoint(name=name, principal=principal)
    with connection.cursor() as cursor:
        # Deliveries that are being stored are waited for, and later ones are refused.
        cursor.execute("LOCK TABLE redelivery_delivery IN SHARE ROW EXCLUSIVE MODE")
    endpoint = _locked_endpoint(name)
    if endpoint.deliveries.exists():
        raise Refused(
            f"The endpoint {name} has deliveries, whose history would be lost: disable"
            " it instead."
        )
    naming = Endpoint.objects.filter(
        Q(forward_endpoint=endpoint) | Q(response_hook=endpoint)
    ).first()
    if naming is not None:
        raise Refused(f"The endpoint {naming} sends to {name}: change that first.")
    subject = f"endpoint:{name}"
    endpoint.delete()
    audit.record(
        action=Action.ENDPOINT_REMOVED,
        subject=subject,
        actor=principal.actor,
        source=principal.source,
        reason=reason,
        now=now,
    )


def _locked_endpoint(name: str) -> Endpoint:
    """Lock an endpoint that was there a moment ago; raise Absent if it was removed."""
    endpoint = Endpoint.objects.select_for_update().filter(name=name).first()
    if endpoint is None:
        raise Absent(f"There is no endpoint {name} here.")
    return endpoint


def _columns(
    settings: EndpointSettings, *, own_name: str, principal: Principal
) -> dict[str, Any]:
    """Translate checked settings into the columns of an endpoint."""
    values = asdict(settings)
    values["paths"] = list(settings.paths)
    values["forward_topic"] = _topic_named(settings.forward_topic, principal)
    ways = {
        field: _endpoint_named(values[field], field, principal)
        for field in ("forward_endpoint", "response_hook")
    }
    _refuse_a_circle(own_name, ways)
    return values | ways


def _topic_named(name: str, principal: Principal) -> Topic | None:
    """Find the topic to forward to; raise Invalid without one that has a broker."""
    if not name:
        return None
    topic = Topic.objects.matching(principal.topics).filter(name=name).first()
    if topic is None or topic.broker_id is None:
        raise Invalid("forward_topic", f"there is no topic {name} with a broker here")
    return topic


def _endpoint_named(name: str, field: str, principal: Principal) -> Endpoint | None:
    """Find an endpoint that a setting names; raise Invalid without one."""
    if not name:
        return None
    endpoint = Endpoint.objects.matching(principal.topics).filter(name=name).first()
    if endpoint is None:
        raise Invalid(field, f"there is no endpoint {name} here")
    return endpoint


def _refuse_a_circle(own_name: str, ways: Mapping[str, Endpoint | None]) -> None:
    """Raise Invalid where a delivery, or its answer, would come back for ever."""
    for field, target in ways.items():
        names = [] if target is None else _way(target, own_name)
        if names:
            way = " -> ".join([own_name, *names])
            raise Invalid(field, f"deliveries would go round: {way}")


def _way(start: Endpoint, goal: str) -> list[str]:
    """List the endpoints on the shortest way to another by forwards and response hooks.

    It is [] without a way.
    """
    ways = {start.name: [start.name]}
    ahead = deque([start])
    while ahead and goal not in ways:
        endpoint = ahead.popleft()
        for following in (endpoint.forward_endpoint, endpoint.response_hook):
            if following is not None and following.name not in ways:
                ways[following.name] = [*ways[endpoint.name], following.name]
                ahead.append(following)
    return ways.get(goal, [])


def _topic_for(name: str) -> Topic:
    """Create or find the topic of a new endpoint; raise Refused if it has a broker."""
    topic_name = topic_name_of(name)
    topic = brokers.topics_named(names={topic_name})[topic_name]
    if topic.broker_id is not None:
        raise Refused(f"The topic {topic_name} has a broker: choose another name.")
    return topic


def _differences(before: EndpointSettings, after: EndpointSettings) -> dict[str, Any]:
    """Return the changed settings, each as [before, after]."""
    old, new = asdict(before), asdict(after)
    return {name: [old[name], new[name]] for name in new if old[name] != new[name]}


def _record(
    action: Action,
    endpoint: Endpoint,
    principal: Principal,
    *,
    reason: str,
    now: datetime,
    detail: dict[str, Any],
) -> None:
    audit.record(
        action=action,
        subject=f"endpoint:{endpoint.name}",
        actor=principal.actor,
        source=principal.source,
        reason=reason,
        now=now,
        detail=detail,
    )
