"""Linux file locks; importing this elsewhere raises an error that says so."""

from __future__ import annotations

import sys

__all__ = ["fcntl"]

if sys.platform != "linux":
    raise ImportError(
        f"poisonguard guards consumers on Linux only, and this is {sys.platform}: its"
        " journal and its spool need /proc, and files and locks of Linux. Run the"
        " consumer in a container, say; poisonguard.contract works everywhere."
    )

import fcntl
