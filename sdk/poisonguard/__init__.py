"""What a consumer application and Poisonweb share: the wire and the fingerprint.

`poisonguard.contract` is the wire of the three reports a consumer sends.
`poisonguard.fingerprint` decides which failures are one problem.
Both are plain Python and need nothing installed beside them.
"""

from __future__ import annotations
