"""The two ways into Postgres, and the snapshot that both read in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# Debian's libpostgresql-jdbc-java. Without it there is one way only to test.
JDBC_JAR = Path("/usr/share/java/postgresql.jar")
DOORS = ("adbc", "jdbc") if JDBC_JAR.exists() else ("adbc",)

Export = Callable[[], str]
