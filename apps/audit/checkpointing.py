"""Take checkpoints: write them to the log, a file, a URL, and a row for the page."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings

from apps.audit import checkpoint_upload, checkpoints, verification
from apps.audit.checkpoints import Checkpoint
from apps.audit.models import Head, LastCheckpoint
from apps.core.errors import Unavailable

log = logging.getLogger(__name__)

# How often to repeat the checkpoint of a chain that did not grow: a sign of life.
QUIET = timedelta(hours=1)


def folder() -> Path:
    """Return the folder of the checkpoint files, below POISONWEB_VAR."""
    return Path(settings.POISONWEB_VAR) / "audit"


def take(*, now: datetime) -> Checkpoint | None:
    """Sign the audit's head as a checkpoint, write it to a file and post it to a URL.

    Only if the head moved, an hour passed, or the last time failed; otherwise, and
    without a head, returns None. Failures are logged and shown on the page, and the
    next minute tries again.
    """
    head = Head.objects.first()
    if head is None:
        log.error("no checkpoint: audit_head has no row; run verify_audit")
        return None
    earlier = _newest_in_files()
    checkpoint = Checkpoint(
        at=now.replace(microsecond=0),
        seq=head.seq,
        hash=bytes(head.hash),
        contradicts=_find_contradiction(earlier),
    ).with_signature()
    if not _is_due(checkpoint, earlier):
        return None
    log.info("audit checkpoint %s", checkpoint.line)
    troubles = [
        trouble
        for trouble in (_append_to_file(checkpoint), _post_to_url(checkpoint))
        if trouble
    ]
    _store_last(checkpoint, trouble="; ".join(troubles))
    return checkpoint


def _newest_in_files() -> Checkpoint | None:
    """Return the newest signed checkpoint of the files; None if they are unreadable."""
    try:
        return checkpoints.newest(folder())
    except OSError:
        log.exception("the checkpoint files cannot be read")
        return None


def _find_contradiction(earlier: Checkpoint | None) -> int | None:
    """Return the seq of a checkpoint that the audit chain contradicts, or None.

    Later checkpoints repeat it until an operator puts the file aside: otherwise the
    alarm would end after a minute, as they agree with the changed chain.
    """
    if earlier is None or earlier.contradicts is not None:
        return earlier.contradicts if earlier else None
    if earlier.agrees(verification.hashes_of([earlier.seq])):
        return None
    log.error("the trail contradicts %s; run verify_audit --since", earlier)
    return earlier.seq


def _is_due(checkpoint: Checkpoint, earlier: Checkpoint | None) -> bool:
    """Tell whether to take a checkpoint of the audit now.

    So if the audit moved, an hour passed, or the last time failed.
    """
    if earlier is None or LastCheckpoint.objects.exclude(trouble="").exists():
        return True
    same = (checkpoint.seq, checkpoint.hash) == (earlier.seq, earlier.hash)
    return not same or checkpoint.at - earlier.at >= QUIET


def _append_to_file(checkpoint: Checkpoint) -> str:
    """Append the checkpoint to its file; return the trouble, or ""."""
    try:
        checkpoints.append(folder(), checkpoint)
    except OSError as error:
        log.exception("the checkpoint could not be written to a file")
        return f"the checkpoint file could not be written ({error.strerror})"
    return ""


def _post_to_url(checkpoint: Checkpoint) -> str:
    """POST the checkpoint to the URL, if one is set; return the trouble, or ""."""
    url = settings.POISONWEB_AUDIT_CHECKPOINT_URL
    if not url:
        return ""
    try:
        checkpoint_upload.post(checkpoint, url=url)
    except Unavailable as error:
        log.error("%s", error)  # noqa: TRY400 - the traceback would quote the address
        return str(error)
    return ""


def _store_last(checkpoint: Checkpoint, *, trouble: str) -> None:
    """Store the checkpoint and its trouble as the only row of `LastCheckpoint`."""
    LastCheckpoint.objects.update_or_create(
        id=1,
        defaults={
            "at": checkpoint.at,
            "seq": checkpoint.seq,
            "hash": checkpoint.hash,
            "contradicts": checkpoint.contradicts,
            "signature": checkpoint.signature,
            "trouble": trouble,
        },
    )
