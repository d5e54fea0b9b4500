#!/usr/bin/env python
"""Django's command line, with the settings of Poisonweb."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "poisonweb.settings")
    # The SDK is a package of its own; its contract is read from the tree.
    sys.path.insert(0, str(Path(__file__).resolve().parent / "sdk"))
    execute_from_command_line(sys.argv)
