"""Failure rates, and their uncertainty: Wilson's score interval at 95 %.

Wilson (1927), "Probable inference, the law of succession, and statistical inference".
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

Z = 1.959964


def with_rate(measured: DataFrame, *, failed: Column) -> DataFrame:
    """Add the rate of `failed` in the column `delivered`, with its bounds."""
    delivered = F.col("delivered")
    rated = measured.withColumn("failure_rate", rate(failed, delivered))
    low = rate_low(F.col("failure_rate"), delivered)
    high = rate_high(F.col("failure_rate"), delivered)
    return rated.withColumns({"rate_low": low, "rate_high": high})


def rate(failed: Column, delivered: Column) -> Column:
    """Build a Spark column with the share of delivered messages that failed.

    It is null if none was delivered, or if more messages failed than the broker
    counted: then the share is unknown.
    """
    part = F.try_divide(failed, delivered)
    return F.when(part <= 1, part)


def rate_low(rate: Column, delivered: Column) -> Column:
    """Return the lower confidence bound of a failure rate; null without one."""
    bound = (_centre(rate, delivered) - _reach(rate, delivered)) / _divisor(delivered)
    # If no message failed, rounding must not lift the bound above the rate.
    return F.when(rate.isNotNull(), F.greatest(F.least(bound, rate), F.lit(0.0)))


def rate_high(rate: Column, delivered: Column) -> Column:
    """Return the upper confidence bound of a failure rate; null without one."""
    bound = (_centre(rate, delivered) + _reach(rate, delivered)) / _divisor(delivered)
    return F.when(rate.isNotNull(), F.least(F.greatest(bound, rate), F.lit(1.0)))


def _centre(rate: Column, delivered: Column) -> Column:
    """Return the centre of a rate's Wilson interval, before it is divided."""
    return rate + F.lit(Z * Z / 2) / delivered


def _reach(rate: Column, delivered: Column) -> Column:
    """Return how far a rate's Wilson interval reaches from its centre, undivided."""
    spread = rate * (1 - rate) + F.lit(Z * Z / 4) / delivered
    return F.lit(Z) * F.sqrt(spread / delivered)


def _divisor(delivered: Column) -> Column:
    """Return the divisor of both bounds of a rate's Wilson interval."""
    return 1 + F.lit(Z * Z) / delivered
