from __future__ import annotations

import sys

from tests import clock

clock.main(sys.argv[1:])
