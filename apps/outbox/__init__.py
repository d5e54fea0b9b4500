"""Outboxes: tables of messages in producers' databases, and what empties them."""
