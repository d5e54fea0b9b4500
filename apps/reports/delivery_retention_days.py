"""How long a delivery that is over stays: long enough for a night to count it."""

from __future__ import annotations

# Where the topic of its endpoint names no retention.
USUAL_DAYS = 30
# A night comes within a day of the end of the day that it counts.
LEAST_DAYS = 2

# The days of a topic's retention, as SQL.
DAYS = f"greatest(coalesce(topic.retention_days, {USUAL_DAYS}), {LEAST_DAYS})"
