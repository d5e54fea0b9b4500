"""Where an operation sends the messages of topics that are requeued elsewhere."""

from __future__ import annotations

from django.db import models

from apps.brokers.models import Topic
from apps.triage.models.operations import Operation


class Redirect(models.Model):
    """The topic that gets one topic's messages, by its policy as it was previewed.

    It protects the target from being removed while messages may still be sent there.
    """

    pk = models.CompositePrimaryKey("operation", "topic")
    operation = models.ForeignKey(
        Operation, on_delete=models.CASCADE, related_name="redirects", db_index=False
    )
    topic = models.ForeignKey(Topic, on_delete=models.PROTECT, related_name="+")
    target = models.ForeignKey(Topic, on_delete=models.PROTECT, related_name="+")

    class Meta:
        db_table = "triage_redirect"

    def __str__(self) -> str:
        return f"{self.operation_id}: {self.topic_id} to {self.target_id}"
