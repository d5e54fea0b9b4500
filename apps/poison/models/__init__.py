"""Poisons with their problems, failures, bodies, redrives and skips.

A foreign key has no index of its own if a wider index begins with it: a poison changes
its state often, and each change is written to every index.
"""

from __future__ import annotations

from apps.poison.models.counts import (
    FailureCount,
    FailureCountChange,
    PoisonCount,
    PoisonCountChange,
    PoisonCountCheck,
)
from apps.poison.models.messages import (
    Alias,
    Body,
    Failure,
    FoldedReports,
    Poison,
    Problem,
)
from apps.poison.models.operation_progress_and_message_holds import Hold, ItemWindow
from apps.poison.models.redrives import Redrive
from apps.poison.models.skips import (
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
    "FailureCount",
    "FailureCountChange",
    "FoldedReports",
    "Hold",
    "ItemWindow",
    "Poison",
    "PoisonCount",
    "PoisonCountChange",
    "PoisonCountCheck",
    "Problem",
    "Redrive",
    "Skip",
    "SkipCount",
    "SkipList",
    "StoreEpoch",
    "WaitingSkip",
]
