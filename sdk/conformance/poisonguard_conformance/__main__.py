"""`python -m poisonguard_conformance`."""

from __future__ import annotations

import sys

from poisonguard_conformance.check_server_command import main

if __name__ == "__main__":
    sys.exit(main())
