"""Problems by the query language, and by what a principal may see.

A problem has one topic, and so `topic:` asks for that one, also where a poison of it
was captured on another topic and then sent here. Postgres would have to read every
poison of a problem to learn that none is of the topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from apps.poison.models import Poison, Problem
from apps.poison.query import Query
from apps.poison.querysets import ProblemQuerySet


def matching(query: Query, *, topics: Iterable[str]) -> ProblemQuerySet:
    """Find the problems of these topics that have a poison which matches."""
    of_topics, of_poisons = query.apart("topic")
    visible = Problem.objects.on_topics(topics).filter(of_topics.where())
    return visible.with_poisons(Poison.objects.matching(of_poisons))


def visible(*, topics: Iterable[str]) -> ProblemQuerySet:
    return matching(Query(), topics=topics)
