"""The wait before the next try grows, within its bounds."""

from __future__ import annotations

import pytest

from apps.core import back_off


@pytest.mark.parametrize(
    ("troubles", "highest"), [(0, 1.0), (1, 1.5), (3, 4.5), (10, 15.5), (10**9, 15.5)]
)
def test_a_delay_is_at_least_the_base_and_grows_to_the_cap(
    troubles: int, highest: float
) -> None:
    delays = [back_off.delay(troubles, base=0.5, cap=15.0) for _ in range(200)]

    assert min(delays) >= 0.5
    assert highest / 2 < max(delays) <= highest
