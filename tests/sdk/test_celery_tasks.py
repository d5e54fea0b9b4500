"""A guarded task without a worker: what it raises, for Celery to act on.

With a worker: `tests/contracts/test_guarded_celery_tasks_with_worker.py`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery
from celery.exceptions import Ignore, Reject, Retry

from poisonguard import Guard, Outcome
from poisonguard.errors import StartTimeout
from poisonguard.readers.celery import NotHandled, guarded_task, redeliver

Handle = Any


def guard_that(handle: Handle) -> Guard:
    return cast("Guard", SimpleNamespace(handle=handle))


def released(message: Any, _: object) -> Outcome:
    return Outcome.RELEASE


def postponed(message: Any, _: object) -> Outcome:
    redeliver(message, 1.2)
    return Outcome.RELEASE


def handled(message: Any, handler: Any) -> Outcome:
    handler(message)
    return Outcome.HANDLED


def not_started(message: Any, _: object) -> Outcome:
    raise StartTimeout("no skip list")


def echo(order: object) -> object:
    return order


def task_of(handle: Handle, function: Any = echo, **options: Any) -> Any:
    app = Celery("t", set_as_current=False, fixups=[])
    # A shared task would be in each other application of this process as well.
    ours = {"name": "charge", "shared": False, **options}
    return guarded_task(app, guard_that(handle), **ours)(function)


def in_a_worker(task: Any, *, retry: Any = None) -> Any:
    """Run it as a worker would, with a `retry` that sends nothing."""
    task.push_request(id="t-1", args=["order"], kwargs={}, called_directly=False)
    if retry is not None:
        task.retry = retry
    try:
        return task.run("order")
    finally:
        task.pop_request()


def unsent(**_: object) -> Exception:
    raise Reject("the broker is away", requeue=False)


def test_a_direct_call_runs_the_plain_function() -> None:
    task = task_of(released)

    assert task("order") == "order"
    assert task.apply(["order"]).get() == "order"


def test_the_return_value_is_the_task_s_result() -> None:
    assert in_a_worker(task_of(handled)) == "order"


def test_the_message_is_acknowledged_late() -> None:
    task = task_of(handled)

    assert (task.acks_late, task.reject_on_worker_lost) == (True, True)


def test_a_bound_task_gets_itself_as_argument() -> None:
    def name_and_order(task: Any, order: object) -> tuple[str, object]:
        return task.name, order

    task = task_of(handled, name_and_order, bind=True)

    assert in_a_worker(task) == ("charge", "order")


def test_retry_ignore_and_reject_are_no_failures() -> None:
    def ignore(_: object) -> None:
        raise Ignore

    with pytest.raises(Ignore):
        in_a_worker(task_of(handled, ignore))


@pytest.mark.parametrize("outcome", [Outcome.POISONED, Outcome.SKIPPED])
def test_a_skipped_task_ends_as_failure(outcome: Outcome) -> None:
    with pytest.raises(NotHandled, match=f"t-1 is {outcome}"):
        in_a_worker(task_of(lambda *_: outcome))


def test_a_poisoned_task_fails_with_its_own_error() -> None:
    def poisoned(message: Any, handler: Any) -> Outcome:
        with pytest.raises(ValueError, match="bad"):
            handler(message)
        return Outcome.POISONED

    def fail(_: object) -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        in_a_worker(task_of(poisoned, fail))


def test_a_release_goes_back_to_its_queue() -> None:
    with pytest.raises(Reject) as rejected:
        in_a_worker(task_of(released))

    assert vars(rejected.value)["requeue"]


@pytest.mark.parametrize(("handle", "after"), [(postponed, 2), (not_started, 5)])
def test_a_delayed_release_is_retried_by_celery(handle: Handle, after: int) -> None:
    retry_options: dict[str, Any] = {}

    def retry(**options: Any) -> Exception:
        retry_options.update(options)
        return Retry()

    with pytest.raises(Retry):
        in_a_worker(task_of(handle), retry=retry)

    assert (retry_options["countdown"], retry_options["throw"]) == (after, False)
    assert retry_options["max_retries"] > 10**6


def test_a_retry_that_cannot_be_sent_leaves_the_message_in_its_queue() -> None:
    with pytest.raises(Reject) as rejected:
        in_a_worker(task_of(postponed), retry=unsent)

    assert vars(rejected.value)["requeue"]
