"""Parse requests into frozen values, once, before any service is called."""
