"""Read Postgres through Spark's JDBC source, with a driver that the operator supplies.

POISONWEB_JDBC_JAR names the driver. The statements and the snapshot are the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import reduce
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from pyspark.sql import DataFrame, SparkSession

# A transaction must be repeatable and read-only to import the exported snapshot.
_SESSION = (
    r"-c default_transaction_isolation=repeatable\ read"
    " -c default_transaction_read_only=on"
)
# With a fetch size the driver reads in a transaction, which the snapshot needs.
_FETCH_SIZE = 10_000


def is_configured() -> bool:
    """Return whether the operator supplied a JDBC driver."""
    return bool(os.environ.get("POISONWEB_JDBC_JAR"))


def read(
    spark: SparkSession, statements: Sequence[str], columns: str, snapshot: str
) -> DataFrame:
    """Read the rows of SQL statements over JDBC, each in a partition of its own."""
    if not statements:
        return spark.createDataFrame([], columns)
    reader = spark.read.format("jdbc").options(
        **_options(os.environ["DATABASE_URL"]),
        driver="org.postgresql.Driver",
        fetchsize=_FETCH_SIZE,
        customSchema=columns,
        sessionInitStatement=f"SET TRANSACTION SNAPSHOT '{snapshot}'",
    )
    pieces = (reader.option("query", statement).load() for statement in statements)
    return reduce(DataFrame.unionAll, pieces)


def _options(database_url: str) -> dict[str, str]:
    """Translate a database URL to JDBC options; Spark hides user and password."""
    url = urlsplit(database_url)
    parameters = dict(parse_qsl(url.query)) | {"options": _SESSION}
    address = f"{url.hostname or 'localhost'}:{url.port or 5432}"
    query = urlencode(parameters, quote_via=quote)
    return {
        "url": f"jdbc:postgresql://{address}{url.path}?{query}",
        "user": unquote(url.username or ""),
        "password": unquote(url.password or ""),
    }
