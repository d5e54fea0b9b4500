from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from poisonweb.sample.event_ledger import Ledger, Tally, What, read, tally


def note(
    ledger: Ledger, what: What, bookmark: str, *, redrive: str = "", error: str = ""
) -> None:
    ledger.write(what, topic="orders", bookmark=bookmark, redrive=redrive, error=error)


def test_a_line_comes_back_as_it_was_written(ledger: Ledger) -> None:
    note(ledger, What.FAILED_AGAIN, "1-0", redrive="r.s", error="KeyError")

    (line,) = read(ledger.path)

    assert (line.what, line.topic, line.bookmark) == ("failed again", "orders", "1-0")
    assert (line.redrive, line.error) == ("r.s", "KeyError")
    assert line.at == ledger.began()


def test_an_empty_ledger_has_not_begun(ledger: Ledger) -> None:
    assert ledger.began() is None
    assert tally(read(ledger.path)) == {}


def test_the_last_line_about_a_message_is_valid(ledger: Ledger) -> None:
    note(ledger, What.PRODUCED, "1-0")
    note(ledger, What.FAILED, "1-0")
    note(ledger, What.FAILED, "2-0")
    note(ledger, What.FAILED, "2-0")
    note(ledger, What.HANDLED, "1-0")

    counted = tally(read(ledger.path))

    assert counted == {"orders": Tally(poisons=1, recurrences=0, confirmations=0)}


def test_a_redrive_that_came_twice_counts_once(ledger: Ledger) -> None:
    note(ledger, What.FAILED_AGAIN, "1-0", redrive="a")
    note(ledger, What.FAILED_AGAIN, "2-0", redrive="a")
    note(ledger, What.HANDLED, "3-0", redrive="b")
    note(ledger, What.HANDLED, "4-0", redrive="b")

    counted = tally(read(ledger.path))

    assert counted == {"orders": Tally(poisons=0, recurrences=1, confirmations=1)}


def test_a_redrive_that_failed_once_is_a_recurrence(ledger: Ledger) -> None:
    note(ledger, What.HANDLED, "1-0", redrive="a")
    note(ledger, What.FAILED_AGAIN, "2-0", redrive="a")
    note(ledger, What.HANDLED, "3-0", redrive="a")

    counted = tally(read(ledger.path))

    assert counted == {"orders": Tally(poisons=0, recurrences=1, confirmations=0)}


def test_the_next_start_cuts_off_a_partial_line(ledger: Ledger) -> None:
    note(ledger, What.FAILED, "1-0")
    with ledger.path.open("ab") as file:
        file.write(b'{"at": "2026-')

    again = Ledger(ledger.path)
    note(again, What.FAILED, "2-0")

    assert [line.bookmark for line in read(ledger.path)] == ["1-0", "2-0"]


def test_the_next_writer_cuts_off_a_partial_line(ledger: Ledger) -> None:
    other = Ledger(ledger.path)
    note(ledger, What.FAILED, "1-0")
    with ledger.path.open("ab") as file:
        file.write(b'{"at": "2026-')

    note(other, What.FAILED, "2-0")

    assert [line.bookmark for line in read(ledger.path)] == ["1-0", "2-0"]


def test_a_start_does_not_cut_off_the_line_of_another_process(ledger: Ledger) -> None:
    def start_and_write(n: int) -> None:
        note(Ledger(ledger.path), What.FAILED, f"{n}-0")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start_and_write, range(400)))

    assert len(list(read(ledger.path))) == 400
