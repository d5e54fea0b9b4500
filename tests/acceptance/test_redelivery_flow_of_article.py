"""The flow chart of the article on redelivery, box by box, with real processes.

The service is in a process of its own that is killed and started again; the client
calls it through the gateway; the sender tries again what failed.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest

from apps.poison.models import Poison
from apps.redelivery.endpoint_and_delivery_choices import AtEnd
from apps.redelivery.models import CallCount, Delivery
from apps.team.rights import Scope
from poisonweb.embedded.free_ports import LOOPBACK, free_port
from tests.acceptance.gateway_process import gateway_process
from tests.acceptance.web_server_process import api_key
from tests.delivery_back_end import BackEnd, back_end_in
from tests.integration.redelivery.endpoint_and_delivery_builders import endpoint
from tests.sender_processes import senders
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

SOAP_11 = "http://schemas.xmlsoap.org/soap/envelope/"
SOAP_12 = "http://www.w3.org/2003/05/soap-envelope"
QUOTE = (
    '<s:Envelope xmlns:s="{}"><s:Body><getQuote xmlns="http://services.samples">'
    "<symbol>IBM</symbol></getQuote></s:Body></s:Envelope>"
)


class Article(NamedTuple):
    """The service, and where and with which key the gateway is called."""

    service: BackEnd
    port: int
    key: str

    def call(
        self, path: str, *, method: str = "POST", body: str = "", **headers: str
    ) -> tuple[int, bytes]:
        """Call the gateway; return the status and the body of its answer."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=120)
        try:
            headers = {name.replace("_", "-"): each for name, each in headers.items()}
            headers |= {"X-Poisonweb-Key": self.key}
            connection.request(method, f"/gateway/{path}", body.encode(), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def delivery(self, id_: str) -> dict[str, Any]:
        """Ask the gateway what became of a delivery."""
        status, body = self.call(f"-/deliveries/{id_}", method="GET")
        assert status == 200
        answer: dict[str, Any] = json.loads(body)
        return answer


@pytest.fixture
def article(tmp_path: Path) -> Iterator[Article]:
    port, key = free_port(), api_key(Scope.GATEWAY_CALL)
    with ExitStack() as stack:
        service = stack.enter_context(back_end_in(tmp_path / "service"))
        stack.enter_context(gateway_process(port, key))
        stack.enter_context(senders(tmp_path, number=1))
        yield Article(service=service, port=port, key=key)


def fault(version: str, body: bytes) -> tuple[str, str]:
    """Return the code of a SOAP fault of this version, and the delivery it names."""
    tree = ET.fromstring(body)
    assert tree.tag == f"{{{version}}}Envelope"
    path = "faultcode" if version == SOAP_11 else f"{{{version}}}Value"
    [code] = tree.iter(path)
    [delivery] = (node for node in tree.iter() if node.tag.endswith("}delivery"))
    return str(code.text).partition(":")[2], str(delivery.text)


def test_a_client_sees_a_fault_and_later_its_success(article: Article) -> None:
    endpoint(target=article.service.url, retries=10, interval=3.0)
    request = {"body": QUOTE.format(SOAP_11), "Content_Type": "text/xml"}

    # 1. The service is there: its answer, and no delivery but a count.
    assert article.call("stock-quote/ok", **request) == (200, b"answer 200")
    wait_until(lambda: CallCount.objects.filter(succeeded_at_first=1).exists())
    assert not Delivery.objects.exists()

    # 2. It is not: a fault, and in the same failure the request is stored once.
    article.service.kill()
    status, body = article.call(
        "stock-quote/ok", Idempotency_Key="quote-of-IBM", **request
    )
    code, id_ = fault(SOAP_11, body)
    assert (status, code) == (500, "Server")
    [delivery] = Delivery.objects.all()
    assert (str(delivery.pk), bytes(delivery.path)) == (id_, b"/ok")
    assert bytes(delivery.body.content).decode() == QUOTE.format(SOAP_11)
    assert article.delivery(id_)["retry_count"] >= 1

    # 3. It is back: the sender delivers, and the client learns of it.
    article.service.start()
    wait_until(lambda: article.delivery(id_)["state"] == "delivered")
    arrived = [each for each in article.service.requests() if each["delivery"] == id_]
    assert [(each["key"], each["body"]) for each in arrived] == [
        ("quote-of-IBM", QUOTE.format(SOAP_11))
    ]
    assert not Poison.objects.exists()


def test_after_n_retries_a_message_is_kept_or_dropped(article: Article) -> None:
    plan: dict[str, Any] = {"target": article.service.url, "interval": 1.0}
    endpoint("kept", retries=2, at_end=AtEnd.TRIAGE.value, **plan)
    endpoint("dropped", retries=1, at_end=AtEnd.DROP.value, **plan)
    body, kind = QUOTE.format(SOAP_12), "application/soap+xml"

    ids = []
    for name in ("kept", "dropped"):
        status, answer = article.call(
            f"{name}/status/503", body=body, Content_Type=kind, Idempotency_Key=name
        )
        code, id_ = fault(SOAP_12, answer)
        assert (status, code) == (500, "Receiver")
        ids.append(id_)

    first, second = ids
    wait_until(lambda: article.delivery(first)["state"] == "given_up")
    wait_until(lambda: article.delivery(second)["state"] == "dropped")
    # N retries after the first try: retry_count > N ends it.
    assert article.service.requests_by_delivery() == {first: 3, second: 2}
    assert [article.delivery(id_)["retry_count"] for id_ in ids] == [3, 2]
    assert Poison.objects.get().pk == Delivery.objects.get(pk=first).poison
    assert bytes(Delivery.objects.get(pk=second).body.content).decode() == body
