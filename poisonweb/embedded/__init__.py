"""The embedded mode: real servers and all our processes on one machine, by one command.

`python -m poisonweb.embedded` starts it. `discovery` tells other processes where its
servers are; `postgres.temporary` and `redis.temporary` give tests servers of their own.
"""

from __future__ import annotations
