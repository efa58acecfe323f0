import pytest

from tidegate.control.changefeed import BACKOFF_MAX_S, Command, Life, State
from tidegate.control.metadata import FeedError
from tidegate.errors import InvalidInput

ERROR = FeedError("The broker does not answer.", "CDC:ErrRetryable", 0)


def failed(life: Life, now: float, retry: bool = True) -> Life:
    return life.failed(ERROR, retry=retry, now=now, stuck_s=1800)


def test_a_feed_that_fails_waits_tries_again_and_is_normal_after_progress() -> None:
    life = failed(Life(), 10.0)
    assert (life.state, life.error, life.runs) == (State.PENDING, ERROR, False)
    assert life.ticked(10.9) is life
    life = life.ticked(11.0)
    assert (life.state, life.runs, life.error) == (State.WARNING, True, ERROR)
    assert life.progressed() == Life()


def test_the_wait_doubles_up_to_a_minute_and_starts_over_after_progress() -> None:
    life, now, waits = Life(), 0.0, []
    for _ in range(9):
        life = failed(life, now)
        waits.append(life.retry_at - now)
        now = life.retry_at
        life = life.ticked(now)
    assert waits == [1, 2, 4, 8, 16, 32, BACKOFF_MAX_S, BACKOFF_MAX_S, BACKOFF_MAX_S]
    assert failed(life.progressed(), now).retry_at == now + 1


def test_a_feed_without_progress_for_too_long_fails() -> None:
    life = failed(Life(), 0.0).ticked(1.0)
    assert failed(life, 1800.0).state is State.PENDING
    assert failed(life, 1801.0).state is State.FAILED


def test_an_error_that_cannot_pass_fails_at_once_and_resume_forgives() -> None:
    life = failed(Life(), 0.0, retry=False)
    assert (life.state, life.error) == (State.FAILED, ERROR)
    assert life.commanded(Command.RESUME) == Life()


def test_a_paused_feed_ignores_late_failures() -> None:
    life = Life().commanded(Command.PAUSE)
    assert life.state is State.STOPPED
    assert failed(life, 5.0) is life
    assert life.progressed() is life
    assert life.commanded(Command.RESUME).runs


def test_a_finished_feed_can_only_be_removed() -> None:
    life = Life().finished()
    for command in (Command.PAUSE, Command.RESUME):
        with pytest.raises(InvalidInput, match="finished"):
            life.commanded(command)
    assert life.commanded(Command.REMOVE).state is State.REMOVED


def test_a_restart_tries_a_waiting_feed_at_once() -> None:
    assert Life.restored("pending", ERROR) == Life(State.WARNING, ERROR)
    assert Life.restored("stopped", None).state is State.STOPPED


def test_trouble_beside_the_pipeline_is_a_warning_that_progress_clears() -> None:
    life = Life().warned(ERROR)
    assert (life.state, life.runs) == (State.WARNING, True)
    assert life.progressed().error is None
