"""`manage.py sender`: deliver what is due, for every endpoint by one owner."""
