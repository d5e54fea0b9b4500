"""Redrives: what became of each send of a poison."""

from __future__ import annotations

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Q

from apps.brokers.models import Topic
from apps.poison.models.messages import Poison
from apps.poison.states import GIVEN_BACK, IN_FLIGHT, RedriveOutcome


class Redrive(models.Model):
    """One send of a poison; every copy of that send carries its signed id.

    A redrive with a `queue` was given back to it, unchanged and without the id.
    """

    id = models.UUIDField(primary_key=True)
    poison = models.ForeignKey(
        Poison,
        on_delete=models.PROTECT,
        related_name="redrives_made",
        db_index=False,
        db_constraint=False,
    )
    n = models.PositiveIntegerField()
    # Not for a foreign key: operations are of an app above this one.
    operation = models.BigIntegerField(null=True)
    item = models.PositiveIntegerField(null=True, help_text="its number there")
    topic = models.ForeignKey(
        Topic, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    queue = models.TextField(
        default="",
        db_default="",
        help_text="the dead-letter queue that has it again",
    )
    digest = models.BinaryField(
        null=True, help_text="of its body, where it bears no mark to be known by"
    )
    outcome = models.CharField(max_length=10, default=RedriveOutcome.SENDING.value)
    detail = models.TextField(default="")
    bookmark = models.TextField(default="", help_text="where the broker put it")
    epoch = models.PositiveIntegerField(help_text="of the run that last sent it")
    copies = models.PositiveIntegerField(default=1)
    claimed_at = models.DateTimeField(help_text="before the first send")
    sent_at = models.DateTimeField(null=True)
    # Stays set if the message fails again later: then it was both.
    confirmed_at = models.DateTimeField(null=True)
    answered_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "poison_redrive"
        constraints = [
            models.UniqueConstraint(
                fields=["poison", "n"], name="poison_redrive_n_once"
            ),
            models.CheckConstraint(
                name="poison_redrive_outcome_is_known",
                condition=Q(outcome__in=[outcome.value for outcome in RedriveOutcome]),
            ),
            models.CheckConstraint(
                name="poison_redrive_sent_has_sent_at",
                condition=Q(outcome__in=[*IN_FLIGHT, "refused"], sent_at=None)
                | (~Q(outcome__in=[*IN_FLIGHT, "refused"]) & Q(sent_at__isnull=False)),
            ),
            models.CheckConstraint(
                name="poison_redrive_answer_has_a_time",
                condition=Q(
                    outcome__in=["confirmed", "recurred"], answered_at__isnull=False
                )
                | (~Q(outcome__in=["confirmed", "recurred"]) & Q(answered_at=None)),
            ),
            models.CheckConstraint(
                name="poison_redrive_only_an_answered_was_confirmed",
                condition=Q(outcome__in=["confirmed", "recurred"])
                | Q(confirmed_at=None),
            ),
        ]
        indexes = [
            # For the nightly report, by time. Rows lie in the order of their claims.
            BrinIndex(
                fields=["sent_at", "confirmed_at", "answered_at"],
                name="poison_redrive_times",
            ),
            models.Index(
                fields=["topic", "digest"],
                name="poison_redrive_unmarked",
                condition=Q(digest__isnull=False),
            ),
            models.Index(fields=["topic"], name="poison_redrive_by_topic"),
        ]

    def __str__(self) -> str:
        return f"{self.poison_id} n={self.n} {self.outcome}"

    @property
    def label(self) -> str:
        """Return the redrive's outcome, or that of its give back, as pages show it."""
        return (
            GIVEN_BACK.get(self.outcome, self.outcome) if self.queue else self.outcome
        )
