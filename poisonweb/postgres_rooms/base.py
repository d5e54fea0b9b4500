"""Django's backend for Postgres, with a pool for each room.

Django imports the class by the name of this module. It gives a session back to the pool
that it came from by itself.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, ClassVar

from django.db.backends.postgresql import base
from psycopg_pool import ConnectionPool

from poisonweb.postgres_rooms import Room, room_of_request


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection of a thread; `OPTIONS["pool"]` has the options of each room."""

    _pools: ClassVar[dict[Room, ConnectionPool[Any]]] = {}
    _mutex = Lock()

    @property
    def pool(self) -> ConnectionPool[Any]:
        """Return the Postgres pool of the present request's room: pages or API."""
        room = room_of_request.get()
        with self._mutex:
            if room not in self._pools:
                self._pools[room] = ConnectionPool(
                    kwargs={**self.get_connection_params(), "autocommit": True},
                    open=False,
                    configure=self._configure_connection,  # type: ignore[attr-defined] # of Django 5.1
                    check=ConnectionPool.check_connection,
                    **self.settings_dict["OPTIONS"]["pool"][room],
                )
            return self._pools[room]
