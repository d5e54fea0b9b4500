"""Recognise SOAP by its content type and envelope, and write faults.

Only the beginning of a body is parsed, up to the envelope's tag. A doctype ends the
parsing before any of its declarations is read, so entities are never expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any
from xml.etree import ElementTree as ET
from xml.parsers import expat

from apps.brokers.adapter_contract import Header
from apps.core.errors import Invalid

# Where the envelope begins at the latest.
BEGINNING = 64 * 1024
_OURS = "urn:poisonweb:gateway"
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class SoapVersion(Enum):
    """The value is the namespace of its envelope."""

    V1_1 = "http://schemas.xmlsoap.org/soap/envelope/"
    V1_2 = "http://www.w3.org/2003/05/soap-envelope"

    @property
    def prefix(self) -> str:
        """Return this SOAP version's XML prefix in faults, also of their codes."""
        return "soap" if self is SoapVersion.V1_1 else "env"

    @property
    def content_type(self) -> str:
        """Return the content type of a fault in this SOAP version."""
        is_old = self is SoapVersion.V1_1
        return f"{'text/xml' if is_old else 'application/soap+xml'}; charset=utf-8"


_VERSIONS_BY_ROOT = {f"{version.value} Envelope": version for version in SoapVersion}
for _version in SoapVersion:
    ET.register_namespace(_version.prefix, _version.value)
ET.register_namespace("poisonweb", _OURS)


class _Doctype(Exception):
    """The document has a doctype."""


class _Root(Exception):
    """The first tag; its only argument is namespace and name."""


def declared_version(headers: Iterable[Header]) -> SoapVersion | None:
    """Return the SOAP version that the headers alone tell; None where they do not."""
    return _declared(*_type_and_action(headers))


def version_of(headers: Iterable[Header], body: bytes) -> SoapVersion | None:
    """Return the SOAP version of an HTTP request; None for one that is no SOAP.

    Raises Invalid for a doctype, which no version allows, where the headers declare
    SOAP. Other XML may have one: its root is not looked for behind it.
    """
    media_type, action = _type_and_action(headers)
    declared = _declared(media_type, action)
    if declared is None and media_type not in {b"text/xml", b"application/xml"}:
        return None
    try:
        root = _root_of(body)
    except _Doctype:
        if declared is None:
            return None
        raise Invalid("", "A SOAP envelope has no doctype: remove it.") from None
    return _VERSIONS_BY_ROOT.get(root, declared)


def fault(
    version: SoapVersion,
    *,
    is_of_caller: bool,
    reason: str,
    detail: Mapping[str, Any],
) -> bytes:
    """Write a SOAP fault; `detail` becomes elements of our namespace."""
    envelope = ET.Element(_name(version, "Envelope"))
    body = ET.SubElement(envelope, _name(version, "Body"))
    top = ET.SubElement(body, _name(version, "Fault"))
    reason = _NO_XML.sub("?", reason)
    if version is SoapVersion.V1_1:
        code = "Client" if is_of_caller else "Server"
        ET.SubElement(top, "faultcode").text = f"{version.prefix}:{code}"
        ET.SubElement(top, "faultstring").text = reason
        inside = ET.SubElement(top, "detail") if detail else None
    else:
        code = "Sender" if is_of_caller else "Receiver"
        outer = ET.SubElement(top, _name(version, "Code"))
        value = ET.SubElement(outer, _name(version, "Value"))
        value.text = f"{version.prefix}:{code}"
        reasons = ET.SubElement(top, _name(version, "Reason"))
        text = ET.SubElement(reasons, _name(version, "Text"))
        text.set("{http://www.w3.org/XML/1998/namespace}lang", "en")
        text.text = reason
        inside = ET.SubElement(top, _name(version, "Detail")) if detail else None
    if inside is not None:
        _add_members(inside, detail)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(envelope)


def _add_members(parent: ET.Element, members: Mapping[str, Any]) -> None:
    """Add members to an element of the gateway's SOAP fault.

    A member of members becomes nested elements.
    """
    for name, value in members.items():
        element = ET.SubElement(parent, f"{{{_OURS}}}{name}")
        if isinstance(value, Mapping):
            _add_members(element, value)
        elif isinstance(value, bool):
            element.text = str(value).lower()
        elif value is not None:
            element.text = _NO_XML.sub("?", str(value))


def _name(version: SoapVersion, name: str) -> str:
    return f"{{{version.value}}}{name}"


def _type_and_action(headers: Iterable[Header]) -> tuple[bytes, bytes | None]:
    """Return the media type of a request, and its SOAPAction; None without one."""
    values = {name.lower(): value for name, value in headers}
    value = values.get(b"content-type", b"")
    return value.partition(b";")[0].strip().lower(), values.get(b"soapaction")


def _declared(media_type: bytes, action: bytes | None) -> SoapVersion | None:
    if media_type == b"application/soap+xml":
        return SoapVersion.V1_2
    is_xml = media_type == b"text/xml"
    return SoapVersion.V1_1 if is_xml and action is not None else None


def _root_of(body: bytes) -> str:
    """Return namespace and name of an XML's first tag; "" if none begins in time."""
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler = _end_at_root
    try:
        parser.Parse(body[:BEGINNING])
    except _Root as root:
        return str(root)
    except (expat.ExpatError, ValueError, LookupError):
        # The latter two are for encodings that expat cannot or Python does not read.
        return ""
    return ""


def _refuse_doctype(*_: object) -> None:
    raise _Doctype


def _end_at_root(name: str, _: Any) -> None:
    raise _Root(name)
