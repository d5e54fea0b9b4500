"""`manage.py verify_audit`: verify the whole audit chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.audit import checkpoint_comparison, checkpoints, verification
from apps.audit.checkpoint_comparison import Proof
from apps.audit.checkpoints import Checkpoint


class Command(BaseCommand):
    help = (
        "Recompute the audit chain, compare it with checkpoints; exit 1 and name the "
        "first bad entry if it lies. Against the owner of the tables, only what a "
        "checkpoint covers is proven."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--since",
            nargs="+",
            type=Path,
            default=[],
            metavar="FILE",
            help="files or folders of checkpoints, or logs that hold their lines",
        )
        parser.add_argument(
            "--head",
            metavar="HEX",
            help="a hash that this command printed: the chain must still have it",
        )

    def handle(
        self, *_: Any, since: Sequence[Path], head: str | None, **__: Any
    ) -> None:
        """Print what is proven of the audit chain; fail if any of it is broken."""
        result = checkpoint_comparison.prove(_read_checkpoints(since))
        troubles = [*result.troubles]
        if since and not result.number:
            troubles.append("There is no signed checkpoint in what --since names.")
        if head is not None:
            troubles += _missing_head(head)
        if troubles:
            raise CommandError(" ".join(troubles))
        verdict = result.verdict
        self.stdout.write(f"ok: {verdict.entries} entries, head {verdict.head}")
        if since:
            self.stdout.write(_coverage(result))


def _read_checkpoints(paths: Sequence[Path]) -> Iterator[Checkpoint]:
    """Yield the checkpoints of files, or of all files in a folder."""
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        for file in files:
            try:
                yield from checkpoints.read(file)
            except OSError as error:
                raise CommandError(f"--since {file}: {error.strerror}.") from error


def _missing_head(text: str) -> Iterator[str]:
    """Yield a trouble if no entry of the audit chain has this hash."""
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        raise CommandError("--head: give the hash as 64 digits of 0-9, a-f.") from None
    if not verification.has_hash(digest):
        yield (
            "No entry has the hash that --head names: the chain was cut before that "
            "entry or hashed again."
        )


def _coverage(result: Proof) -> str:
    """Say up to which audit entry the checkpoints prove the chain."""
    covered = result.holds.seq if result.holds else 0
    newer = result.verdict.entries - covered
    rest = f"; {newer} newer ones are covered by none" if newer else ""
    number = f"{result.number} checkpoint{'' if result.number == 1 else 's'}"
    return f"{number} hold: the entries up to {covered} are proven{rest}"
