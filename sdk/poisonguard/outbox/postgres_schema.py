"""The SQL that creates the tables of an outbox."""

from __future__ import annotations

from importlib import resources

PACKAGES = (__package__, "poisonguard.locks")


def schema() -> str:
    """Return the SQL of the outbox, and of the lock that its sweepers share.

    Each statement does nothing where its object exists.
    """
    files = (resources.files(name).joinpath("postgres.sql") for name in PACKAGES)
    return "\n".join(file.read_text() for file in files)
