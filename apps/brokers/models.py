"""Topics, and the broker that carries each."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from apps.brokers.topic_querysets import TopicQuerySet

BROKER_NAME_LIMIT = 100
ONE_READER = "brokers_topic_dead_letter_queue_once"


class Broker(models.Model):
    """One message broker; `url` is sealed or env:NAME, never in the clear."""

    name = models.CharField(max_length=BROKER_NAME_LIMIT, unique=True)
    kind = models.CharField(max_length=40)
    url = models.TextField()
    options = models.JSONField(default=dict)
    is_sample = models.BooleanField(
        default=False, db_default=False, help_text="what it carries is made up"
    )
    # Its allow-list: hosts, and variables as env:NAME, from before the address rules.
    allowed_unconfirmed = ArrayField(models.TextField(), default=list, db_default=[])
    allowed_confirmed = ArrayField(models.TextField(), default=list, db_default=[])
    predates_address_rules = models.BooleanField(
        default=False,
        db_default=False,
        help_text="its allow-list is still to be written",
    )

    class Meta:
        db_table = "brokers_broker"

    def __str__(self) -> str:
        return self.name


class Topic(models.Model):
    """A topic that messages are read from; without a broker only reports name it."""

    name = models.TextField(unique=True)
    broker = models.ForeignKey(
        Broker, null=True, on_delete=models.PROTECT, related_name="topics"
    )
    native_name = models.TextField()
    dead_letter_queue = models.TextField(default="")
    shares_queue = models.BooleanField(
        default=False,
        db_default=False,
        help_text="an older topic reads the same dead-letter queue",
    )
    max_dequeue_count = models.PositiveIntegerField(default=5)
    visibility_timeout = models.FloatField(default=60.0, help_text="seconds")
    replays = models.BooleanField(
        default=False,
        db_default=False,
        help_text="a reader that starts anew is handed old messages again",
    )
    options = models.JSONField(
        default=dict, db_default={}, help_text="what only its kind of broker knows"
    )
    request_endpoints = ArrayField(
        models.TextField(),
        default=list,
        db_default=[],
        help_text="patterns of the endpoints that its messages are requests for",
    )
    requeue_topic = models.ForeignKey(
        "self",
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="where its messages are sent again, if not to itself",
    )
    owner = models.TextField(default="", db_default="", help_text="whom to ask")
    runbook = models.TextField(default="", db_default="", help_text="a link")
    retention_days = models.PositiveIntegerField(
        null=True, help_text="how long what is handled or dropped is kept"
    )

    objects = TopicQuerySet.as_manager()

    class Meta:
        db_table = "brokers_topic"
        constraints = [
            models.UniqueConstraint(
                fields=["broker", "native_name"], name="brokers_topic_native_name_once"
            ),
            models.UniqueConstraint(
                fields=["broker", "dead_letter_queue"],
                name=ONE_READER,
                condition=~Q(dead_letter_queue="") & Q(shares_queue=False),
            ),
            models.CheckConstraint(
                name="brokers_topic_max_dequeue_count_is_positive",
                condition=Q(max_dequeue_count__gte=1),
            ),
            models.CheckConstraint(
                name="brokers_topic_visibility_timeout_is_positive",
                condition=Q(visibility_timeout__gt=0),
            ),
            models.CheckConstraint(
                name="brokers_topic_is_drained_only_with_a_broker",
                condition=Q(broker__isnull=False) | Q(dead_letter_queue=""),
            ),
            models.CheckConstraint(
                name="brokers_topic_retention_is_positive",
                condition=Q(retention_days=None) | Q(retention_days__gte=1),
            ),
            models.CheckConstraint(
                name="brokers_topic_is_requeued_to_another",
                condition=Q(requeue_topic=None) | ~Q(requeue_topic=F("id")),
            ),
            models.CheckConstraint(
                name="brokers_topic_of_requests_reads_itself",
                condition=Q(request_endpoints=[])
                | Q(dead_letter_queue=F("native_name")),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def requeue_to(self) -> str:
        """Name the topic where this topic's messages are sent again; "" for itself."""
        return "" if self.requeue_topic is None else self.requeue_topic.name

    @property
    def takes_requests(self) -> bool:
        """Tell whether a lane takes this topic's messages as requests to endpoints."""
        return bool(self.request_endpoints)

    @property
    def is_sample(self) -> bool:
        """Tell whether this topic's broker, or its outbox's, is the demonstration's."""
        broker = self.broker
        if broker is None and hasattr(self, "outbox"):
            broker = self.outbox.broker
        return broker is not None and broker.is_sample
