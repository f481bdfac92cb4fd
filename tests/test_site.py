"""The documentation as a site: built without a word, and found by questions in Chinese."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# What is asked, and the page that answers.
ASKED = {
    "死信队列": "howto/decide-on-messages",
    "消息堆积": "howto/messages-pile-up",
    "定时消息": "howto/delay-messages",
    "事务消息": "howto/transactions",
    "顺序消费": "howto/consume-in-order",
    "重复消费": "howto/spark-jobs",
    "访问控制": "howto/control-access",
    "磁盘满了": "howto/keep-messages",
    "负载均衡": "reference/load-balancing",
    "告警": "howto/monitor",
    "防火墙": "reference/server-limits",
    "迁移 Kafka": "howto/from-kafka",
}
FIRST_THREE = ".md-search-result__item:nth-child(-n+3) > a"

# One worker builds the site once.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("site"),
]


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site's directory, and what was printed."""
    site = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site],
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "PYTHONWARNINGS": "ignore::SyntaxWarning",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return site, ended.stdout


@pytest.fixture
def address(built: tuple[Path, str]) -> Iterator[str]:
    handler = partial(Silent, directory=str(built[0]))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_site_is_built_without_a_warning(built: tuple[Path, str]) -> None:
    assert built[1] == ""


def test_links_to_headings_find_them_in_both_languages(built: tuple[Path, str]) -> None:
    pages = {path.resolve(): path.read_text() for path in built[0].rglob("*.html")}
    ids = {path: set(re.findall(r'\bid="([^"]+)"', html)) for path, html in pages.items()}
    lost = []
    for path, html in pages.items():
        for link, heading in re.findall(r'\bhref="([^"#:]*)#([^"]+)"', html):
            target = (path.parent / unquote(link)).resolve() if link else path
            if target in ids and unquote(unescape(heading)) not in map(unescape, ids[target]):
                lost.append(f"{path.name}: {link}#{heading}")

    assert lost == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_a_question_in_chinese_finds_its_page_among_the_first_three(address: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/zh/index.html")
        box = page.locator(".md-search__input")
        box.click()
        for question, answer in ASKED.items():
            box.fill(question)
            # The theme reads the box when a key comes up.
            box.press("End")
            found = page.locator(f"{FIRST_THREE}[href*='/zh/{answer}.html']")
            # A page's sections stand below it.
            expect(found.first, question).to_be_visible(timeout=60_000)
        browser.close()
