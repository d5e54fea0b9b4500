"""The skips of the server's list that apply here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import chain

from poisonguard.contract import Skip
from poisonguard.skipping.skip_index import Ref
from poisonguard.skipping.skip_table import SkipTable

# So many skips from the stream are kept loose before they are packed.
LOOSE = 1_000


class ListedSkips:
    """The table of the last snapshot, and loose skips from the stream since."""

    def __init__(self, table: SkipTable) -> None:
        self.table = table
        self.loose: dict[int, Skip] = {}

    def ref(self, skip_id: int) -> Ref | None:
        """Return the loose skip with this id, or else its row of the table, or None."""
        skip = self.loose.get(skip_id)
        return self.table.row(skip_id) if skip is None else skip

    def skip(self, ref: Ref) -> Skip:
        """Return the skip that a ref stands for: itself, or one in a table row."""
        return self.table.skip(ref) if isinstance(ref, int) else ref

    def add(self, skip_id: int, skip: Skip) -> None:
        """Keep a skip loose, beside the table of skips."""
        self.loose[skip_id] = skip

    def is_loose(self, skip: Skip) -> bool:
        """Tell whether this very skip, not an equal one, is kept loose."""
        return skip.id is not None and self.loose.get(skip.id) is skip

    def remove(self, ref: Ref) -> None:
        """Remove a loose skip, or a skip's row of the table."""
        if isinstance(ref, int):
            self.table.remove(ref)
        elif ref.id is not None and self.is_loose(ref):
            del self.loose[ref.id]

    def replace(self, table: SkipTable) -> None:
        """Replace the server's skips, also those loose from the stream, by a table."""
        self.table, self.loose = table, {}

    @property
    def next_expiry(self) -> datetime | None:
        """Return when the first skip of the table expires; None if none does."""
        return self.table.next_expiry

    def expired(self, now: datetime) -> Iterator[Ref]:
        """Yield the expired skips' rows of the table, each once."""
        return self.table.expired(now)

    @property
    def is_crowded(self) -> bool:
        """Tell whether to pack the many loose skips into a new table."""
        return len(self.loose) + self.table.dead > LOOSE + len(self.table) // 4

    def all(self) -> Iterator[Skip]:
        """Yield every skip of the list, packed or loose."""
        packed = (self.table.skip(row) for row, _ in self.table.ids())
        return chain(packed, self.loose.values())
