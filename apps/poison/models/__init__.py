"""THE RECORD: poisons with their problems, failures, bodies, redrives and skips."""

from __future__ import annotations

from apps.poison.models.messages import (
    Alias,
    Body,
    Failure,
    Poison,
    Problem,
    Redrive,
    Skip,
    SkipCount,
    SkipList,
    StoreEpoch,
    WaitingSkip,
)

__all__ = [
    "Alias",
    "Body",
    "Failure",
    "Poison",
    "Problem",
    "Redrive",
    "Skip",
    "SkipCount",
    "SkipList",
    "StoreEpoch",
    "WaitingSkip",
]
