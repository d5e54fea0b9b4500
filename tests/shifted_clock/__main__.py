from __future__ import annotations

import sys

from tests import shifted_clock

shifted_clock.main(sys.argv[1:])
