"""Operations and their items, and the beat of the workers."""

from __future__ import annotations

from apps.triage.models.items import Item, SkippedItem
from apps.triage.models.operation_acknowledgements import Acknowledgement
from apps.triage.models.operation_redirects import Redirect
from apps.triage.models.operations import WINDOW_SIZE, Operation, lock_name
from apps.triage.models.worker_beat import WorkerBeat

__all__ = [
    "WINDOW_SIZE",
    "Acknowledgement",
    "Item",
    "Operation",
    "Redirect",
    "SkippedItem",
    "WorkerBeat",
    "lock_name",
]
