"""Read a password for a command: ask at a terminal, otherwise read standard input."""

from __future__ import annotations

import getpass
import os


def ask_for_password() -> str:
    """Ask for a password in a terminal, or else read it from standard input."""
    if os.isatty(0):
        return getpass.getpass("Password: ")
    return input()
