"""Endpoints, their activity and counts; deliveries with their attempts."""

from __future__ import annotations

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("brokers", "0007_topics_requeued_elsewhere"),
    ]

    operations = [
        migrations.CreateModel(
            name="Endpoint",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True)),
                ("target", models.TextField()),
                ("is_enabled", models.BooleanField(default=True)),
                ("mode", models.CharField(default="sync-then-retry", max_length=20)),
                (
                    "paths",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(),
                        default=list,
                        help_text="patterns; empty: every path",
                        size=None,
                    ),
                ),
                ("retries", models.PositiveIntegerField(null=True)),
                ("interval", models.FloatField()),
                ("backoff", models.CharField(default="fixed", max_length=20)),
                ("jitter", models.CharField(default="none", max_length=20)),
                ("longest_interval", models.FloatField(default=3600.0)),
                ("expiry", models.FloatField(null=True)),
                ("attempt_timeout", models.FloatField()),
                ("claim_timeout", models.FloatField()),
                ("client_timeout", models.FloatField()),
                ("failure_statuses", models.TextField()),
                ("respects_retry_after", models.BooleanField(default=True)),
                ("repeatable", models.CharField(default="by-method", max_length=20)),
                ("at_end", models.CharField(default="triage", max_length=20)),
                ("concurrency", models.PositiveIntegerField()),
                (
                    "rate",
                    models.FloatField(
                        help_text="calls a second; null: no limit", null=True
                    ),
                ),
                (
                    "breaker_failures",
                    models.PositiveIntegerField(
                        help_text="in a row, until it opens; 0: no breaker"
                    ),
                ),
                ("breaker_interval", models.FloatField(help_text="between two probes")),
                (
                    "order_header",
                    models.TextField(
                        default="",
                        help_text="requests with one value of it are delivered in order",
                    ),
                ),
                (
                    "version",
                    models.PositiveIntegerField(
                        default=1, help_text="counts its changes"
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("created_by", models.TextField()),
                (
                    "forward_endpoint",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="redelivery.endpoint",
                    ),
                ),
                (
                    "forward_topic",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="brokers.topic",
                    ),
                ),
                (
                    "response_hook",
                    models.ForeignKey(
                        help_text="where the answers of its deliveries are delivered",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="redelivery.endpoint",
                    ),
                ),
                (
                    "topic",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="endpoint",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "redelivery_endpoint",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("at_end__in", ["triage", "drop", "forward"]),
                            ("backoff__in", ["fixed", "exponential"]),
                            ("jitter__in", ["none", "full", "equal", "decorrelated"]),
                            ("mode__in", ["sync-then-retry", "async"]),
                            ("repeatable__in", ["by-method", "always", "never"]),
                        ),
                        name="redelivery_endpoint_words_are_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("retries__isnull", False),
                            ("expiry__isnull", False),
                            _connector="OR",
                        ),
                        name="redelivery_endpoint_retries_end",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("attempt_timeout__gt", 0),
                            ("attempt_timeout__lt", models.F("claim_timeout")),
                            ("attempt_timeout__lt", models.F("client_timeout")),
                        ),
                        name="redelivery_endpoint_timeouts_are_in_order",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("interval__gte", 1.0),
                            ("interval__lte", 3600.0),
                            ("longest_interval__gte", models.F("interval")),
                            ("longest_interval__lte", 3600.0),
                        ),
                        name="redelivery_endpoint_waits_are_bounded",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("at_end", "forward"),
                                ("forward_endpoint", None),
                                ("forward_topic__isnull", False),
                            ),
                            models.Q(
                                ("at_end", "forward"),
                                ("forward_endpoint__isnull", False),
                                ("forward_topic", None),
                            ),
                            models.Q(
                                models.Q(("at_end", "forward"), _negated=True),
                                ("forward_endpoint", None),
                                ("forward_topic", None),
                            ),
                            _connector="OR",
                        ),
                        name="redelivery_endpoint_forwards_to_one_place",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("concurrency__gte", 1)),
                        name="redelivery_endpoint_takes_calls",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("state", models.CharField(default="waiting", max_length=10)),
                ("method", models.TextField()),
                ("path", models.BinaryField()),
                (
                    "headers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BinaryField(), default=list, size=None
                    ),
                ),
                ("size", models.BigIntegerField(help_text="bytes of the body")),
                ("caller", models.TextField(help_text="who called the gateway")),
                ("idempotency_key", models.TextField()),
                ("is_repeatable", models.BooleanField()),
                ("order_key", models.BinaryField(null=True)),
                (
                    "dedupe",
                    models.TextField(
                        help_text="of a message that was requeued", null=True
                    ),
                ),
                ("retry_count", models.PositiveIntegerField(default=0)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("accepted_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(null=True)),
                ("due_at", models.DateTimeField()),
                (
                    "last_wait",
                    models.FloatField(
                        default=0.0, help_text="seconds before the last try"
                    ),
                ),
                ("claim", models.UUIDField(null=True)),
                ("fence", models.BigIntegerField(null=True)),
                ("claimed_until", models.DateTimeField(null=True)),
                ("last_status", models.PositiveSmallIntegerField(null=True)),
                ("last_error", models.TextField(default="")),
                (
                    "cause",
                    models.CharField(
                        default="", help_text="why it was given up", max_length=20
                    ),
                ),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "poison",
                    models.BigIntegerField(
                        help_text="what it became in triage", null=True
                    ),
                ),
                (
                    "endpoint",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="deliveries",
                        to="redelivery.endpoint",
                    ),
                ),
            ],
            options={
                "db_table": "redelivery_delivery",
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "waiting")),
                        fields=["endpoint", "due_at"],
                        name="redelivery_delivery_due",
                    ),
                    models.Index(
                        condition=models.Q(("state", "trying")),
                        fields=["endpoint", "claimed_until"],
                        name="redelivery_delivery_claims",
                    ),
                    models.Index(
                        condition=models.Q(("state", "forwarding")),
                        fields=["endpoint", "id"],
                        name="redelivery_delivery_forwarding",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("order_key__isnull", False),
                            ("state__in", ("waiting", "trying", "forwarding")),
                        ),
                        fields=["endpoint", "order_key", "id"],
                        name="redelivery_delivery_in_order",
                    ),
                    models.Index(
                        fields=["endpoint", "-id"], name="redelivery_delivery_recent"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "waiting",
                                    "trying",
                                    "forwarding",
                                    "delivered",
                                    "given_up",
                                    "dropped",
                                    "forwarded",
                                ],
                            )
                        ),
                        name="redelivery_delivery_state_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("claim__isnull", False),
                                ("claimed_until__isnull", False),
                                ("fence__isnull", False),
                                ("state", "trying"),
                            ),
                            models.Q(
                                models.Q(("state", "trying"), _negated=True),
                                ("claim", None),
                                ("claimed_until", None),
                                ("fence", None),
                            ),
                            _connector="OR",
                        ),
                        name="redelivery_delivery_has_an_owner_while_it_is_tried",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("finished_at", None),
                                ("state__in", ("waiting", "trying", "forwarding")),
                            ),
                            models.Q(
                                ("finished_at__isnull", False),
                                (
                                    "state__in",
                                    ("delivered", "given_up", "dropped", "forwarded"),
                                ),
                            ),
                            _connector="OR",
                        ),
                        name="redelivery_delivery_finished_has_a_time",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("poison__isnull", False), ("state", "given_up")),
                            models.Q(
                                models.Q(("state", "given_up"), _negated=True),
                                ("poison", None),
                            ),
                            _connector="OR",
                        ),
                        name="redelivery_delivery_given_up_is_a_poison",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("retry_count__lte", models.F("attempts"))),
                        name="redelivery_delivery_fails_once_an_attempt",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("dedupe__isnull", False)),
                        fields=("endpoint", "dedupe"),
                        name="redelivery_delivery_requeued_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="DeliveryBody",
            fields=[
                (
                    "delivery",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="body",
                        serialize=False,
                        to="redelivery.delivery",
                    ),
                ),
                ("content", models.BinaryField()),
            ],
            options={
                "db_table": "redelivery_delivery_body",
            },
        ),
        migrations.CreateModel(
            name="CallCount",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "endpoint",
                        "minute",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("minute", models.DateTimeField()),
                ("succeeded_at_first", models.BigIntegerField(default=0)),
                ("succeeded_later", models.BigIntegerField(default=0)),
                (
                    "failed",
                    models.BigIntegerField(
                        default=0, help_text="attempts, unknown included"
                    ),
                ),
                ("given_up", models.BigIntegerField(default=0)),
                (
                    "endpoint",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="call_counts",
                        to="redelivery.endpoint",
                    ),
                ),
            ],
            options={
                "db_table": "redelivery_call_count",
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "delivery",
                        "number",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("outcome", models.CharField(default="trying", max_length=10)),
                ("begun_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("status", models.PositiveSmallIntegerField(null=True)),
                ("detail", models.TextField(default="")),
                (
                    "answer_headers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BinaryField(), default=list, size=None
                    ),
                ),
                (
                    "answer",
                    models.BinaryField(default=b"", help_text="its first bytes"),
                ),
                ("is_answer_cut", models.BooleanField(default=False)),
                ("late_at", models.DateTimeField(null=True)),
                ("late_status", models.PositiveSmallIntegerField(null=True)),
                ("late_answer", models.BinaryField(null=True)),
                (
                    "delivery",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempt_rows",
                        to="redelivery.delivery",
                    ),
                ),
            ],
            options={
                "db_table": "redelivery_attempt",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "outcome__in",
                                ["trying", "succeeded", "failed", "unknown"],
                            )
                        ),
                        name="redelivery_attempt_outcome_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("ended_at", None), ("outcome", "trying")),
                            models.Q(
                                models.Q(("outcome", "trying"), _negated=True),
                                ("ended_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="redelivery_attempt_ends_with_an_outcome",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="EndpointActivity",
            fields=[
                (
                    "endpoint",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="activity",
                        serialize=False,
                        to="redelivery.endpoint",
                    ),
                ),
                ("fence", models.BigIntegerField(default=0)),
                ("failures_in_a_row", models.PositiveIntegerField(default=0)),
                ("opened_at", models.DateTimeField(null=True)),
                ("open_until", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "redelivery_endpoint_activity",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("open_until", None), ("opened_at", None)),
                            models.Q(
                                ("open_until__isnull", False),
                                ("opened_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="redelivery_endpoint_breaker_opens_until",
                    )
                ],
            },
        ),
    ]
