"""The session: what its Python workers are made of."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_its_workers_import_pyspark_as_installed_and_not_out_of_a_zip(
    spark: SparkSession,
) -> None:
    one = spark.sparkContext.parallelize([1], numSlices=1)

    imported = one.map(lambda _: pyspark.__file__)

    assert imported.collect() == [pyspark.__file__]
