"""The page in Chromium: live, by keyboard, on narrow and wide screens, for people with any eyes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from group_stage import GroupStage
from live_page_process import Dash, start_dash
from sparrowmq.testing import EmbeddedCluster

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]

PAGES = ("/", "/topics", "/messages", "/dead-letters", "/brokers", "/doctor", "/simulator", "/lab")
SECONDS_MS = 1_000
# The overview is looked at every 5 s.
expect.set_options(timeout=30 * SECONDS_MS)


@pytest.fixture(scope="module")
def dash(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dash]:
    with ExitStack() as held:
        yield start_dash(held, cluster, tmp_path_factory.mktemp("dash"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # The tests may run as root, for whom Chromium's sandbox does not start.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser, dash: Dash) -> Iterator[Page]:
    """A page of somebody who has logged in; what the browser complains of fails the test."""
    context = browser.new_context(base_url=dash.base, viewport={"width": 1400, "height": 900})
    context.set_default_timeout(30 * SECONDS_MS)
    opened = context.new_page()
    complaints: list[str] = []
    opened.on(
        "console", lambda said: complaints.append(said.text) if said.type == "error" else None
    )
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    dash.log_in(opened)
    yield opened
    context.close()
    assert complaints == []


def faults_of(page: Page, *rules: str) -> list[str]:
    """Return what axe finds by some rules or all, with the element it is at."""
    response = Axe().run(page, options={"runOnly": list(rules)} if rules else None).response
    assert response["passes"], "axe looked at nothing"
    found = response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary'][:300]}"
        for each in found
    ]


def wait_for_look(page: Page) -> None:
    """Wait until the cluster was looked at."""
    page.goto("/")
    expect(page.locator("#groups")).to_be_visible()


@pytest.mark.long
@pytest.mark.parametrize(("width", "language"), [(400, "zh"), (1400, "en")])
def test_every_page_fits_its_screen_and_can_be_read_by_everybody(
    page: Page, stage: GroupStage, width: int, language: str
) -> None:
    stage.send([b'{"flight": "UA1"}'] * 8, keys=("order-1",), tags="new")
    stage.start_process("twin")
    stage.start_process("twin")
    wait_for_look(page)
    page.set_viewport_size({"width": width, "height": 900})
    # Colours change at once.
    page.emulate_media(reduced_motion="reduce")
    group = f"/groups/{stage.group}?explain=broker-a:0&of={stage.topic}"
    more = (
        group,
        f"/topics/{stage.topic}",
        f"/messages?topic={stage.topic}&text=UA1",
        f"/dead-letters?group={stage.group}",
        f"/dead-letters/resend?group={stage.group}",
        "/brokers/broker-a",
    )
    message = f"/messages/{stage.topic}/broker-a/0/0"
    found = []
    for path in (*PAGES, *more, message):
        mark = "&" if "?" in path else "?"
        page.goto(f"{path}{mark}lang={language}&theme=light")
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found.append(f"{path} is wider than its screen")
        found += [f"{path}: {fault}" for fault in faults_of(page)]
        # The other theme has other colours and nothing else.
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        found += [f"{path}, dark: {fault}" for fault in faults_of(page, "color-contrast")]

    assert found == []
    page.goto("/?theme=dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_longest_name_covers_no_other_column(page: Page, stage: GroupStage) -> None:
    stage.join("a")
    wait_for_look(page)

    overlap = page.locator("td:not(.prose)").first.evaluate(
        """cell => {
          cell.textContent = "x".repeat(255);
          return cell.scrollWidth - cell.clientWidth;
        }"""
    )

    assert overlap == 0
    assert page.evaluate("document.documentElement.scrollWidth === innerWidth")


def test_a_rebalance_is_seen_as_it_happens(page: Page, stage: GroupStage) -> None:
    stage.join("a")
    page.goto(f"/groups/{stage.group}?topic={stage.topic}")
    expect(page.locator("td.square.owned.has")).to_have_count(4)
    # What a reader does to a page stays: it is not loaded anew.
    page.evaluate("window.isTheSame = true")
    page.locator("a[href*='explain=']").nth(1).focus()

    stage.join("b")

    expect(page.locator(".members li")).to_have_count(2)
    moved = page.locator("#rebalances + * tr, table.data tbody tr").filter(
        has_text="B (172.17.0.1@b) joined"
    )
    expect(moved).to_contain_text("A → B: broker-a:2, 3")
    expect(page.locator(".strip .tone-c2").first).to_be_visible()
    assert page.evaluate("window.isTheSame")
    assert "explain=" in page.evaluate("document.activeElement.href")


def test_a_page_is_worked_by_keys(page: Page, stage: GroupStage) -> None:
    # No other group's name has this one in it.
    stage.group += "_keys"
    stage.send([b"x"] * 4)
    stage.join("a")
    wait_for_look(page)
    expect(page.get_by_role("link", name=stage.group, exact=True)).to_be_visible()

    page.keyboard.press("/")
    page.keyboard.type(stage.group)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"\?q={stage.group}"))
    page.wait_for_load_state()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/groups/{stage.group}$"))
    page.wait_for_load_state()
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page).to_have_url(re.compile("/topics$"))
    page.wait_for_load_state()
    # Accounts are not offered to this reader.
    for key in "gagb":
        page.keyboard.press(key)
    expect(page).to_have_url(re.compile("/brokers$"))
    page.go_back()
    expect(page).to_have_url(re.compile("/topics$"))


def test_what_a_reader_opened_or_chose_stays_where_others_come_before_it(page: Page) -> None:
    page.goto("/simulator")
    found = page.evaluate(
        """() => {
          const make = (inner) => {
            const made = document.createElement("div");
            made.innerHTML = inner;
            return made;
          };
          const now = make(
            '<details id="a" open></details><table><tr class="x" id="r" data-chosen><td>1</table>');
          const wanted = '<p>new</p><details id="b"></details><details id="a"></details>' +
            '<table><tbody><tr id="q"><td>0</td></tr><tr class="y" id="r"><td>2</td></tr></tbody>' +
            '</table>';
          const [finding, row] = [now.querySelector("#a"), now.querySelector("#r")];
          morph(now, make(wanted));
          return [finding === now.querySelector("#a"), row === now.querySelector("#r"),
            now.innerHTML.replace(' open=""', '').replace(' data-chosen=""', '') === wanted,
            finding.open, "chosen" in row.dataset, now.querySelector("#b").open];
        }"""
    )

    assert found == [True, True, True, True, True, False]


def test_a_page_whose_server_answers_nothing_says_so_and_goes_on(page: Page) -> None:
    wait_for_look(page)
    page.evaluate(
        """() => {
          const timeout = AbortSignal.timeout;
          window.patience = 100;
          AbortSignal.timeout = () => timeout.call(AbortSignal, window.patience);
        }"""
    )
    hanging: list[Route] = []

    def hang(route: Route) -> None:
        hanging.append(route)

    page.route("**/", hang)

    expect(page.locator("#lost")).to_have_text(re.compile("has lost its server"))
    page.unroute("**/")
    page.evaluate("window.patience = 25000")
    expect(page.locator("#lost")).to_be_hidden()
    assert hanging


def test_a_time_without_a_zone_is_one_of_the_readers(browser: Browser, dash: Dash) -> None:
    context = browser.new_context(base_url=dash.base, timezone_id="Asia/Shanghai")
    page = context.new_page()
    dash.log_in(page)
    page.goto("/messages")
    page.fill("input[name=topic]", "orders")
    page.fill("input[name=from]", "2026-01-31 12:00")
    page.click("main button")

    expect(page).to_have_url(re.compile(r"from=2026-01-31T12%3A00%2B08%3A00"))
    context.close()


@pytest.mark.long
def test_a_drill_is_staged_by_a_click_and_the_doctor_finds_the_fault(page: Page) -> None:
    page.goto("/lab")
    page.get_by_role("button", name="duplicate-id").click()

    expect(page.locator(".progress li").first).to_contain_text("starting a broker")
    expect(page.locator("#finding-R02, #finding-R01").first).to_be_visible(timeout=150 * SECONDS_MS)
    expect(page.locator("#phases")).to_be_visible()
    expect(page.locator(".timeline .strip")).to_have_count(8)
    assert faults_of(page) == []
    page.goto("/lab?lang=zh")
    expect(page.locator("details.finding").first).to_contain_text("连接来自 127.0.0.1:")


def test_a_page_whose_server_ends_says_so_and_finds_back(
    browser: Browser, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with ExitStack() as held:
        dash = start_dash(held, cluster, tmp_path)
        context = browser.new_context(base_url=dash.base)
        page = context.new_page()
        dash.log_in(page)
        expect(page.locator("#groups")).to_be_visible()
        # The page's script, which comes from the same server, has run by then.
        page.wait_for_load_state("load")

        dash.process.kill()
        expect(page.locator("#lost")).to_have_text(re.compile("has lost its server"))
        dash.process.wait()
        port = dash.base.rpartition(":")[2]
        again = start_dash(held, cluster, tmp_path, "--port", port)

        # Its sessions went with it.
        expect(page).to_have_url(re.compile(r"/login\?next=%2F$"))
        page.fill("input[name=password]", again.password)
        page.click("main button")
        expect(page.locator("#groups")).to_be_visible()
        context.close()
