"""The lake: Parquet by kind, by UTC day and by attempt, in a folder or an object store.

    <lake>/<kind>/day=2026-11-20/run=12-1/*.parquet

Each attempt of a run writes folders of its own, so nothing that is there is ever
overwritten; what a newer attempt supersedes is forgotten by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark.schemas import Kind, schema


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One start of a run: the run, and how often it has been started."""

    run: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.run}-{self.epoch}"


def days(first: date, last: date) -> list[date]:
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


class Lake:
    """A lake at `root`, a folder or any URL that Hadoop's file systems know."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._root = root.rstrip("/")

    def write(self, kind: Kind, rows: DataFrame, attempt: Attempt) -> None:
        """Add the rows, each to the folder of its day and this attempt, in one pass."""
        marked = rows.withColumn("run", F.lit(str(attempt)))
        writer = marked.write.partitionBy("day", "run").mode("append")
        writer.parquet(f"{self._root}/{kind}")

    def read(self, kind: Kind, attempt: Attempt, when: Iterable[date]) -> DataFrame:
        """Read what an attempt wrote of these days; a day may well have no rows."""
        looks = schema(kind)
        wanted = [self._folder(kind, day, str(attempt)) for day in when]
        there = [folder for folder in wanted if self._path(folder).exists]
        if not there:
            return self._nothing(looks)
        reader = self._spark.read.schema(looks)
        reader = reader.option("basePath", f"{self._root}/{kind}")
        return reader.parquet(*there).select(*looks.names)

    def forget(self, keep: Mapping[date, Iterable[Attempt]]) -> None:
        """Delete what the days named here hold of any attempt but those to keep."""
        for day, attempts in keep.items():
            kept = {f"run={attempt}" for attempt in attempts}
            for kind in Kind:
                for path in self._path(f"{self._root}/{kind}/day={day}").children():
                    if path.name not in kept:
                        path.delete()

    def _nothing(self, looks: StructType) -> DataFrame:
        """Give no rows; createDataFrame would start Python workers to tell them."""
        columns = (F.lit(None).cast(each.dataType).alias(each.name) for each in looks)
        return self._spark.range(0).select(*columns)

    def _folder(self, kind: Kind, day: date, run: str) -> str:
        return f"{self._root}/{kind}/day={day}/run={run}"

    def _path(self, name: str) -> _Path:
        return _Path(self._spark, name)


class _Path:
    """A place in the file system that its name tells, found as Spark itself does."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        # pyspark has no public door to the file systems of its own files.
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
        if not self.exists:
            return []
        found = self._files.listStatus(self._path)
        return [_Path(self._spark, entry.getPath().toString()) for entry in found]

    def delete(self) -> None:
        recursive = True
        self._files.delete(self._path, recursive)
