"""That a person has seen what went wrong in an operation."""

from __future__ import annotations

from django.db import models

from apps.triage.models.operations import Operation


class Acknowledgement(models.Model):
    """It takes an operation that is over out of the list of those that need a person.

    It covers as many messages in trouble as there were then: if more come back later,
    the operation needs a person again.
    """

    operation = models.OneToOneField(
        Operation, on_delete=models.CASCADE, primary_key=True
    )
    actor = models.TextField()
    at = models.DateTimeField()
    troubled = models.PositiveIntegerField(
        help_text="messages that were refused, came back or are unknown"
    )

    class Meta:
        db_table = "triage_acknowledgement"

    def __str__(self) -> str:
        return f"{self.operation_id} by {self.actor}"
