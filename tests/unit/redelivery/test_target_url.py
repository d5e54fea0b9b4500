"""The address of an endpoint, and that no path leaves it."""

from __future__ import annotations

import pytest

from apps.core.errors import Invalid
from apps.redelivery.outbound.target_url import LONGEST_PATH, EndpointTarget

BELOW = "https://stock.example.com/quotes"


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "base"),
    [
        ("http://a.example", "a.example", 80, "a.example", ""),
        ("HTTPS://A.Example/v1/", "a.example", 443, "a.example", "/v1/"),
        ("https://a_b-c:8443/x", "a_b-c", 8443, "a_b-c:8443", "/x"),
        ("http://a.example:80", "a.example", 80, "a.example:80", ""),
        ("http://192.0.2.1/", "192.0.2.1", 80, "192.0.2.1", "/"),
        ("http://[2001:DB8:0::1]:81", "2001:db8::1", 81, "[2001:db8::1]:81", ""),
        ("https://xn--bcher-kva.example", "xn--bcher-kva.example", 443, None, ""),
        ("http://4t2.example/%7Ea;b=c", "4t2.example", 80, None, "/%7Ea;b=c"),
    ],
)
def test_a_target_is_read_whole(
    url: str, host: str, port: int, authority: str | None, base: str
) -> None:
    target = EndpointTarget.parse(url)

    assert (target.host, target.port, target.base_path) == (host, port, base)
    assert target.authority == (authority or host)
    assert EndpointTarget.parse(str(target)) == target


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("", "use an address such as"),
        ("stock.example.com", "use an address such as"),
        ("//stock.example.com", "use an address such as"),
        ("http:///x", "use an address such as"),
        ("http:stock.example.com", "use an address such as"),
        ("ftp://stock.example.com", "use an address such as"),
        ("file:///etc/passwd", "use an address such as"),
        ("gopher://a.example:70/_x", "use an address such as"),
        ("unix:///run/docker.sock", "use an address such as"),
        ("http://a.example:x", "use an address such as"),
        ("http://a.example:65536", "use a port from 1 to 65535"),
        ("http://localhost:99999", "use a port from 1 to 65535"),
        ("http://[::1", "use an address such as"),
        ("http://a.example:0", "use a port from 1"),
        ("http://a.example:", "use a port from 1"),
        ("http://user@a.example", "leave out user"),
        ("http://a.example@b.example", "leave out user"),
        ("http://:p@a.example", "leave out user"),
        ("http://a.example/?q", "leave out the query"),
        ("http://a.example?", "leave out the query"),
        ("http://a.example/#f", "leave out the query"),
        ("http://a.example#@b.example", "leave out"),
        ("http://bücher.example", "as xn--"),
        ("http://a.example/ü", "as xn--"),
        ("http://a。example", "as xn--"),
        ("http://a.example /", "remove blanks"),
        ("http://a.exa\tmple", "remove blanks"),
        ("http://a.example\n", "remove blanks"),
        ("http://a.example\\@b.example", "remove blanks"),
        ("http://a.example.", "without a dot at its end"),
        ("http://a..example", "use a host name"),
        ("http://-a.example", "use a host name"),
        ("http://a.example%2f.b", "use a host name"),
        ("http://a,b.example", "use a host name"),
        ("http://" + "a" * 64 + ".example", "use a host name"),
        ("http://" + "a." * 127 + "example", "use a host name"),
        ("http://127.1", "four decimal numbers"),
        ("http://2130706433", "four decimal numbers"),
        ("http://0x7f.0.0.1", "four decimal numbers"),
        ("http://a.0x1", "four decimal numbers"),
        ("http://0177.0.0.1", "four decimal numbers"),
        ("http://127.0.0.1.1", "four decimal numbers"),
        ("http://256.0.0.1", "four decimal numbers"),
        ("http://[fe80::1%25eth0]", "without a zone"),
        ("http://[fe80::1%eth0]", "without a zone"),
        ("http://[127.0.0.1]", "use an address|without a zone"),
        ("http://a.example/../x", r"remove \. and \.\."),
        ("http://a.example/" + "a" * 2000, "at most 2000"),
    ],
)
def test_what_is_no_target_is_refused_with_the_remedy(url: str, remedy: str) -> None:
    with pytest.raises(Invalid, match=remedy) as refusal:
        EndpointTarget.parse(url, field="target")

    assert refusal.value.field == "target"


@pytest.mark.parametrize(
    ("base", "path", "query", "joined"),
    [
        ("", b"", b"", b"/"),
        ("/", b"", b"", b"/"),
        ("/v1", b"", b"a=b", b"/v1?a=b"),
        ("/v1/", b"", b"", b"/v1/"),
        ("/v1/", b"/", b"", b"/v1/"),
        ("/v1", b"/", b"", b"/v1/"),
        ("/v1", b"a", b"", b"/v1/a"),
        ("/v1/", b"/a/b/", b"", b"/v1/a/b/"),
        ("", b"/%7Ea/%c3%A4;v=1//b", b"q=%2e%2E/../?&", None),
        ("", b"/group%2Fproject%20x/.well-known/a..b/...c", b"", None),
        ("", b"/100%25/a:b@c!$&'()*+,=[]|^`{}\"<>~", b"", None),
    ],
)
def test_a_path_is_joined_byte_for_byte(
    base: str, path: bytes, query: bytes, joined: bytes | None
) -> None:
    target = EndpointTarget.parse(f"http://a.example{base}")

    as_it_came = path + (b"?" + query if query else b"")
    assert target.url_path(path, query) == (joined or as_it_came)


@pytest.mark.parametrize(
    "path",
    [
        *(b"/..", b"/.", b"/../", b"/a/../../b", b"..", b".", b"../x", b"/a/."),
        *(b"/%2e%2e/", b"/%2E%2E", b"/.%2e/", b"/%2e", b"/a/%2E./b", b"/%2e%2E%2fb"),
        *(b"/%252e%252e/", b"/%25252e%25252E/x", b"/%252e.", b"/%%32%65"),
        *(b"/..%2fadmin", b"/a%2f..%2fb", b"/a%2F%2e%2e%2Fb", b"/a%252f..%252f"),
        *(b"/a\\..\\b", b"/..%5cadmin", b"/%5c..%5C", b"/%255c..%255c", b"/..%5c"),
        *(b"/..;/admin", b"/..;v=1/x", b"/.;/", b"/%2e%2e;/", b"/..%3b/", b"/;/..;a"),
        *(b"/...", b"/....//", b"/..%20/", b"/%20../x", b"/..%09", b"/.. /"),
        *(
            b"/%c0%ae%c0%ae/",
            b"/%c0%afetc",
            b"/%e0%80%ae",
            b"/%f0%80%80%ae",
            b"/%u002e",
        ),
        *(b"/%ef%bc%8e%ef%bc%8e/", b"/a%ef%bc%8f..", b"/%e2%80%a5/", b"/%e2%80%a4."),
        *(
            b"/%00",
            b"/a%00.html",
            b"/a%2500",
            b"/%0d%0aX:y",
            b"/%0a",
            b"/a%7f",
            b"/%1f",
        ),
        *(b"/a b", b"/a\tb", b"/a\r\nX: y", b"/\0", b"/\xc3\xa4", b"/a\x7f"),
        *(b"/a?b", b"/a#b", b"/%", b"/%2", b"/%g0", b"/a%2x", b"/%ff%"),
        *(b"//evil.example/", b"/%2fevil.example", b"/%5cevil", b"///x", b"/\\evil"),
        *(b"/%" + b"25" * 9 + b"2e", b"/" + b"a" * LONGEST_PATH),
    ],
)
@pytest.mark.parametrize("base", ["", "/quotes", "/quotes/"])
def test_no_path_escapes_its_endpoint(base: str, path: bytes) -> None:
    target = EndpointTarget.parse(f"https://stock.example.com{base}")

    with pytest.raises(Invalid) as refusal:
        target.url_path(path, field="path")

    assert refusal.value.field == "path"
    assert refusal.value.remedy


@pytest.mark.parametrize("query", [b"a b", b"a#b", b"\r\n", b"\xff", b"a\0", b"a\\b"])
def test_a_query_that_is_not_encoded_is_refused(query: bytes) -> None:
    with pytest.raises(Invalid, match="percent-encode"):
        EndpointTarget.parse(BELOW).url_path(b"/a", query)


def test_path_and_query_together_are_bounded() -> None:
    target = EndpointTarget.parse(BELOW)

    fitting = target.url_path(b"/" + b"a" * 4000, b"b" * (LONGEST_PATH - 4000 - 9))
    assert len(fitting) == LONGEST_PATH
    with pytest.raises(Invalid, match="longer than 8192 bytes with its query"):
        target.url_path(b"/" + b"a" * 4000, b"b" * (LONGEST_PATH - 4000 - 8))
