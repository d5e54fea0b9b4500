"""Read a password for a command: ask at a terminal, otherwise read standard input."""

from __future__ import annotations

import getpass
import os


def ask_for_password() -> str:
    if os.isatty(0):
        return getpass.getpass("Password: ")
    return input()
