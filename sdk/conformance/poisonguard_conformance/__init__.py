"""Check that a server keeps to `docs/protocol.md`.

`check_server_command` is `python -m poisonguard_conformance`; the checks themselves are
in `server_report_intake_checks`, `server_skip_checks` and `server_position_checks`.
"""

from __future__ import annotations
