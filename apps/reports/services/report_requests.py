"""Request the report of some days: queue a run."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from django.db import IntegrityError, transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core import advisory_locks
from apps.core.actor import Actor
from apps.core.errors import Invalid
from apps.reports.errors import RunInTheWay
from apps.reports.models import Run

# Reports of a consumer whose clock is ahead still belong to their day (see capture).
SETTLES = timedelta(minutes=5)
# A quarter more days than the job's driver can hold of the busiest installation.
MOST_DAYS = 92
ONE_DAY = timedelta(days=1)
NIGHTLY = Actor.system("nightly")


def newest_over(now: datetime) -> date:
    """Return the last UTC day that is over, its late reports included."""
    return (now - SETTLES).astimezone(UTC).date() - ONE_DAY


@transaction.atomic
def request(
    *, first_day: date, last_day: date, actor: Actor, now: datetime, source: str
) -> Run:
    """Queue a report run over these days, as a person's or key's decision.

    Raises Invalid for days that cannot be reported, RunInTheWay while another run
    covers one of them.
    """
    run = queue(first_day=first_day, last_day=last_day, actor=actor, now=now)
    audit.record(
        action=Action.REPORT_REQUESTED,
        subject=f"report:{run.pk}",
        actor=actor,
        now=now,
        source=source,
        detail={"from": first_day.isoformat(), "to": last_day.isoformat()},
    )
    return run


def queue(*, first_day: date, last_day: date, actor: Actor, now: datetime) -> Run:
    """Insert a queued report run over these days, and nothing else: no audit, no task.

    Raises what `request` raises.
    """
    _check_range(first_day, last_day, now=now)
    try:
        with transaction.atomic():
            # Two transactions that check the exclusion constraint may deadlock.
            advisory_locks.wait_for("report requests")
            return Run.objects.create(
                first_day=first_day,
                last_day=last_day,
                asked_by=str(actor),
                asked_at=now,
            )
    except IntegrityError:
        other = Run.objects.unfinished().overlapping(first_day, last_day).first()
        which = f"run {other.pk}" if other else "another run"
        raise RunInTheWay(
            f"{which} is making some of these days already: wait for its end",
            run_id=other.pk if other else None,
        ) from None


def _check_range(first_day: date, last_day: date, *, now: datetime) -> None:
    """Raise Invalid for a report's days that are reversed, too many or not over."""
    if last_day < first_day:
        raise Invalid("to", "must not lie before from")
    if (last_day - first_day).days >= MOST_DAYS:
        raise Invalid("from", f"a run makes at most {MOST_DAYS} days: ask for fewer")
    newest = newest_over(now)
    if last_day > newest:
        over = datetime.combine(last_day + ONE_DAY, time.min, UTC) + SETTLES
        raise Invalid(
            "to",
            f"{last_day} is over at {over:%Y-%m-%d %H:%M} UTC; "
            f"the last day that can be reported is {newest}",
        )
