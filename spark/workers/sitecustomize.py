"""What Python does first in each of Spark's Python workers, before any import.

Spark puts zips of PySpark before the installed package, and Python keeps no bytecode of
what it finds in a zip: each worker, and a night starts some ten, would compile it anew.
"""

from __future__ import annotations

import sys

sys.path.sort(key=lambda place: place.endswith(".zip"))
