"""Compare the chain with checkpoints that are stored out of reach of its owner.

Entries that no checkpoint covers cannot be proven: an entry that the owner of the
tables adds at the end, before the next checkpoint is taken, looks like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from apps.audit import verification
from apps.audit.checkpoints import Checkpoint
from apps.audit.verification import ChainVerdict

AT_ONCE: Final = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The verdict of the chain, and how it compares with the checkpoints.

    `holds` is the last checkpoint before the first bad entry (the newest, if none is
    bad), `fails` the first one that the chain contradicts.
    """

    verdict: ChainVerdict
    number: int
    holds: Checkpoint | None
    fails: Checkpoint | None
    first_bad: int | None
    troubles: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.troubles


def prove(checkpoints: Iterable[Checkpoint]) -> Proof:
    """Recompute the audit chain; return how it compares with each signed checkpoint."""
    signed, unsigned = _by_signature(checkpoints)
    verdict = verification.verify()
    fails = _first_that_fails(signed)
    first_bad = _first_bad(verdict, fails)
    holds = _last_that_holds(signed, first_bad, fails)
    troubles = [
        *verdict.troubles,
        *_contradiction_troubles(verdict, holds, fails),
        *_coverage_troubles(first_bad, holds, fails),
        *_signature_troubles(unsigned),
    ]
    return Proof(
        verdict=verdict,
        number=len(signed),
        holds=holds,
        fails=fails,
        first_bad=first_bad,
        troubles=tuple(troubles),
    )


def _by_signature(checkpoints: Iterable[Checkpoint]) -> tuple[list[Checkpoint], int]:
    """Return the checkpoints with a valid signature, sorted, and count the others."""
    signed: dict[tuple[int, bytes], Checkpoint] = {}
    unsigned = 0
    for checkpoint in checkpoints:
        if checkpoint.is_signed:
            signed.setdefault((checkpoint.seq, checkpoint.hash), checkpoint)
        else:
            unsigned += 1
    return sorted(signed.values(), key=lambda each: (each.seq, each.at)), unsigned


def _compare_with_chain(
    checkpoints: Sequence[Checkpoint],
) -> Iterator[tuple[Checkpoint, bool]]:
    """Yield each checkpoint, and whether the audit chain still agrees with it."""
    for start in range(0, len(checkpoints), AT_ONCE):
        batch = checkpoints[start : start + AT_ONCE]
        hashes = verification.hashes_of([each.seq for each in batch])
        for checkpoint in batch:
            yield checkpoint, checkpoint.agrees(hashes)


def _first_that_fails(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the first checkpoint that the audit chain contradicts, or None."""
    return next(
        (each for each, agrees in _compare_with_chain(checkpoints) if not agrees), None
    )


def _first_bad(verdict: ChainVerdict, fails: Checkpoint | None) -> int | None:
    """Pick the first of the bad audit entries that a walk and a checkpoint found."""
    cut = verdict.entries + 1 if fails and _is_cut(verdict, fails) else None
    seqs = [seq for seq in (verdict.first_bad, cut) if seq is not None]
    return min(seqs, default=None)


def _is_cut(verdict: ChainVerdict, fails: Checkpoint) -> bool:
    """Tell whether the audit chain ends before a checkpoint, so was cut off."""
    return verdict.first_bad is None and fails.seq > verdict.entries


def _last_that_holds(
    checkpoints: Sequence[Checkpoint], first_bad: int | None, fails: Checkpoint | None
) -> Checkpoint | None:
    """Return the last checkpoint before the first bad audit entry, or None."""
    ends = [first_bad, fails.seq if fails else None]
    end = min((each for each in ends if each is not None), default=None)
    before = [each for each in checkpoints if end is None or each.seq < end]
    return before[-1] if before else None


def _contradiction_troubles(
    verdict: ChainVerdict, holds: Checkpoint | None, fails: Checkpoint | None
) -> Iterator[str]:
    """Describe how the audit chain contradicts its first failing checkpoint."""
    if fails is None:
        return
    if _is_cut(verdict, fails):
        yield (
            f"The chain ends at entry {verdict.entries}, and {fails} was taken of it: "
            "what followed was cut off."
        )
        return
    after = f"after {holds}" if holds else "before any checkpoint that holds"
    yield (
        f"The chain contradicts {fails}: an entry up to that one and {after} was "
        "changed, removed or added, and what follows it was hashed again."
    )


def _coverage_troubles(
    first_bad: int | None, holds: Checkpoint | None, fails: Checkpoint | None
) -> Iterator[str]:
    """Describe which audit entries before a broken link are proven."""
    if first_bad is None or fails is not None:
        return
    if holds is None:
        yield "No checkpoint covers the entries before it."
    else:
        yield f"The last entries before it that are proven are those up to {holds}."


def _signature_troubles(number: int) -> Iterator[str]:
    """Describe how many checkpoints have no valid signature."""
    if number:
        yield (
            f"{number} of the checkpoints are not signed with this SECRET_KEY: they "
            "were forged or changed, or taken with an earlier key. To use those of an "
            "earlier key, give it as POISONWEB_SECRET_KEY."
        )
