"""The writer turn: the next process prepares while another one holds the turn, and the queue is
fair."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from plimsoll import _turn
from plimsoll._turn import Turn

# Each turn has its own open files, so two turns in one process exclude each other like two processes.


@pytest.fixture
def prepared() -> threading.Event:
    return threading.Event()


@pytest.fixture
def turns(tmp_path: Path, prepared: threading.Event) -> Iterator[list[Turn]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(Turn(str(tmp_path), shared=True, prepare=prepare)))
            for prepare in (lambda: None, prepared.set, lambda: None)
        ]


def is_free(turn: Turn, timeout: float = 0) -> bool:
    """Whether a turn is free."""
    with turn.hold(timeout) as is_held:
        return is_held


def test_the_next_process_prepares_before_it_has_the_turn(turns: list[Turn], prepared: threading.Event) -> None:
    first, second, _ = turns
    got = threading.Event()

    def write() -> None:
        with second.hold():
            got.set()

    with first.hold():
        thread = threading.Thread(target=write)
        thread.start()
        assert prepared.wait(60)
        assert not got.wait(0.05)
    assert got.wait(60)
    thread.join()


def test_a_busy_writer_lets_the_next_process_in(turns: list[Turn], prepared: threading.Event) -> None:
    first, second, _ = turns
    got = threading.Event()

    def write() -> None:
        with second.hold():
            got.set()

    with first.hold():
        thread = threading.Thread(target=write)
        thread.start()
        assert prepared.wait(60)
    end = time.monotonic() + 2 * _turn._AGAIN_SECONDS
    while time.monotonic() < end:
        with first.hold():
            pass
    with first.hold():
        assert got.is_set(), "it had to queue behind the other one"
    thread.join()


def test_a_waiter_that_times_out_leaves_the_queue(turns: list[Turn]) -> None:
    first, second, third = turns
    with first.hold():
        assert not is_free(second, 0.01)
        assert not is_free(third)
    assert is_free(third)


def test_an_error_in_preparing_leaves_the_queue(tmp_path: Path, turns: list[Turn]) -> None:
    def fail() -> None:
        raise OSError("of the store")

    with closing(Turn(str(tmp_path), shared=True, prepare=fail)) as failing:
        with pytest.raises(OSError, match="of the store"), failing.hold():
            pass
        assert is_free(turns[0])


@pytest.mark.parametrize("which", ["_file", "_next"])
def test_an_exception_right_after_acquiring_a_lock_releases_it(turns: list[Turn], monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    first, second, _ = turns
    wait: Callable[[int, float | None], bool] = _turn._wait

    def interrupted(file: int, deadline: float | None) -> bool:
        wait(file, deadline)
        if file == getattr(first, which):
            raise KeyboardInterrupt
        return True

    with monkeypatch.context() as patched:
        patched.setattr(_turn, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt), first.hold():
            pass
    assert is_free(second) and is_free(first)


def test_an_exception_right_after_retaking_the_turn_releases_it(turns: list[Turn], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = turns
    assert is_free(first)
    try_: Callable[[int], bool] = _turn._try

    def interrupted(file: int) -> bool:
        try_(file)
        raise KeyboardInterrupt

    first._again_until = time.monotonic() + 60
    with monkeypatch.context() as patched:
        patched.setattr(_turn, "_try", interrupted)
        with pytest.raises(KeyboardInterrupt), first.hold():
            pass
    assert is_free(second)


def test_a_turn_is_held_until_its_hold_is_released_or_dropped(turns: list[Turn]) -> None:
    first, second, _ = turns
    hold = first.hold()
    with hold as is_held:
        assert is_held and first.is_mine and not second.is_mine
        hold.keep()
    assert not is_free(second)
    hold.give()
    assert is_free(second) and not first.is_mine
    with second.hold():
        # It does not hold the turn, so there is nothing to release.
        hold.give()
        assert not is_free(first)
    hold = first.hold()
    with hold:
        hold.keep()
    del hold
    assert is_free(second) and is_free(first)
