"""The move of a position, carried out or only reviewed."""

from __future__ import annotations

from datetime import datetime

from apps.api.shapes.base import Shape
from apps.bookmarks.models import Move
from apps.bookmarks.runs import size
from apps.triage.services.moves import Review


def moved(review: Review, move: Move | None, *, now: datetime) -> Shape:
    """Show what a move did, or would do where `move` is None."""
    return {
        "id": move and move.pk,
        "position": review.position.pk,
        "epoch": move.epoch if move else review.position.epoch,
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
