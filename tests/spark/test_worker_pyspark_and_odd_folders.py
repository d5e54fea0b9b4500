"""The session, and the environment of its Python workers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.acceptance.product_process import ODD_NAME, PYTHON, clone, environment

pytestmark = pytest.mark.spark


def test_workers_import_the_installed_pyspark_and_not_the_zip(
    spark: SparkSession,
) -> None:
    one = spark.sparkContext.parallelize([1], numSlices=1)

    imported = one.map(lambda _: pyspark.__file__)

    assert imported.collect() == [pyspark.__file__]


WRITE_TWO_ROWS = """
from pathlib import Path
from spark import session
with session.start("odd") as spark:
    spark.range(2).write.parquet("var/rows")
    print(spark.read.parquet("var/rows").count(), Path("var/rows/_SUCCESS").exists())
"""


def test_works_in_a_folder_with_odd_letters_in_any_locale(tmp_path: Path) -> None:
    tree = clone(tmp_path / ODD_NAME)

    done = subprocess.run(
        (PYTHON, "-c", WRITE_TWO_ROWS),
        cwd=tree,
        env=environment(LC_ALL="C"),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[-1] == "2 True"
