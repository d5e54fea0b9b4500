"""SOAP is recognised by its content type and envelope, and nothing is expanded."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from apps.core.errors import Invalid
from apps.redelivery.gateway.soap_envelopes import (
    BEGINNING,
    SoapVersion,
    declared_version,
    fault,
    version_of,
)

V1_1, V1_2 = SoapVersion.V1_1, SoapVersion.V1_2


def envelope(version: SoapVersion) -> bytes:
    return f'<?xml version="1.0"?><e:Envelope xmlns:e="{version.value}"/>'.encode()


@pytest.mark.parametrize(
    ("content_type", "body", "version"),
    [
        (b"text/xml", envelope(V1_1), V1_1),
        (b"Text/XML; charset=utf-8", envelope(V1_2), V1_2),
        (b"application/soap+xml", envelope(V1_1), V1_1),
        (b"application/soap+xml", b"no xml", V1_2),
        (b"application/soap+xml", b"", V1_2),
        (b"text/xml", envelope(V1_1).decode().encode("utf-16"), V1_1),
        (b"text/xml", b"<Envelope/>", None),
        (b"text/xml", b'<?xml version="1.0" encoding="Shift_JIS"?><e/>', None),
        (b"application/soap+xml", b'<?xml version="1.0" encoding="none"?><e/>', V1_2),
        (b"text/xml", b" " * BEGINNING + envelope(V1_1), None),
        (b"application/json", envelope(V1_1), None),
        (b"", envelope(V1_1), None),
    ],
)
def test_the_envelope_tells_the_version_before_the_content_type(
    content_type: bytes, body: bytes, version: SoapVersion | None
) -> None:
    assert version_of([(b"Content-Type", content_type)], body) is version


def test_an_action_tells_version_1_1_before_the_body_is_there() -> None:
    xml = (b"content-type", b"text/xml")

    assert declared_version([xml, (b"SOAPAction", b'""')]) is V1_1
    assert declared_version([xml]) is None
    assert declared_version([(b"Content-Type", b"application/soap+xml")]) is V1_2


@pytest.mark.parametrize(
    "doctype",
    [
        b"<!DOCTYPE e>",
        b'<!DOCTYPE e SYSTEM "http://127.0.0.1:1/e.dtd">',
        b'<!DOCTYPE e [<!ENTITY a "b"><!ATTLIST e x CDATA "&a;">]>',
    ],
)
def test_a_doctype_is_refused_in_soap_and_none_of_our_business_elsewhere(
    doctype: bytes,
) -> None:
    body = doctype + b"<e/>"

    with pytest.raises(Invalid, match="has no doctype"):
        version_of([(b"Content-Type", b"application/soap+xml")], body)
    assert version_of([(b"Content-Type", b"text/xml")], body) is None


@pytest.mark.parametrize("version", SoapVersion)
def test_a_fault_is_xml_whatever_its_texts_are(version: SoapVersion) -> None:
    text = "<&>\x00\x1b\ufffe\ud800 ü"

    written = fault(
        version,
        is_of_caller=False,
        reason=text,
        detail={"delivery": text, "kept": True, "plan": {"next_due": None}},
    )

    parsed = ET.fromstring(written)
    assert parsed.tag == f"{{{version.value}}}Envelope"
    texts = [element.text for element in parsed.iter()]
    assert texts.count("<&>???? ü") == 2
    assert "true" in texts
