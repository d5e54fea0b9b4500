"""Run on a cluster: ship our code to it, and check that an executor can run it.

Its workers need no settings of ours: the code comes with the job, and the database's
address with the reader of facts (`postgres_reading_and_writing`). docs/operators.md
lists what must be installed there.
"""

from __future__ import annotations

import subprocess
import threading
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext, SparkFiles
from pyspark.sql import SparkSession

from spark import jdbc_reader

PACKAGE = Path(__file__).parent
ARCHIVE = "poisonweb_spark.zip"
# Spark gives up on a master after a minute, but waits for executors forever.
ANSWERS_WITHIN = timedelta(minutes=10)
# On executors only our own reader of Postgres runs in Python.
PYTHON_NEEDS = ("adbc_driver_postgresql", "pyarrow")
GRACE_SECONDS = 5.0
# A fixed date, so that the same code always gives the same archive.
_EPOCH = (1980, 1, 1, 0, 0, 0)


class NoCluster(Exception):
    """The cluster does not accept the job, or cannot run it."""


def join(
    builder: SparkSession.Builder, *, master: str, limit: timedelta = ANSWERS_WITHIN
) -> SparkSession:
    """Start a Spark session; raise `NoCluster` unless an executor runs our code."""
    with _time_limit(limit, master):
        spark = _connect(builder, master)
        _ship(spark)
        _try_executor(spark)
    return spark


def _connect(builder: SparkSession.Builder, master: str) -> SparkSession:
    """Start the Spark session on the master; raises NoCluster if it refuses."""
    try:
        return builder.getOrCreate()
    except Py4JError as error:
        raise NoCluster(
            f"{master} did not accept the job: look whether a master runs there, and "
            "whether $SPARK_CONF_DIR/spark-defaults.conf has its "
            "spark.authenticate.secret"
        ) from error


def archive(target: Path) -> None:
    """Write this package into a zip file that executors can import from."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as zipped:
        for module in sorted(PACKAGE.rglob("*.py")):
            name = module.relative_to(PACKAGE.parent).as_posix()
            zipped.writestr(zipfile.ZipInfo(name, _EPOCH), module.read_bytes())


def _ship(spark: SparkSession) -> None:
    """Send our code to every Spark executor, as a zip file with the job."""
    # Java deletes this folder as it ends, however this process ends.
    path = Path(SparkFiles.getRootDirectory(), ARCHIVE)
    archive(path)
    spark.sparkContext.addPyFile(str(path))


def _try_executor(spark: SparkSession) -> None:
    """Run a tiny job on a Spark executor; raise NoCluster if its Python lacks packages.

    With a JDBC driver it needs none.
    """
    if jdbc_reader.is_configured():
        spark.range(1).count()
        return
    one = spark.sparkContext.parallelize([PYTHON_NEEDS], numSlices=1)
    missing = one.flatMap(_missing).collect()
    if missing:
        raise NoCluster(
            f"{spark.sparkContext.pythonExec} on a worker lacks {', '.join(missing)}: "
            "install spark/requirements.txt there, or set POISONWEB_JDBC_JAR"
        )


def _missing(packages: Iterable[str]) -> list[str]:
    """List the packages that an executor's Python does not have."""
    return [package for package in packages if find_spec(package) is None]


@contextmanager
def _time_limit(limit: timedelta, master: str) -> Iterator[None]:
    """End Java in this block at the limit: nothing else ends a call to Spark."""
    finished, expired = threading.Event(), threading.Event()
    seconds = limit.total_seconds()
    watch = threading.Thread(
        target=_end_java, args=[seconds, finished, expired], daemon=True
    )
    watch.start()
    try:
        yield
    except Exception as error:
        if not expired.is_set():
            raise
        raise NoCluster(
            f"no executor of {master} answered within {seconds:.0f} s: look whether "
            "its workers have a free core and spark.executor.memory to spare, reach "
            "spark.driver.host, and have the same spark.authenticate.secret"
        ) from error
    finally:
        finished.set()
        watch.join()


def _end_java(
    seconds: float, finished: threading.Event, expired: threading.Event
) -> None:
    """End Java at the limit, unless `finished`; set `expired` if it was ended."""
    if finished.wait(seconds):
        return
    expired.set()
    # Java may still be about to start.
    while not finished.wait(0.1):
        gateway = SparkContext._gateway  # noqa: SLF001 - pyspark has no public access
        if gateway is not None:
            _end(gateway.proc)


def _end(java: subprocess.Popen[bytes]) -> None:
    """Ask Spark's Java to end and delete its temporary files, or kill it."""
    java.terminate()
    try:
        java.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
