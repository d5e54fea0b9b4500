"""Endpoints: where deliveries go, and by which plan."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from apps.brokers.models import Topic
from apps.redelivery.endpoint_and_delivery_choices import (
    AtEnd,
    CallMode,
    IntervalGrowth,
    Jitter,
    Repeatable,
)
from apps.redelivery.querysets import EndpointQuerySet
from apps.redelivery.retry_plan import LONGEST_WAIT, SHORTEST_WAIT, RetryPlan

ENDPOINT_NAME_LIMIT = 100
# Senders send a heartbeat every 5 seconds.
SENDER_LIVES = timedelta(seconds=20)


class Endpoint(models.Model):
    """An HTTP service that the gateway calls; times are in seconds.

    `target` is scheme, host, port and base path. `retries` is N, without the first try;
    None: until the expiry. `client_timeout` is how long a caller must wait at least.
    `topic` is where its given up deliveries are poison.
    """

    name = models.CharField(max_length=ENDPOINT_NAME_LIMIT, unique=True)
    topic = models.OneToOneField(
        Topic, on_delete=models.PROTECT, related_name="endpoint"
    )
    target = models.TextField()
    is_enabled = models.BooleanField(default=True)
    mode = models.CharField(max_length=20, default=CallMode.SYNC_THEN_RETRY.value)
    paths = ArrayField(
        models.TextField(), default=list, help_text="patterns; empty: every path"
    )
    retries = models.PositiveIntegerField(null=True)
    interval = models.FloatField()
    backoff = models.CharField(max_length=20, default=IntervalGrowth.FIXED.value)
    jitter = models.CharField(max_length=20, default=Jitter.NONE.value)
    longest_interval = models.FloatField(default=LONGEST_WAIT)
    expiry = models.FloatField(null=True)
    attempt_timeout = models.FloatField()
    claim_timeout = models.FloatField()
    client_timeout = models.FloatField()
    failure_statuses = models.TextField()
    respects_retry_after = models.BooleanField(default=True)
    repeatable = models.CharField(max_length=20, default=Repeatable.BY_METHOD.value)
    at_end = models.CharField(max_length=20, default=AtEnd.TRIAGE.value)
    forward_topic = models.ForeignKey(
        Topic, null=True, on_delete=models.PROTECT, related_name="+"
    )
    forward_endpoint = models.ForeignKey(
        "self", null=True, on_delete=models.PROTECT, related_name="+"
    )
    concurrency = models.PositiveIntegerField()
    rate = models.FloatField(null=True, help_text="calls a second; null: no limit")
    breaker_failures = models.PositiveIntegerField(
        help_text="in a row, until it opens; 0: no breaker"
    )
    breaker_interval = models.FloatField(help_text="between two probes")
    order_header = models.TextField(
        default="", help_text="requests with one value of it are delivered in order"
    )
    response_hook = models.ForeignKey(
        "self",
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="where the answers of its deliveries are delivered",
    )
    version = models.PositiveIntegerField(default=1, help_text="counts its changes")
    created_at = models.DateTimeField()
    created_by = models.TextField()

    objects = EndpointQuerySet.as_manager()

    class Meta:
        db_table = "redelivery_endpoint"
        constraints = [
            models.CheckConstraint(
                name="redelivery_endpoint_words_are_known",
                condition=Q(
                    mode__in=[word.value for word in CallMode],
                    backoff__in=[word.value for word in IntervalGrowth],
                    jitter__in=[word.value for word in Jitter],
                    repeatable__in=[word.value for word in Repeatable],
                    at_end__in=[word.value for word in AtEnd],
                ),
            ),
            models.CheckConstraint(
                name="redelivery_endpoint_retries_end",
                condition=Q(retries__isnull=False) | Q(expiry__isnull=False),
            ),
            models.CheckConstraint(
                name="redelivery_endpoint_timeouts_are_in_order",
                condition=Q(attempt_timeout__gt=0)
                & Q(attempt_timeout__lt=F("claim_timeout"))
                & Q(attempt_timeout__lt=F("client_timeout")),
            ),
            models.CheckConstraint(
                name="redelivery_endpoint_waits_are_bounded",
                condition=Q(
                    interval__gte=SHORTEST_WAIT,
                    interval__lte=LONGEST_WAIT,
                    longest_interval__gte=F("interval"),
                    longest_interval__lte=LONGEST_WAIT,
                ),
            ),
            models.CheckConstraint(
                name="redelivery_endpoint_forwards_to_one_place",
                condition=Q(
                    at_end=AtEnd.FORWARD.value,
                    forward_topic__isnull=False,
                    forward_endpoint=None,
                )
                | Q(
                    at_end=AtEnd.FORWARD.value,
                    forward_topic=None,
                    forward_endpoint__isnull=False,
                )
                | ~Q(at_end=AtEnd.FORWARD.value)
                & Q(forward_topic=None, forward_endpoint=None),
            ),
            models.CheckConstraint(
                name="redelivery_endpoint_takes_calls", condition=Q(concurrency__gte=1)
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def plan(self) -> RetryPlan:
        """Return the endpoint's retry plan: when its deliveries are tried again."""
        return RetryPlan(
            retries=self.retries,
            interval=self.interval,
            backoff=IntervalGrowth(self.backoff),
            jitter=Jitter(self.jitter),
            longest=self.longest_interval,
        )


class EndpointActivity(models.Model):
    """What senders and gateways note of an endpoint, apart from its settings.

    `fence` is that of the sender that owns the endpoint: an older one is refused. The
    breaker is open until `open_until`; then one call is its probe.
    """

    endpoint = models.OneToOneField(
        Endpoint, primary_key=True, on_delete=models.CASCADE, related_name="activity"
    )
    fence = models.BigIntegerField(default=0)
    failures_in_a_row = models.PositiveIntegerField(default=0)
    opened_at = models.DateTimeField(null=True)
    open_until = models.DateTimeField(null=True)
    heard_at = models.DateTimeField(
        null=True, help_text="the last heartbeat of the sender that owns it"
    )

    class Meta:
        db_table = "redelivery_endpoint_activity"
        constraints = [
            models.CheckConstraint(
                name="redelivery_endpoint_breaker_opens_until",
                condition=Q(opened_at=None, open_until=None)
                | Q(opened_at__isnull=False, open_until__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"activity of {self.endpoint_id}"

    def is_heard(self, now: datetime) -> bool:
        """Tell by its last heartbeat whether a sender that owns the endpoint lives."""
        return self.heard_at is not None and now - self.heard_at <= SENDER_LIVES


class CallCount(models.Model):
    """How many calls of an endpoint's minute ended how.

    A success at the first try leaves nothing but a count here.
    """

    pk = models.CompositePrimaryKey("endpoint", "minute")
    endpoint = models.ForeignKey(
        Endpoint, on_delete=models.CASCADE, related_name="call_counts", db_index=False
    )
    minute = models.DateTimeField()
    succeeded_at_first = models.BigIntegerField(default=0)
    succeeded_later = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0, help_text="attempts, unknown included")
    given_up = models.BigIntegerField(default=0)

    class Meta:
        db_table = "redelivery_call_count"

    def __str__(self) -> str:
        return f"{self.endpoint_id} {self.minute}"
