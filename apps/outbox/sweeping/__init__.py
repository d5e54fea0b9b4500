"""`manage.py sweeper`: empty every outbox, each by one owner."""
