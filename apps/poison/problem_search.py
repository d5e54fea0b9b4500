"""Find problems by the query language.

`topic:` filters by the topic of the problem, not by the topics of its poisons. A poison
may have been captured on another topic and then sent here, but Postgres would have to
read every poison of a problem to learn that none is of the topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models.expressions import RawSQL

from apps.poison.models import Poison, Problem
from apps.poison.poison_counts_by_state import WITH_OPEN
from apps.poison.query_language import Query, Term
from apps.poison.querysets import ProblemQuerySet
from apps.poison.states import DisplayState

OPEN = Query((Term("is", DisplayState.OPEN),))


def matching(query: Query, *, topics: Iterable[str]) -> ProblemQuerySet:
    """Find the problems of these topics that have a matching poison."""
    topic_query, poison_query = query.split("topic")
    problems = Problem.objects.on_topics(topics).filter(topic_query.where())
    return problems.with_poisons(Poison.objects.matching(poison_query))


def to_count(query: Query, *, topics: Iterable[str]) -> ProblemQuerySet:
    """Find the problems that `matching` finds, to count them.

    For `is:open` alone, the stored counts of poisons tell which have open ones, and no
    poison is read.
    """
    topic_query, poison_query = query.split("topic")
    if poison_query != OPEN:
        return matching(query, topics=topics)
    problems = Problem.objects.on_topics(topics).filter(topic_query.where())
    with_open: RawSQL = RawSQL(WITH_OPEN, ())  # noqa: S611 - our own text
    return problems.filter(pk__in=with_open)


def visible(*, topics: Iterable[str]) -> ProblemQuerySet:
    """Select the problems of the topics that a principal sees."""
    return matching(Query(), topics=topics)
