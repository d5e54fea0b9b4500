"""Beyond one machine: give a cluster our code, and see that an executor can run it.

Nothing has to be set on its workers: the code comes with the job, and the database's
address with the reader of facts (`postgres`). What they need to have is in
docs/operators.md.
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

from spark import jdbc

PACKAGE = Path(__file__).parent
ARCHIVE = "poisonweb_spark.zip"
# Spark itself gives up on a master after a minute, but waits for executors for ever.
ANSWERS_WITHIN = timedelta(minutes=10)
# Only our own reader of Postgres runs in Python there.
PYTHON_NEEDS = ("adbc_driver_postgresql", "pyarrow")
GRACE_SECONDS = 5.0
# What ZIP calls 1980-01-01: the same code is the same archive, whenever it was built.
_EPOCH = (1980, 1, 1, 0, 0, 0)


class NoCluster(Exception):
    """The cluster does not take the job, or cannot run it."""


def join(
    builder: SparkSession.Builder, *, master: str, limit: timedelta = ANSWERS_WITHIN
) -> SparkSession:
    """Start the session; raise `NoCluster` unless an executor runs our code in time."""
    with _time_limit(limit, master):
        spark = _accepted(builder, master)
        _ship(spark)
        _try_executor(spark)
    return spark


def _accepted(builder: SparkSession.Builder, master: str) -> SparkSession:
    try:
        return builder.getOrCreate()
    except Py4JError as error:
        raise NoCluster(
            f"{master} did not accept the job: look whether a master runs there, and "
            "whether $SPARK_CONF_DIR/spark-defaults.conf has its "
            "spark.authenticate.secret"
        ) from error


def archive(target: Path) -> None:
    """Write this package into a zip from which Python can import it."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as zipped:
        for module in sorted(PACKAGE.rglob("*.py")):
            name = module.relative_to(PACKAGE.parent).as_posix()
            zipped.writestr(zipfile.ZipInfo(name, _EPOCH), module.read_bytes())


def _ship(spark: SparkSession) -> None:
    """Have every executor import our code from a zip that goes along with the job."""
    # Java deletes this folder as it ends, whatever ends us.
    place = Path(SparkFiles.getRootDirectory(), ARCHIVE)
    archive(place)
    spark.sparkContext.addPyFile(str(place))


def _try_executor(spark: SparkSession) -> None:
    """Run something small where the facts will be read, in the way they will be."""
    if jdbc.is_configured():
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
    return [package for package in packages if find_spec(package) is None]


@contextmanager
def _time_limit(limit: timedelta, master: str) -> Iterator[None]:
    """End Java when the limit is over: that alone ends a call that waits for it."""
    over, expired = threading.Event(), threading.Event()
    seconds = limit.total_seconds()
    watch = threading.Thread(
        target=_end_java, args=[seconds, over, expired], daemon=True
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
        over.set()
        watch.join()


def _end_java(seconds: float, over: threading.Event, expired: threading.Event) -> None:
    if over.wait(seconds):
        return
    expired.set()
    # Java may still be about to start.
    while not over.wait(0.1):
        gateway = SparkContext._gateway  # noqa: SLF001 - pyspark has no public door
        if gateway is not None:
            _end(gateway.proc)


def _end(java: subprocess.Popen[bytes]) -> None:
    """Let Java delete its temporary files, and make sure that it ends."""
    java.terminate()
    try:
        java.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
