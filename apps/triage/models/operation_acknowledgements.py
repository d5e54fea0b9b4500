"""That a person has seen what went wrong in an operation."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import models

from apps.triage.models.operations import Operation


class Acknowledgement(models.Model):
    """It takes an operation that is over out of the list of those that need a person.

    It covers as many messages of each kind of trouble as there were then: if more come
    back later, the operation needs a person again, even if fewer are unknown.
    """

    operation = models.OneToOneField(
        Operation, on_delete=models.CASCADE, primary_key=True
    )
    actor = models.TextField()
    at = models.DateTimeField()
    refused = models.PositiveIntegerField()
    recurred = models.PositiveIntegerField()
    unknown = models.PositiveIntegerField()

    class Meta:
        db_table = "triage_acknowledgement"

    def __str__(self) -> str:
        return f"{self.operation_id} by {self.actor}"

    @property
    def troubled(self) -> int:
        """Count the messages in trouble that a person has seen."""
        return self.refused + self.recurred + self.unknown

    def covers(self, counts: Mapping[str, int]) -> bool:
        """Tell whether a person has seen all messages of these counts in trouble."""
        return (
            self.refused >= counts["refused"]
            and self.recurred >= counts["recurred"]
            and self.unknown >= counts["unknown"]
        )
