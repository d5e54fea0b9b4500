"""The lake: Parquet by kind, by UTC day and by attempt, in a folder or an object store.

    <lake>/<kind>/day=2026-11-20/run=12-1/*.parquet

Each attempt of a run writes folders of its own, so that no file is ever overwritten;
the folders of superseded attempts are deleted by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark.lake_schemas import LakeKind, schema


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAttempt:
    """One start of a run: the run, and how often it has been started."""

    run: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.run}-{self.epoch}"


def days(first: date, last: date) -> list[date]:
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


class Lake:
    """A lake at `root`, a folder or any URL that Hadoop's file systems support."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._root = root.rstrip("/")

    def write(self, kind: LakeKind, rows: DataFrame, attempt: RunAttempt) -> None:
        """Write facts or measures to the lake, in folders by day and attempt."""
        with_run = rows.withColumn("run", F.lit(str(attempt)))
        writer = with_run.write.partitionBy("day", "run").mode("append")
        writer.parquet(f"{self._root}/{kind}")

    def read(
        self, kind: LakeKind, attempt: RunAttempt, when: Iterable[date]
    ) -> DataFrame:
        """Read what an attempt wrote for these days from the lake, or no rows."""
        columns = schema(kind)
        folders = [self._folder(kind, day, str(attempt)) for day in when]
        existing = [folder for folder in folders if self._path(folder).exists]
        if not existing:
            return self._no_rows(columns)
        reader = self._spark.read.schema(columns)
        reader = reader.option("basePath", f"{self._root}/{kind}")
        return reader.parquet(*existing).select(*columns.names)

    def delete_except(self, keep: Mapping[date, Iterable[RunAttempt]]) -> None:
        """Delete from the lake's days in `keep` all attempts but those listed there."""
        for day, attempts in keep.items():
            names = {f"run={attempt}" for attempt in attempts}
            for kind in LakeKind:
                for path in self._path(f"{self._root}/{kind}/day={day}").children():
                    if path.name not in names:
                        path.delete()

    def _no_rows(self, columns: StructType) -> DataFrame:
        """Return a frame without rows, without the workers of createDataFrame."""
        nulls = (F.lit(None).cast(each.dataType).alias(each.name) for each in columns)
        return self._spark.range(0).select(*nulls)

    def _folder(self, kind: LakeKind, day: date, run: str) -> str:
        return f"{self._root}/{kind}/day={day}/run={run}"

    def _path(self, name: str) -> _Path:
        return _Path(self._spark, name)


class _Path:
    """A path in the file system that its URL names, resolved as Spark does it."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        # pyspark has no public access to the file systems that it uses.
        jvm: Any = spark._jvm  # noqa: SLF001
        configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._path = jvm.org.apache.hadoop.fs.Path(name)
        self._files = self._path.getFileSystem(configuration)

    @property
    def name(self) -> str:
        return str(self._path.getName())

    @property
    def exists(self) -> bool:
        return bool(self._files.exists(self._path))

    def children(self) -> list[_Path]:
        """List the files and folders in a lake's folder; [] if it does not exist."""
        if not self.exists:
            return []
        entries = self._files.listStatus(self._path)
        return [_Path(self._spark, entry.getPath().toString()) for entry in entries]

    def delete(self) -> None:
        """Delete a file of the lake, or a folder with all that is in it."""
        recursive = True
        self._files.delete(self._path, recursive)
