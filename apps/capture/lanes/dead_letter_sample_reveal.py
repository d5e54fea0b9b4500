"""Samples that an observing lane stored; each reveal of them is audited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers.adapter_contract import Header
from apps.brokers.models import Topic
from apps.capture.models import Sample
from apps.core.errors import Absent
from apps.team.rights import Principal, Scope


def of(topic: Topic) -> list[Sample]:
    """Return a topic's dead-letter samples without their bodies, oldest first."""
    return list(Sample.objects.filter(topic=topic).defer("start").order_by("place"))


def headers_of(sample: Sample) -> Iterator[Header]:
    """Join the header names and values of a dead-letter sample."""
    parts = [bytes(part) for part in sample.headers]
    return zip(parts[::2], parts[1::2], strict=True)


@transaction.atomic
def reveal(*, topic: Topic, principal: Principal, now: datetime) -> Sequence[Sample]:
    """Return a topic's dead-letter samples with bodies; audit the reveal."""
    if not principal.sees(topic.name):
        raise Absent(f"There is no topic {topic.name} here.")
    principal.require(Scope.BODIES_READ)
    samples = list(Sample.objects.filter(topic=topic).order_by("place"))
    if samples:
        audit.record(
            action=Action.BODY_REVEALED,
            subject=f"topic:{topic.name}",
            actor=principal.actor,
            source=principal.source,
            now=now,
            detail={"how": "shown", "samples": len(samples)},
        )
    return samples
