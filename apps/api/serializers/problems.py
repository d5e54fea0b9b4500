"""The problems that poisons share."""

from __future__ import annotations

from apps.api.serializers.base import List, Moment, Number, Schema, Text


class ProblemCounts(Schema):
    open = Number()
    sent = Number()
    handled = Number()
    dropped = Number()


class PoisonProblem(Schema):
    id = Number()
    topic = Text()
    consumer_group = Text()
    title = Text()
    summary = Text()
    fingerprint = Text()
    version = Number(help_text="of the classifier")
    total = Number()
    counts = ProblemCounts()
    first_seen = Moment()
    last_seen = Moment()


class PoisonProblems(List):
    results = PoisonProblem(many=True)
