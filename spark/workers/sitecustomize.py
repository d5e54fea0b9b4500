"""Put zip files last on the import path of Spark's Python workers.

Spark puts zips of PySpark before the installed package, and Python caches no bytecode
for zips: each worker would compile PySpark again, and a night starts about ten.
"""

from __future__ import annotations

import sys

sys.path.sort(key=lambda place: place.endswith(".zip"))
