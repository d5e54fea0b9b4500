"""The audit trail: an append-only hash chain, with columns generated from its text."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Func, Q


def member(name: str) -> Func:
    """Read a member of an audit entry's hashed text, which no column can change."""
    return Func(
        F("record"),
        template=f"(%(expressions)s::jsonb ->> '{name}')",
        output_field=models.TextField(),
    )


class Entry(models.Model):
    """One decision: `hash` = SHA-256(previous hash || record)."""

    seq = models.BigIntegerField(primary_key=True)
    record = models.TextField()
    hash = models.BinaryField()
    at = models.GeneratedField(
        expression=Func(
            F("record"),
            template="to_timestamp((%(expressions)s::jsonb ->> 'at_us')::bigint / 1e6)",
            output_field=models.DateTimeField(),
        ),
        output_field=models.DateTimeField(),
        db_persist=True,
    )
    actor = models.GeneratedField(
        expression=member("actor"), output_field=models.TextField(), db_persist=True
    )
    action = models.GeneratedField(
        expression=member("action"), output_field=models.TextField(), db_persist=True
    )
    subject = models.GeneratedField(
        expression=member("subject"), output_field=models.TextField(), db_persist=True
    )
    reason = models.GeneratedField(
        expression=member("reason"), output_field=models.TextField(), db_persist=True
    )
    source = models.GeneratedField(
        expression=member("source"), output_field=models.TextField(), db_persist=True
    )
    # The facts that explain the action later: query, counts, before and after.
    detail = models.GeneratedField(
        expression=Func(
            F("record"),
            template="(%(expressions)s::jsonb -> 'detail')",
            output_field=models.JSONField(),
        ),
        output_field=models.JSONField(),
        db_persist=True,
    )

    class Meta:
        db_table = "audit_entry"
        indexes = [
            # With the number, so that the filter by time needs only this index.
            models.Index(fields=["at", "seq"], name="audit_entry_at_seq"),
            models.Index(fields=["actor", "-seq"], name="audit_entry_actor"),
            models.Index(
                fields=["actor", "action", "-seq"], name="audit_entry_actor_action"
            ),
            models.Index(fields=["subject", "-seq"], name="audit_entry_subject"),
            models.Index(fields=["action", "-seq"], name="audit_entry_action"),
        ]

    def __str__(self) -> str:
        return f"{self.seq} {self.actor} {self.action} {self.subject}"


class Head(models.Model):
    """The end of the chain: one row, locked by each append."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    seq = models.BigIntegerField(default=0)
    hash = models.BinaryField()

    class Meta:
        db_table = "audit_head"
        constraints = [
            models.CheckConstraint(name="audit_head_is_one_row", condition=Q(id=1)),
        ]

    def __str__(self) -> str:
        return f"head {self.seq}"


class LastCheckpoint(models.Model):
    """The newest checkpoint, for the page; the proof is in the checkpoint files."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    at = models.DateTimeField()
    seq = models.BigIntegerField()
    hash = models.BinaryField()
    contradicts = models.BigIntegerField(null=True)
    signature = models.TextField()
    # Why it could not be written or sent.
    trouble = models.TextField(default="")

    class Meta:
        db_table = "audit_last_checkpoint"
        constraints = [
            models.CheckConstraint(
                name="audit_last_checkpoint_is_one_row", condition=Q(id=1)
            ),
        ]

    def __str__(self) -> str:
        return f"checkpoint of entry {self.seq}"
