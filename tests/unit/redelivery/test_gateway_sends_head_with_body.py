"""The gateway sends the head of an answer and the first piece of its body together."""

from __future__ import annotations

import h11

from poisonweb.gateway import _ConnectionWithRawHeaders


def test_a_head_leaves_with_the_first_piece_of_its_body() -> None:
    connection = _ConnectionWithRawHeaders({})
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
    while not isinstance(connection.next_event(), h11.EndOfMessage):
        pass
    head = h11.Response(status_code=200, headers=[(b"content-length", b"4")])

    packets = [
        connection.send(event)
        for event in (
            *(head, h11.Data(data=b"so"), h11.Data(data=b"on"), h11.EndOfMessage()),
        )
    ]

    assert packets == [
        *(b"", b"HTTP/1.1 200 \r\ncontent-length: 4\r\n\r\nso", b"on", b""),
    ]
