"""A position moved by hand, done or only looked at."""

from __future__ import annotations

from datetime import datetime

from apps.api.shapes.base import Shape
from apps.bookmarks.models import Move
from apps.bookmarks.runs import size
from apps.triage.services.moves import Review


def moved(review: Review, done: Move | None, *, now: datetime) -> Shape:
    """Tell what a move did, or would do where there is none."""
    return {
        "id": done and done.pk,
        "position": review.position.pk,
        "epoch": done.epoch if done else review.position.epoch,
        "held": review.is_held(now),
        "whole": review.whole,
        "steps": [
            {
                "publisher": step.change.publisher,
                "before": step.change.old,
                "after": step.change.new,
                "replayed": size(step.change.replayed),
                "passed_over": size(step.change.passed_over),
                "beyond": step.beyond,
                "poison_replayed": [poison.id for poison in step.replayed],
                "poison_passed_over": [poison.id for poison in step.passed_over],
            }
            for step in review.steps
        ],
    }
