"""Takes the pictures of the live page and of `sparrowmq top` for the documentation: `make screens`.

A cluster of its own, a group whose member has the id of another one, and Chromium.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, expect, sync_playwright

from group_stage import GroupStage
from live_page_process import start_dash
from sparrowmq import PushConsumer
from sparrowmq.cli.connecting import ConnectionOptions, open_cluster
from sparrowmq.cli.top import TopApp
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
WIDTH, HEIGHT = 1200, 860
# Messages of each turn, and the time between two turns.
TURN, PAUSE_S = 16, 0.25


def main() -> None:
    chromium = shutil.which("chromium") or sys.exit("no Chromium: apt-get install chromium")
    with ExitStack() as held:
        cluster = held.enter_context(EmbeddedCluster(flush="async"))
        stage = GroupStage(cluster, queues=8)
        stage.topic, stage.group = "orders", "GID_orders"
        held.enter_context(stage)
        held.enter_context(sending(stage))
        enter_others(held, cluster)
        data = Path(held.enter_context(TemporaryDirectory()))
        dash = start_dash(held, cluster, data, "--allow-writes")
        # Playwright's own loop runs in this thread from its start on.
        asyncio.run(shoot_top(cluster))
        playwright = held.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        held.callback(browser.close)
        page = browser.new_page(
            base_url=dash.base,
            viewport={"width": WIDTH, "height": HEIGHT},
            locale="en-GB",
        )
        page.set_default_timeout(60_000)
        dash.log_in(page)
        shoot_group(page, stage)
        shoot(page, "/?theme=light&lang=en", "live-page-overview")
        shoot(page, "/simulator?queues=8&members=3&events=join,kill:1", "live-page-simulator")
        shoot_lab(page)


async def shoot_top(cluster: EmbeddedCluster) -> None:
    """Draw the live screen of the terminal as SVG, once it has looked for some seconds."""
    with open_cluster(ConnectionOptions(cluster.name_server, timeout=10.0)) as opened:
        app = TopApp(opened, 1_000)
        try:
            async with app.run_test(size=(120, 16)) as pilot:
                await pilot.pause(8)
                picture = app.export_screenshot(title="sparrowmq top")
        finally:
            await asyncio.to_thread(app.stop)
    # A font that another host has is none: the reader's own is as good.
    local = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.S)
    (IMAGES / "top.svg").write_text(local.replace("Fira Code", "monospace"))


def enter_others(held: ExitStack, cluster: EmbeddedCluster) -> None:
    """Have one group more that is well, and one that everybody has left."""
    for group in ("GID_billing", "GID_audit"):
        stage = GroupStage(cluster, queues=4)
        stage.topic, stage.group = group.removeprefix("GID_"), group
        held.enter_context(stage)
        stage.send([b"first"] * 4)
        member = stage.join("1")
        wait_until("the first messages", partial(has_consumed, member, 4))
        if group == "GID_audit":
            member.close()
            stage.send([b"nobody reads it"] * 1_234)


def has_consumed(member: PushConsumer, count: int) -> bool:
    return member.counters.succeeded == count


@contextmanager
def sending(stage: GroupStage) -> Generator[None]:
    """Send orders while the block runs."""
    is_over = threading.Event()

    def run() -> None:
        number = 0
        while not is_over.wait(PAUSE_S):
            stage.send([b'{"order": %d}' % (number + n) for n in range(TURN)], tags="paid")
            number += TURN

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def shoot(page: Page, path: str, name: str) -> None:
    page.goto(path)
    expect(page.locator("h1")).to_be_attached()
    page.wait_for_timeout(1_500)
    page.locator("body").screenshot(path=IMAGES / f"{name}.png")


def shoot_group(page: Page, stage: GroupStage) -> None:
    """A member joins, and then one with an id that is in use."""
    stage.start_process("1")
    page.goto(f"/groups/{stage.group}?topic={stage.topic}")
    expect(page.locator(".members li")).to_have_count(1)
    page.wait_for_timeout(20_000)
    stage.join("2")
    expect(page.locator(".members li")).to_have_count(2)
    page.wait_for_timeout(40_000)
    stage.join("3")
    page.wait_for_timeout(30_000)
    stage.start_process("1")
    expect(page.locator("#finding-R01")).to_be_visible()
    page.wait_for_timeout(25_000)
    path = f"/groups/{stage.group}?topic={stage.topic}"
    shoot(page, f"{path}&theme=light&lang=en", "live-page-group")
    shoot(page, f"{path}&theme=dark&lang=zh", "live-page-group.zh")


def shoot_lab(page: Page) -> None:
    page.goto("/lab")
    page.get_by_role("button", name="kill").click()
    expect(page.locator("#phases")).to_be_visible(timeout=120_000)
    page.locator("body").screenshot(path=IMAGES / "live-page-lab.png")


if __name__ == "__main__":
    main()
