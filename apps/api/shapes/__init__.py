"""What leaves: rows as plain dicts. `schemas` describes them; the tests compare."""
