"""The first steps of a team with its own broker: which are done, which comes next.

The database decides what is done, not a click. The broker of the sample does not
count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from django.db.models import Q
from django.urls import reverse

from apps.brokers.models import Broker, Topic
from apps.capture.models import Lane
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.poison.models import Poison, Problem, Redrive
from apps.poison.states import PoisonState
from apps.team.rights import Principal, Scope

# A team with more topics than this needs no first steps.
MOST_TOPICS = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class OnboardingStep:
    """One step; `link` leads to its page, "" if this person lacks the right."""

    what: str
    why: str
    link: str
    done: bool
    again: str = "Again"


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSteps:
    steps: tuple[OnboardingStep, ...]

    @property
    def done(self) -> int:
        """Count the first steps of onboarding that are done."""
        return sum(step.done for step in self.steps)

    @property
    def are_done(self) -> bool:
        return self.done == len(self.steps)

    @property
    def next(self) -> OnboardingStep | None:
        """Return onboarding's first step that is not done."""
        return next((step for step in self.steps if not step.done), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """The rows that decide about the steps: the newest broker, topic and poison."""

    broker: Broker | None = None
    topic: Topic | None = None
    poison: Poison | None = None
    has_requeued: bool = False


def find(principal: Principal) -> FirstSteps | TooSlow | None:
    """Return onboarding's first steps; None once all are done.

    Returns TooSlow where the search for what is done takes too long.
    """
    broker = Broker.objects.filter(is_sample=False).order_by("-pk").first()
    facts: _Facts | TooSlow = _Facts()
    if broker is not None:
        facts = unless_slow(partial(_facts, broker, principal))
    if isinstance(facts, TooSlow):
        return facts
    steps = FirstSteps(steps=_steps(facts, principal))
    return None if steps.are_done else steps


def _facts(broker: Broker, principal: Principal) -> _Facts:
    """Look up which first steps are done: broker, lane, message and requeue."""
    lanes = Lane.objects.filter(topic__broker__is_sample=False)
    mine = lanes.filter(topic__in=Topic.objects.matching(principal.topics))
    # Prefer a topic that is captured already, then the one with the most dead letters.
    lane = mine.select_related("topic").order_by("-captured", "-depth", "-pk").first()
    topics = list(mine.values_list("topic_id", flat=True)[:MOST_TOPICS])
    problems = Problem.objects.filter(topic_id__in=topics).values("pk")
    captured = Poison.objects.filter(problem_id__in=problems)
    return _Facts(
        broker=broker,
        topic=lane.topic if lane else None,
        poison=captured.order_by("-pk").first(),
        has_requeued=Redrive.objects.filter(
            ~Q(sent_at=None), queue="", poison__problem_id__in=problems
        ).exists(),
    )


def _steps(facts: _Facts, principal: Principal) -> tuple[OnboardingStep, ...]:
    """List onboarding's steps, with links where the principal has the right."""
    writes = principal.may(Scope.BROKERS_WRITE)
    acts = principal.may(Scope.OPERATIONS_WRITE)
    return (
        OnboardingStep(
            what="Add a broker",
            why="The broker that has your messages. Nothing is read from it yet.",
            link=reverse("broker-new") if writes else "",
            done=facts.broker is not None,
            again="Add another",
        ),
        OnboardingStep(
            what="See its dead-letter queues",
            why="How many messages each holds, and samples where the broker allows it.",
            link=_to_discover(facts) if writes else "",
            done=facts.topic is not None,
        ),
        OnboardingStep(
            what="Capture one",
            why="Poisonweb then stores a topic's dead letters, each with its error.",
            link=_to_capture(facts) if writes else "",
            done=facts.poison is not None,
        ),
        OnboardingStep(
            what="Requeue one",
            why="Once its consumer is fixed, send it back to its topic, unchanged.",
            link=_to_requeue(facts) if acts else "",
            done=facts.has_requeued,
        ),
    )


def _to_discover(facts: _Facts) -> str:
    """Return the address to discover topics of onboarding's broker at, or ""."""
    if facts.broker is None:
        return ""
    return reverse("broker-discover", args=[facts.broker.pk])


def _to_capture(facts: _Facts) -> str:
    """Return the address of the lane to set to capture in onboarding, or ""."""
    if facts.topic is None:
        return ""
    return reverse("topic", args=[facts.topic.pk]) + "#lane"


def _to_requeue(facts: _Facts) -> str:
    """Return the page to requeue on in onboarding: of an open message, or of all.

    It is "" while nothing is captured.
    """
    if facts.poison is None or facts.poison.state != PoisonState.OPEN:
        return reverse("messages") if facts.poison else ""
    return reverse("message", args=[facts.poison.pk])
