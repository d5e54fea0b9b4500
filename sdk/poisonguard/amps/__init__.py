"""Poisonweb for the AMPS Python client: positions, and a shared skip list.

    client = AMPS.HAClient("billing-1")
    store = BookmarkStore(url, api_key, client_name="billing-1")
    client.set_bookmark_store(store)
    client.set_server_chooser(chooser)
    client.connect_and_logon()
    guarded = MisterYuck(client, handler)
    client.bookmark_subscribe(guarded, "orders", "recent", sub_id="eu")

`MisterYuck` shares its list through a topic of AMPS. A `poisonguard.Guard` shares it
through Poisonweb, retries first, and detects messages that kill the process.
"""

from __future__ import annotations

from poisonguard.amps.bookmark_store import BookmarkStore
from poisonguard.amps.mister_yuck import MisterYuck
from poisonguard.bookmarks import Start

__all__ = ["BookmarkStore", "MisterYuck", "Start"]
