"""The problems that poisons share."""

from __future__ import annotations

from apps.api.serializers.base import Hex, List, Moment, Number, Schema, Text


class ProblemCounts(Schema):
    open = Number()
    sent = Number()
    handled = Number()
    dropped = Number()


class PoisonProblem(Schema):
    id = Number(source="problem.id")
    topic = Text(source="problem.topic.name")
    consumer_group = Text(source="problem.consumer_group")
    title = Text(source="problem.title")
    summary = Text(source="problem.summary")
    fingerprint = Hex(source="problem.fingerprint")
    version = Number(source="problem.version", help_text="of the classifier")
    total = Number()
    counts = ProblemCounts()
    first_seen = Moment(source="problem.first_seen")
    last_seen = Moment(source="problem.last_seen")


class PoisonProblems(List):
    results = PoisonProblem(many=True)
