"""Pills that show states by a label, a glyph and a colour."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString

# Each state has a label, a glyph and a colour, so that one of them is enough.
PILLS = {
    "new": ("New", "●", "info"),
    "ongoing": ("Ongoing", "◐", "warn"),
    "quiet": ("Quiet", "○", ""),
    "open": ("Open", "●", "warn"),
    "sent": ("Sent", "→", "info"),
    "handled": ("Handled", "✓", "ok"),
    "dropped": ("Dropped", "✕", ""),
    "preview": ("Preview", "○", ""),
    "queued": ("Queued", "○", "info"),
    "running": ("Running", "→", "info"),
    "done": ("Done", "✓", "ok"),
    "cancelling": ("Cancelling", "✕", "warn"),
    "cancelled": ("Cancelled", "✕", ""),
}
PILLS |= {
    # Of positions and lanes.
    "current": ("Caught up", "✓", "ok"),
    "unread": ("No consumer", "○", ""),
    "behind": ("Behind", "◐", "warn"),
    "off": ("Off", "○", ""),
    "away": ("Broker away", "!", "danger"),
    "missing": ("Queue missing", "!", "danger"),
    # Same label, but no trouble: the first dead letter creates the queue.
    "expected": ("Queue missing", "○", ""),
    "silent": ("Silent", "◌", "warn"),
    # Of the components of the system, and of the nightly report.
    "up": ("Up", "✓", "ok"),
    "partly up": ("Not all up", "◐", "warn"),
    "stopped": ("Stopped", "!", "danger"),
    "short": ("Running short", "◐", "danger"),
    "mended": ("Mended", "◐", "warn"),
    "resting": ("All paused", "‖", ""),
    "late": ("Late", "◐", "warn"),
    "failed": ("Failed", "!", "danger"),
    "never": ("Not yet", "○", ""),
    "none": ("None", "○", ""),
    # Of redrives and items.
    "waiting": ("Waiting", "○", ""),
    "untouched": ("Untouched", "○", ""),
    "sending": ("Sending", "→", "info"),
    "unknown": ("Unknown", "?", "warn"),
    "moved": ("Moved", "⇥", "info"),
    "confirmed": ("Handled", "✓", "ok"),
    "recurred": ("Came back", "↺", "danger"),
    "refused": ("Refused", "!", "danger"),
    "partly refused": ("Partly refused", "◐", "warn"),
    "skipped": ("Skipped", "—", ""),
    "restored": ("Restored", "●", "warn"),
    "given back": ("Given back", "↩", ""),
    "captured again": ("Captured again", "●", "warn"),
    # Of operations that are over.
    "all came back": ("Done", "↺", "danger"),
    "some came back": ("Done", "↺", "warn"),
    "all skipped": ("Done, all skipped", "—", ""),
}
PILLS |= {
    # Of guards.
    "paused": ("Paused", "‖", "danger"),
    "holding": ("Holding", "◐", "warn"),
    "stopping": ("Stopping", "○", ""),
    # Of skips.
    "active": ("Active", "●", "info"),
    "removed": ("Removed", "✕", ""),
    "expired": ("Expired", "○", ""),
    "passed": ("Passed", "✓", "ok"),
    "suspected": ("Suspected", "?", "warn"),
    "handled": ("Handled", "✓", "ok"),
    "doubted": ("Doubted", "?", ""),
    # Of endpoints and their breakers.
    "enabled": ("Enabled", "✓", "ok"),
    "breaker open": ("Breaker open", "!", "danger"),
    # Of deliveries and their attempts.
    "trying": ("Being tried", "→", "info"),
    "forwarding": ("Being forwarded", "⇥", "info"),
    "delivered": ("Delivered", "✓", "ok"),
    "given_up": ("Given up", "!", "danger"),
    "due": ("Due now", "→", "info"),
    "forwarded": ("Forwarded", "⇥", ""),
    "succeeded": ("Succeeded", "✓", "ok"),
    # Of outboxes and their rows.
    "sweeping": ("Sweeping", "→", "ok"),
    "slowed": ("Slowed", "◐", "warn"),
    "broken": ("Failing", "!", "danger"),
    "unreachable": ("Database away", "!", "danger"),
    "duplicate": ("Duplicate", "=", ""),
    "quarantined": ("Quarantined", "!", "danger"),
    # Of people and keys.
    "usable": ("Usable", "✓", "ok"),
    "revoked": ("Revoked", "✕", ""),
    "disabled": ("Disabled", "✕", ""),
}


def pill(state: str, also: str = "") -> SafeString:
    """Render a state as a coloured pill with its label and, if passed, words after.

    An unknown state shows its own name.
    """
    label, glyph, colour = PILLS.get(state, (state.capitalize(), "·", ""))
    return format_html(
        '<span class="pill {}"><span aria-hidden="true">{}</span>{}</span>',
        colour,
        glyph,
        f"{label}, {also}" if also else label,
    )
