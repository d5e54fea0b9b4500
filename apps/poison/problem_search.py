"""Find problems by the query language.

`topic:` filters by the topic of the problem, not by the topics of its poisons. A poison
may have been captured on another topic and then sent here, but Postgres would have to
read every poison of a problem to learn that none is of the topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from apps.poison.models import Poison, Problem
from apps.poison.query import Query
from apps.poison.querysets import ProblemQuerySet


def matching(query: Query, *, topics: Iterable[str]) -> ProblemQuerySet:
    """Find the problems of these topics that have a matching poison."""
    topic_query, poison_query = query.split("topic")
    problems = Problem.objects.on_topics(topics).filter(topic_query.where())
    return problems.with_poisons(Poison.objects.matching(poison_query))


def visible(*, topics: Iterable[str]) -> ProblemQuerySet:
    """Select the problems of these topics."""
    return matching(Query(), topics=topics)
