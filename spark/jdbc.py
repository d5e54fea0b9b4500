"""The other way to read Postgres: Spark's own, through a JDBC driver you bring.

POISONWEB_JDBC_JAR names the driver. The statements and the snapshot are the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import reduce
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from pyspark.sql import DataFrame, SparkSession

# What the exported snapshot of a read-only, repeatable transaction can be taken into.
_SESSION = (
    r"-c default_transaction_isolation=repeatable\ read"
    " -c default_transaction_read_only=on"
)
# With a fetch size the driver reads in a transaction, which is what a snapshot is for.
_FETCHED = 10_000


def is_configured() -> bool:
    return bool(os.environ.get("POISONWEB_JDBC_JAR"))


def read(
    spark: SparkSession, statements: Sequence[str], columns: str, snapshot: str
) -> DataFrame:
    """Read what the statements give, each in a partition of its own."""
    if not statements:
        return spark.createDataFrame([], columns)
    reader = spark.read.format("jdbc").options(
        **_options(os.environ["DATABASE_URL"]),
        driver="org.postgresql.Driver",
        fetchsize=_FETCHED,
        customSchema=columns,
        sessionInitStatement=f"SET TRANSACTION SNAPSHOT '{snapshot}'",
    )
    pieces = (reader.option("query", statement).load() for statement in statements)
    return reduce(DataFrame.unionAll, pieces)


def _options(database_url: str) -> dict[str, str]:
    """Translate the URL; user and password go apart, where Spark never shows them."""
    told = urlsplit(database_url)
    parameters = dict(parse_qsl(told.query)) | {"options": _SESSION}
    place = f"{told.hostname or 'localhost'}:{told.port or 5432}"
    query = urlencode(parameters, quote_via=quote)
    return {
        "url": f"jdbc:postgresql://{place}{told.path}?{query}",
        "user": unquote(told.username or ""),
        "password": unquote(told.password or ""),
    }
