"""Find the application's own frames in a traceback."""

from __future__ import annotations

import pytest

from apps.dashboard.presentation.traceback_app_frames import app_frames

TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/consumer.py", line 10, in run
    handle(message)
  File "/srv/venv/lib/python3.11/site-packages/pydantic/main.py", line 5, in parse
    raise ValueError
  File "/srv/app/orders.py", line 41, in total
    return order["customer_id"]
           ~~~~~^^^^^^^^^^^^^^^
KeyError: 'customer_id'
"""


def test_lists_the_applications_frames_innermost_first() -> None:
    frames = app_frames(TRACEBACK)

    assert [(f.file, f.line, f.function, f.source) for f in frames] == [
        ("/srv/app/orders.py", 41, "total", 'return order["customer_id"]'),
        ("/srv/app/consumer.py", 10, "run", "handle(message)"),
    ]


@pytest.mark.parametrize("text", ["", "\n", "no traceback at all", '  File "x", line'])
def test_finds_no_frames_where_there_are_none(text: str) -> None:
    assert app_frames(text) == []


def test_a_frame_may_come_without_its_source() -> None:
    frames = app_frames('  File "a.py", line 1, in f\n  File "b.py", line 2')

    assert [(f.function, f.source) for f in frames] == [("<module>", ""), ("f", "")]


def test_a_line_number_that_no_file_has_makes_no_frame() -> None:
    digits = "9" * 5_000

    assert app_frames(f'File "a.py", line {digits}, in f\n  boom()') == []
