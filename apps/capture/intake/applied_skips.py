"""Count what consumers passed over, and end automatic skips that one handled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from apps.capture.intake import message_or_consumer_at_fault
from apps.poison import skip_counts
from apps.team.rights import Principal
from poisonguard.contract import AppliedSkip


def count(
    *, applied: Sequence[AppliedSkip], principal: Principal, now: datetime
) -> list[bool]:
    """Count the messages that consumers report to have skipped, each report once.

    Returns for each report, in order, whether the principal may see the skip; a report
    of a hidden skip is not counted. Automatic skips whose message a consumer handled
    are ended.

    Two transactions on purpose: counting locks rows of skips, and ending a skip locks
    the list before its rows. Together they could deadlock.
    """
    results = skip_counts.count_applied(reports=applied, principal=principal, now=now)
    handled = [each.skip for each in applied if each.handled]
    if handled:
        message_or_consumer_at_fault.end_handled(
            skips=handled, principal=principal, now=now
        )
    return results
