"""Charts that fit into a line of text or a cell of a table."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.core.statement_timeouts import TooSlow
from apps.dashboard.presentation.counts_as_text import took_too_long


def sparkline(
    values: Sequence[int] | TooSlow,
    summary: str,
    *,
    wide: bool = False,
    top: int | None = None,
) -> SafeString:
    """Draw a bar per value, scaled to `top` (by default the highest value).

    Rows that are compared share one `top`; a small value is still visible. A single bar
    is drawn without an axis.
    """
    if isinstance(values, TooSlow):
        return took_too_long()
    top = max(values, default=0) if top is None else top
    heights = [max(round(value / (top or 1) * 19, 1), 1) for value in values]
    step = 84 / max(len(values), 1)
    size = f'width="{step * 0.75:.1f}" height'
    # By hand, all of it: a list has a thousand bars, and a template takes longer.
    bars = [
        f'<rect x="{at * step:.1f}" y="{20 - height:.1f}" {size}="{height:.1f}"/>'
        for at, (value, height) in enumerate(zip(values, heights, strict=True))
        if value
    ]
    has_axis = wide or len(bars) != 1
    return format_html(
        '<svg class="spark{}" viewBox="0 0 84 20"{} role="img" aria-label="{}">{}{}'
        "</svg>",
        " wide" if wide else "",
        SafeString(' preserveAspectRatio="none"' if wide else ""),
        summary,
        SafeString('<line x1="0" x2="84" y1="19.5" y2="19.5"/>' if has_axis else ""),
        SafeString("".join(bars)),
    )


def share(part: int, whole: int) -> SafeString:
    """Draw a part of a whole as a bar of an SVG picture."""
    return format_html(
        '<svg class="share" viewBox="0 0 100 6" preserveAspectRatio="none"'
        ' aria-hidden="true"><rect width="100" height="6" rx="1"/>'
        '<rect class="part" width="{}" height="6" rx="1"/></svg>',
        round(100 * part / whole, 1) if whole else 0,
    )
