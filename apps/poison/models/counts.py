"""How many poisons each problem has in each state, and how often it failed lately.

Triggers of Postgres keep these counts, so that no writer can forget it, and a process
of the release before counts as well. They only insert, so no writer waits for another.
A count is the sum over both tables of its kind.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import Q

from apps.poison.states import PoisonState

# Counted apart: those that were given back to their dead-letter queue, whose state is
# `moved`, and those that failed again after a redrive, whose state is `open`.
GIVEN_BACK = "given back"
CAME_BACK = "came back"
COUNTED_APART = {GIVEN_BACK: PoisonState.MOVED, CAME_BACK: PoisonState.OPEN}

# Failures are counted by this time, from midnight UTC on.
SLICE = timedelta(minutes=10)
ALL_PROBLEMS = 0


class PoisonCount(models.Model):
    """The poisons of a problem, on a topic and in a state, as last gathered.

    `state` is that of the poisons, or one of COUNTED_APART. Numbers, and no foreign
    keys: what is counted protects its problem and topic.
    """

    pk = models.CompositePrimaryKey("problem_id", "topic_id", "state")
    problem_id = models.BigIntegerField()
    topic_id = models.BigIntegerField()
    state = models.CharField(max_length=10)
    number = models.BigIntegerField()

    class Meta:
        db_table = "poison_count"
        indexes = [
            models.Index(fields=["topic_id", "state"], name="poison_count_by_topic"),
        ]

    def __str__(self) -> str:
        return f"{self.number} {self.state} of problem {self.problem_id}"


class PoisonCountChange(models.Model):
    """What one statement changed, until it is gathered into `PoisonCount`."""

    problem_id = models.BigIntegerField()
    topic_id = models.BigIntegerField()
    state = models.CharField(max_length=10)
    number = models.BigIntegerField(help_text="negative where there are fewer now")

    class Meta:
        db_table = "poison_count_change"

    def __str__(self) -> str:
        return f"{self.number:+} {self.state} of problem {self.problem_id}"


class FailureCount(models.Model):
    """The failures of a problem in ten minutes, as last gathered.

    Those of all problems of a topic together have the problem ALL_PROBLEMS.
    """

    pk = models.CompositePrimaryKey("problem_id", "topic_id", "begins_at")
    problem_id = models.BigIntegerField()
    topic_id = models.BigIntegerField()
    begins_at = models.DateTimeField(help_text="of the ten minutes")
    number = models.BigIntegerField()

    class Meta:
        db_table = "poison_failure_count"

    def __str__(self) -> str:
        return f"{self.number} of problem {self.problem_id} at {self.begins_at}"


class FailureCountChange(models.Model):
    """How many failures one statement stored, until `FailureCount` has them."""

    problem_id = models.BigIntegerField()
    begins_at = models.DateTimeField(help_text="of the ten minutes")
    number = models.BigIntegerField(help_text="negative where there are fewer now")

    class Meta:
        db_table = "poison_failure_count_change"

    def __str__(self) -> str:
        return f"{self.number:+} of problem {self.problem_id} at {self.begins_at}"


class PoisonCountCheck(models.Model):
    """One row: when everything was last counted, and what was found then."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    checked_at = models.DateTimeField()
    wrong = models.PositiveIntegerField(help_text="counts that had to be mended")
    detail = models.TextField(default="", help_text="the worst of them")

    class Meta:
        db_table = "poison_count_check"
        constraints = [
            models.CheckConstraint(
                name="poison_count_check_is_one_row", condition=Q(id=1)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.wrong} wrong at {self.checked_at}"
