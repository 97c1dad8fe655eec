"""Waiting clients hear of a change at once."""

import asyncio
import threading

from runyard.conductor.changes import Changes


def test_a_watcher_hears_of_a_change_made_in_another_thread() -> None:
    async def story() -> None:
        changes = Changes()
        with changes.watch("r") as watcher:
            threading.Thread(target=changes.notify, args=("r",)).start()
            assert await watcher.wait(10)

    asyncio.run(story())


def test_a_change_before_the_wait_is_not_missed() -> None:
    async def story() -> None:
        changes = Changes()
        with changes.watch("r") as watcher:
            changes.notify("r")
            assert await watcher.wait(10)
            assert not await watcher.wait(0.01)

    asyncio.run(story())


def test_other_runs_do_not_disturb() -> None:
    async def story() -> None:
        changes = Changes()
        with changes.watch("r") as watcher:
            changes.notify("another")
            assert not await watcher.wait(0.01)

    asyncio.run(story())


def test_closing_wakes_everybody_and_nobody_waits_any_more() -> None:
    async def story() -> None:
        changes = Changes()
        with changes.watch("r") as watcher:
            waiting = asyncio.create_task(watcher.wait(60))
            await asyncio.sleep(0)
            changes.close()
            await asyncio.wait_for(waiting, 10)
            assert not await watcher.wait(60)

    asyncio.run(story())


def test_a_watcher_that_left_is_forgotten() -> None:
    async def story() -> Changes:
        changes = Changes()
        with changes.watch("r"):
            pass
        return changes

    changes = asyncio.run(story())
    changes.notify("r")
    assert not changes._watchers
