"""Each state of a delivery has an answer to its caller."""

from __future__ import annotations

import uuid
from http import HTTPStatus

import pytest

from apps.core import clock
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.endpoint_settings_dataclass import FAILURE_STATUSES, is_failure
from apps.redelivery.gateway.delivery_answers import stored_failure
from apps.redelivery.models import Delivery, Endpoint


@pytest.mark.parametrize("state", [DeliveryState.TRYING, DeliveryState.DELIVERED])
def test_a_request_that_a_sender_took_meanwhile_has_an_answer(
    state: DeliveryState,
) -> None:
    delivery = Delivery(pk=uuid.uuid4(), state=state, due_at=clock.now())

    refusal = stored_failure(
        delivery, Endpoint(), detail="It failed.", status=HTTPStatus.BAD_GATEWAY
    )

    assert refusal.detail.startswith("It failed. The request is stored")
    assert refusal.members["state"] == state


@pytest.mark.parametrize(("status", "expected"), [(404, False), (599, True)])
def test_settings_tell_which_statuses_are_failures(status: int, expected: bool) -> None:
    assert is_failure(status, FAILURE_STATUSES) is expected


@pytest.mark.parametrize("status", [600, 999])
def test_a_status_that_http_does_not_have_is_a_failure(status: int) -> None:
    assert is_failure(status, "")
