"""Deliveries: requests that are stored until a back end has answered them well."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.redelivery.endpoint_and_delivery_choices import (
    FINISHED,
    UNFINISHED,
    AttemptOutcome,
    DeliveryState,
)
from apps.redelivery.models.endpoints import Endpoint
from apps.redelivery.querysets import DeliveryQuerySet


class Delivery(models.Model):
    """One request on its way to an endpoint.

    `path` is the raw path and query below the endpoint, `headers` is flat: name, value,
    name, value, as the caller sent them. `retry_count` counts failures, `attempts` the
    calls that were begun. `claim`, `fence` and `claimed_until` name its owner while
    it is tried.
    """

    id = models.UUIDField(primary_key=True)
    # Each constraint would lock the endpoint's row for each delivery; no endpoint that
    # has deliveries is ever removed.
    endpoint = models.ForeignKey(
        Endpoint,
        on_delete=models.PROTECT,
        related_name="deliveries",
        db_index=False,
        db_constraint=False,
    )
    state = models.CharField(max_length=10, default=DeliveryState.WAITING.value)
    method = models.TextField()
    path = models.BinaryField()
    headers = ArrayField(models.BinaryField(), default=list)
    size = models.BigIntegerField(help_text="bytes of the body")
    caller = models.TextField(help_text="who called the gateway")
    idempotency_key = models.TextField()
    is_repeatable = models.BooleanField()
    order_key = models.BinaryField(null=True)
    dedupe = models.TextField(null=True, help_text="of a message that was requeued")
    retry_count = models.PositiveIntegerField(default=0)
    attempts = models.PositiveIntegerField(default=0)
    accepted_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField()
    last_wait = models.FloatField(default=0.0, help_text="seconds before the last try")
    claim = models.UUIDField(null=True)
    fence = models.BigIntegerField(null=True)
    claimed_until = models.DateTimeField(null=True)
    last_status = models.PositiveSmallIntegerField(null=True)
    last_error = models.TextField(default="")
    cause = models.CharField(max_length=20, default="", help_text="why it was given up")
    finished_at = models.DateTimeField(null=True)
    # Of an app below; its own table refuses to lose a poison.
    poison = models.BigIntegerField(null=True, help_text="what it became in triage")

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        db_table = "redelivery_delivery"
        constraints = [
            models.CheckConstraint(
                name="redelivery_delivery_state_is_known",
                condition=Q(state__in=[state.value for state in DeliveryState]),
            ),
            models.CheckConstraint(
                name="redelivery_delivery_has_an_owner_while_it_is_tried",
                condition=Q(
                    state=DeliveryState.TRYING.value,
                    claim__isnull=False,
                    fence__isnull=False,
                    claimed_until__isnull=False,
                )
                | ~Q(state=DeliveryState.TRYING.value)
                & Q(claim=None, fence=None, claimed_until=None),
            ),
            models.CheckConstraint(
                name="redelivery_delivery_finished_has_a_time",
                condition=Q(state__in=UNFINISHED, finished_at=None)
                | Q(state__in=FINISHED, finished_at__isnull=False),
            ),
            models.CheckConstraint(
                name="redelivery_delivery_given_up_is_a_poison",
                condition=Q(state=DeliveryState.GIVEN_UP.value, poison__isnull=False)
                | ~Q(state=DeliveryState.GIVEN_UP.value) & Q(poison=None),
            ),
            models.CheckConstraint(
                name="redelivery_delivery_fails_once_an_attempt",
                condition=Q(retry_count__lte=models.F("attempts")),
            ),
            models.UniqueConstraint(
                fields=["endpoint", "dedupe"],
                name="redelivery_delivery_requeued_once",
                condition=Q(dedupe__isnull=False),
            ),
        ]
        indexes = [
            models.Index(
                fields=["endpoint", "due_at"],
                name="redelivery_delivery_due",
                condition=Q(state=DeliveryState.WAITING.value),
            ),
            models.Index(
                fields=["endpoint", "claimed_until"],
                name="redelivery_delivery_claims",
                condition=Q(state=DeliveryState.TRYING.value),
            ),
            models.Index(
                fields=["endpoint", "id"],
                name="redelivery_delivery_forwarding",
                condition=Q(state=DeliveryState.FORWARDING.value),
            ),
            models.Index(
                fields=["endpoint", "order_key", "id"],
                name="redelivery_delivery_in_order",
                condition=Q(state__in=UNFINISHED, order_key__isnull=False),
            ),
            models.Index(fields=["endpoint", "-id"], name="redelivery_delivery_recent"),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.state}"


class DeliveryBody(models.Model):
    """The body of a delivery, byte for byte. No list and no claim reads this table."""

    delivery = models.OneToOneField(
        Delivery,
        primary_key=True,
        on_delete=models.CASCADE,
        related_name="body",
        db_constraint=False,
    )
    content = models.BinaryField()

    class Meta:
        db_table = "redelivery_delivery_body"

    def __str__(self) -> str:
        return f"body of {self.delivery_id}"


class Attempt(models.Model):
    """One call of a delivery's endpoint, by its number from 1, and its answer.

    It is stored before the call, so that no call is forgotten. `late_*` is an answer
    that came after the attempt's time: it changes nothing.
    """

    pk = models.CompositePrimaryKey("delivery", "number")
    delivery = models.ForeignKey(
        Delivery,
        on_delete=models.CASCADE,
        related_name="attempt_rows",
        db_index=False,
        db_constraint=False,
    )
    number = models.PositiveIntegerField()
    outcome = models.CharField(max_length=10, default=AttemptOutcome.TRYING.value)
    begun_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    status = models.PositiveSmallIntegerField(null=True)
    detail = models.TextField(default="")
    answer_headers = ArrayField(models.BinaryField(), default=list)
    answer = models.BinaryField(default=b"", help_text="its first bytes")
    is_answer_cut = models.BooleanField(default=False)
    late_at = models.DateTimeField(null=True)
    late_status = models.PositiveSmallIntegerField(null=True)
    late_answer = models.BinaryField(null=True)

    class Meta:
        db_table = "redelivery_attempt"
        constraints = [
            models.CheckConstraint(
                name="redelivery_attempt_outcome_is_known",
                condition=Q(outcome__in=[outcome.value for outcome in AttemptOutcome]),
            ),
            models.CheckConstraint(
                name="redelivery_attempt_ends_with_an_outcome",
                condition=Q(outcome=AttemptOutcome.TRYING.value, ended_at=None)
                | ~Q(outcome=AttemptOutcome.TRYING.value) & Q(ended_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.delivery_id}/{self.number} {self.outcome}"
