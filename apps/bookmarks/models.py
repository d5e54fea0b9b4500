"""Positions: how far each consumer has read, as its broker or the consumer reports."""

from __future__ import annotations

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from apps.bookmarks.position_keepers import PositionSource
from apps.bookmarks.querysets import MarkQuerySet, PositionQuerySet
from apps.bookmarks.runs_of_settled_positions import NOWHERE, Runs, RunsField
from apps.brokers.models import Topic


class BookmarkPosition(models.Model):
    """The position of one reader of one topic, with one mark for each publisher.

    If its source is `sdk`, its holder is the client that opened it last: only the
    holder knows its `epoch`.
    """

    topic = models.ForeignKey(Topic, on_delete=models.CASCADE, related_name="positions")
    source = models.CharField(max_length=10, default=PositionSource.BROKER.value)
    consumer_group = models.TextField(default="")
    client_name = models.TextField(default="")
    sub_id = models.TextField(default="")
    clients = models.PositiveIntegerField(default=0)
    epoch = models.BigIntegerField(default=0, db_default=0)
    observed_at = models.DateTimeField(help_text="told by its broker, or opened")
    moved_at = models.DateTimeField(help_text="got ahead at its broker, or was moved")

    objects = PositionQuerySet.as_manager()

    class Meta:
        db_table = "bookmarks_position"
        constraints = [
            models.UniqueConstraint(
                fields=["topic", "source", "consumer_group", "client_name", "sub_id"],
                name="bookmarks_position_once",
            ),
            models.CheckConstraint(
                name="bookmarks_position_source_is_known",
                condition=Q(source__in=[source.value for source in PositionSource]),
            ),
            models.CheckConstraint(
                name="bookmarks_position_has_a_holder",
                condition=Q(source=PositionSource.SDK.value)
                & ~Q(client_name="")
                & ~Q(sub_id="")
                | Q(source=PositionSource.BROKER.value, epoch=0),
            ),
        ]
        indexes = [
            models.Index(
                fields=["client_name", "sub_id"], name="bookmarks_position_by_client"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.reader} on {self.topic_id}"

    @property
    def reader(self) -> str:
        """Name the position's reader: a guard's client and sub id, or a consumer group.

        A broker's consumers without a group are called "its consumers".
        """
        if self.source == PositionSource.BROKER:
            return self.consumer_group or "its consumers"
        return f"{self.client_name} / {self.sub_id}"


class Mark(models.Model):
    """How far a reader has come with one publisher's messages.

    `publisher` is text: AMPS numbers exceed bigint. `processed`, the watermark, is
    comparable within a topic (Redis Streams: milliseconds << 20 | n), and -1 before
    anything is settled. A bookmark is the broker's own text.

    If the consumer settles here, `settled` holds all runs of settled numbers from 0 on:
    merging is one union, and the watermark is the end of the run that begins at 0.
    Numbers are sparse, and only the consumer knows that it received nothing between two
    messages. So it settles a message as the run from the number after the previous one
    that it received (0 for the very first, the watermark + 1 after it resumed) up to
    the message's own. The end of one run and the start of the next adjoin.

    `received` is the highest number that it received. `persisted` is the highest number
    that every replica of the broker has, null if it is not tracked: a reader resumes at
    the lesser of it and the watermark. `epoch` repeats the position's, so that one
    UPDATE both checks it and settles.

    No index holds a column that settling changes, so each update stays on its page.
    """

    position = models.ForeignKey(
        BookmarkPosition,
        on_delete=models.CASCADE,
        related_name="marks",
        db_index=False,
    )
    publisher = models.TextField(default="")
    processed = models.BigIntegerField()
    bookmark = models.TextField(help_text="of the watermark, or of a place before it")
    head = models.BigIntegerField(null=True)
    head_bookmark = models.TextField(default="", db_default="")
    lag = models.BigIntegerField(null=True)
    pending = models.BigIntegerField(null=True)
    oldest_pending_seconds = models.FloatField(null=True)
    epoch = models.BigIntegerField(default=0, db_default=0)
    settled = RunsField(null=True)
    received = models.BigIntegerField(null=True)
    persisted = models.BigIntegerField(null=True)
    settled_at = models.DateTimeField(null=True)

    objects = MarkQuerySet.as_manager()

    class Meta:
        db_table = "bookmarks_mark"
        constraints = [
            models.UniqueConstraint(
                fields=["position", "publisher"], name="bookmarks_mark_once"
            ),
            models.CheckConstraint(
                name="bookmarks_mark_is_not_negative",
                condition=Q(processed__gte=NOWHERE)
                & (Q(head=None) | Q(head__gte=0))
                & (Q(pending=None) | Q(pending__gte=0)),
            ),
            models.CheckConstraint(
                name="bookmarks_mark_is_told_or_settled",
                condition=Q(settled=None, head__isnull=False, processed__gte=0)
                | Q(settled__isnull=False, head=None),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.position_id} at {self.processed}"

    @property
    def ahead(self) -> Runs:
        """Return the mark's settled runs above the watermark."""
        return tuple(run for run in self.settled or () if run[0] > self.processed)

    @property
    def resume_after(self) -> int:
        """Return the sequence number after which the mark's reader resumes."""
        if self.persisted is None:
            return self.processed
        return min(self.processed, self.persisted)


class Sample(models.Model):
    """The watermark of a mark in some minute; stored only if it has changed."""

    mark = models.ForeignKey(
        Mark, on_delete=models.CASCADE, related_name="samples", db_index=False
    )
    at = models.DateTimeField()
    processed = models.BigIntegerField()

    class Meta:
        db_table = "bookmarks_sample"
        constraints = [
            models.UniqueConstraint(
                fields=["mark", "at"], name="bookmarks_sample_once"
            ),
        ]
        indexes = [
            # Rows are stored in the order of their times; only pruning filters by time.
            BrinIndex(fields=["at"], name="bookmarks_sample_times"),
        ]

    def __str__(self) -> str:
        return f"{self.mark_id} at {self.processed}, {self.at}"


class Move(models.Model):
    """A person's move of a position; `epoch` is the one that began with it."""

    position = models.ForeignKey(
        BookmarkPosition,
        on_delete=models.CASCADE,
        related_name="moves",
        db_index=False,
    )
    epoch = models.BigIntegerField()
    at = models.DateTimeField(db_default=Now())
    actor = models.TextField()
    reason = models.TextField()
    restores = models.ForeignKey("self", null=True, on_delete=models.SET_NULL)

    class Meta:
        db_table = "bookmarks_move"
        constraints = [
            models.UniqueConstraint(
                fields=["position", "epoch"], name="bookmarks_move_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.position_id} by {self.actor}"


class Moved(models.Model):
    """The change that a move made to one publisher's mark; `before` can be restored."""

    move = models.ForeignKey(
        Move, on_delete=models.CASCADE, related_name="marks", db_index=False
    )
    publisher = models.TextField()
    before = RunsField()
    after = RunsField()

    class Meta:
        db_table = "bookmarks_moved"
        constraints = [
            models.UniqueConstraint(
                fields=["move", "publisher"], name="bookmarks_moved_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.move_id} {self.publisher}"
