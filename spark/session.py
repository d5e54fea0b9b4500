"""Start the Spark session: in UTC, quiet, and alike on this machine and a cluster."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from spark import cluster_code_shipping, java_discovery

LOOPBACK = "127.0.0.1"
LOCAL = "local[2]"
ROOT = Path(__file__).parents[1]
# Python runs the sitecustomize.py of this folder as it starts.
WORKERS = ROOT / "spark/workers"

# JDBC uses Java's time zone. Spark generates one huge method for many sums, which Java
# would not compile by default.
JAVA_OPTIONS = "-Duser.timezone=UTC -XX:-DontCompileHugeMethods"

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # The names of runs are text, even if they look like numbers or dates.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # Every other reader of Parquet understands this type.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Days come in any order: write their files concurrently instead of sorting.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
ON_THIS_MACHINE = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.sql.shuffle.partitions": "4",
    # Hadoop sets file permissions itself: only the owner may read the files in var.
    "spark.hadoop.fs.permissions.umask-mode": "077",
}


def start(
    name: str,
    *,
    cluster_answers_within: timedelta = cluster_code_shipping.ANSWERS_WITHIN,
) -> SparkSession:
    """Start the Spark session that the environment asks for.

    SPARK_MASTER names the master (default: two threads of this machine), JAVA_HOME the
    Java, and POISONWEB_JDBC_JAR a driver that reads Postgres instead of ours. Raises
    `NoJava` without a Java, `NoCluster` if the cluster does not answer in time.
    """
    master = os.environ.get("SPARK_MASTER") or LOCAL
    local = master.startswith("local")
    os.environ.update(_environment(local=local))
    builder = SparkSession.builder.appName(name).master(master)
    for setting, value in _settings(local=local).items():
        builder = builder.config(setting, value)
    if local:
        return builder.getOrCreate()
    return cluster_code_shipping.join(
        builder, master=master, limit=cluster_answers_within
    )


def _environment(*, local: bool) -> dict[str, str]:
    """Return the environment variables of Spark's Java and executors' Python."""
    python_path = os.environ.get("PYTHONPATH")
    path = [str(WORKERS), str(ROOT), *([python_path] if python_path else [])]
    # Executors of a cluster run this Python too: its path there may differ.
    python = None if local else os.environ.get("PYSPARK_PYTHON")
    variables = {
        **java_discovery.find(os.environ),
        "PYSPARK_PYTHON": python or sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Spark's Python workers import our data source, in any working directory.
        "PYTHONPATH": os.pathsep.join(path),
        # Java decodes file names by it: with another, "ü" may not be one letter.
        "LC_ALL": "C.UTF-8",
    }
    return variables | ({"SPARK_LOCAL_IP": LOOPBACK} if local else {})


def _settings(*, local: bool) -> dict[str, str]:
    """Return the settings of reports' Spark session, with any JDBC driver."""
    jar = os.environ.get("POISONWEB_JDBC_JAR")
    return {
        **SETTINGS,
        **(ON_THIS_MACHINE if local else {}),
        **({"spark.jars": jar} if jar else {}),
    }
