"""A model to look at an outbox; messages are put by `outbox()`, and sent by a sweeper.

The SDK's SQL describes the table. Bodies and headers are left to those.
"""

from __future__ import annotations

from django.db import models


class OutboxEntry(models.Model):
    """One message: it waits until it is sent, a duplicate or quarantined."""

    row_id = models.BigAutoField(primary_key=True)
    producer = models.TextField()
    message_id = models.TextField()
    topic = models.TextField()
    key = models.TextField()
    body_bytes = models.IntegerField()
    created_at = models.DateTimeField()
    due_at = models.DateTimeField()
    attempts = models.IntegerField()
    sent_at = models.DateTimeField(null=True)
    duplicate_of = models.BigIntegerField(null=True)
    quarantined_at = models.DateTimeField(null=True)
    quarantine_cause = models.TextField(null=True)
    quarantine_reason = models.TextField(null=True)
    writer_user = models.TextField(null=True)
    writer_application = models.TextField(null=True)
    writer_address = models.GenericIPAddressField(null=True)
    writer_transaction = models.BigIntegerField(null=True)
    written_at = models.DateTimeField(null=True)

    class Meta:
        managed = False
        db_table = "poisonguard_outbox"
        default_permissions = ("view",)
        verbose_name = "message of the outbox"
        verbose_name_plural = "messages of the outbox"

    def __str__(self) -> str:
        return f"{self.message_id} for {self.topic}"
