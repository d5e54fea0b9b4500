"""The embedded mode: real servers and all our processes on one machine, by one command.

`python -m poisonweb.embedded` starts it. `discovery` gives other processes the
addresses of its servers; `postgres.temporary` and `redis.temporary` start servers for
tests.
"""

from __future__ import annotations
