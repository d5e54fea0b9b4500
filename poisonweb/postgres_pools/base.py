"""Django's backend for Postgres, with a pool for pages and one for all else.

Django imports the class by the name of this module. It gives a session back to the pool
that it came from by itself.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, ClassVar

from django.db.backends.postgresql import base
from psycopg_pool import ConnectionPool

from poisonweb.postgres_pools import SessionPool, pool_of_request


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection of a thread; `OPTIONS["pool"]` has the options of each pool."""

    _pools: ClassVar[dict[SessionPool, ConnectionPool[Any]]] = {}
    _mutex = Lock()

    @property
    def pool(self) -> ConnectionPool[Any]:
        """Return the Postgres pool of the present request: of pages or of the API."""
        name = pool_of_request.get()
        with self._mutex:
            if name not in self._pools:
                self._pools[name] = ConnectionPool(
                    kwargs={**self.get_connection_params(), "autocommit": True},
                    open=False,
                    configure=self._configure_connection,  # type: ignore[attr-defined] # of Django 5.1
                    check=ConnectionPool.check_connection,
                    **self.settings_dict["OPTIONS"]["pool"][name],
                )
            return self._pools[name]
