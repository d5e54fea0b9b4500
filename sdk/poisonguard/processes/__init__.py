"""Facts about processes from the kernel, stacks of threads, SIGTERM and file locks."""

from __future__ import annotations
