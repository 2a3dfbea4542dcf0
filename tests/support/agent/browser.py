"""Headless Chromium, driven by chromedriver: what a person sees of a page, and what the browser says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.support.waiting import wait_until

ARGUMENTS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "disable-background-networking",
    "disable-component-update", "disable-sync", "no-first-run", "disable-quic", "hide-scrollbars",
    "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
WIDE, NARROW = 1100, 320

LOW_CONTRAST = """
const parts = (color) => [...color.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
const channel = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const back = (e) => {
  for (; e; e = e.parentElement) {
    const color = parts(getComputedStyle(e).backgroundColor);
    if (color[3] === 1) return color;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18, 1] : [255, 255, 255, 1];
};
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const low = [];
while (texts.nextNode()) {
  const e = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || !e.checkVisibility()) continue;
  const [a, b] = [light(parts(getComputedStyle(e).color)), light(back(e))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) low.push(texts.currentNode.data.trim());
}
return low;
"""
"""Texts whose contrast with what is behind them is below 4.5, as WCAG's level AA asks of small text."""


def find_programs() -> tuple[str, str] | None:
    """Return the paths of Chromium and chromedriver; None if one is missing."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One window of a browser with an empty profile."""

    def __init__(self, driver: Chrome) -> None:
        self.driver, self.width = driver, WIDE

    def open(self, url: str, *, width: int = WIDE, dark: bool = False) -> None:
        """Open a page as a new visitor; forget what the browser said before."""
        self.driver.get("about:blank")
        self.show(width=width, dark=dark)
        self.complaints()
        self.hosts()
        self.driver.get(url)

    def show(self, *, width: int = WIDE, dark: bool = False) -> None:
        """Show pages in a window of this width, in the dark or the light."""
        self.width = width
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == NARROW}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def open_folded(self) -> None:
        """Unfold everything."""
        self.driver.execute_script("for (const e of document.querySelectorAll('details')) e.open = true")

    def text(self, element: str) -> str:
        """Return what an element shows."""
        return str(self.driver.find_element(By.ID, element).text)

    def wait_text(self, element: str, text: str) -> None:
        """Wait until an element shows a text."""
        wait_until(lambda: text in self.text(element), f"{element} says {text!r}", pause=0.1)

    def shown(self, element: str) -> bool:
        """Return whether an element can be seen."""
        return bool(self.driver.find_element(By.ID, element).is_displayed())

    def wait_shown(self, element: str) -> None:
        """Wait until an element can be seen."""
        wait_until(lambda: self.shown(element), f"{element} is shown", pause=0.1)

    def wait_hidden(self, element: str) -> None:
        """Wait until an element can't be seen."""
        wait_until(lambda: not self.shown(element), f"{element} is hidden", pause=0.1)

    def focus(self, element: str) -> None:
        """Move the focus to an element."""
        self.driver.execute_script(f"document.getElementById('{element}').focus()")

    def focused(self) -> str:
        """Return the id of the element that has the focus, or its label, or its text."""
        at = self.driver.switch_to.active_element
        return str(at.get_attribute("id") or at.get_attribute("aria-label") or at.text)

    def click(self, element: str) -> None:
        """Click an element by its id."""
        self.driver.find_element(By.ID, element).click()

    def click_dump(self, verb: str, dump: str) -> None:
        """Click a button of a dump."""
        for item in self.driver.find_elements(By.CSS_SELECTOR, "#dumps > li"):
            if item.get_attribute("data-key") == dump:
                item.find_element(By.CSS_SELECTOR, f"button[data-verb={verb}]").click()
                return
        raise AssertionError(f"no dump {dump}")

    def wait_dump(self, dump: str, text: str) -> None:
        """Wait until a dump's card has a text."""
        wait_until(lambda: text in self._card(dump), f"dump {dump} says {text!r}", pause=0.1)

    def _card(self, dump: str) -> str:
        cards = "[...document.querySelectorAll('#dumps > li')]"
        script = f"return {cards}.find((e) => e.dataset.key === arguments[0])?.textContent"
        return str(self.driver.execute_script(script, dump))

    def answer_dialog(self) -> str:
        """Accept the browser's own dialog, and return what it asked."""
        dialog = self.driver.switch_to.alert
        text = str(dialog.text)
        dialog.accept()
        return text

    def type(self, *keys: str) -> None:
        """Type where the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def tab_stops(self) -> list[str]:
        """Return what Tab reaches from the top of the page, as ids or texts, in order."""
        self.driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
        found: list[str] = []
        for _ in range(100):
            self.type(Keys.TAB)
            name = self.focused()
            if name in found or self.driver.switch_to.active_element.tag_name == "body":
                break
            found.append(name)
        return found

    def overflows(self) -> bool:
        """Return whether the page scrolls sideways."""
        return bool(
            self.driver.execute_script(
                "const { scrollWidth, clientWidth } = document.documentElement;"
                "return Math.max(scrollWidth, clientWidth) > arguments[0]",
                self.width,
            )
        )

    def low_contrast(self) -> list[str]:
        """Return the texts that are hard to read."""
        return list(self.driver.execute_script(LOW_CONTRAST))

    def complaints(self) -> list[str]:
        """Return the errors and warnings of the console since the last call."""
        said = self.driver.get_log("browser")
        return [str(entry["message"]) for entry in said if entry["level"] in ("SEVERE", "WARNING")]

    def hosts(self) -> set[str]:
        """Return the hosts that were asked since the last call, with their ports."""
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in urls if not url.startswith("data:")}

    def picture(self, path: Path) -> None:
        """Write the whole page as PNG."""
        height = self.driver.execute_script("return document.documentElement.scrollHeight")
        size = {"width": self.width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.save_screenshot(str(path))


@contextmanager
def running_browser(profile: Path) -> Iterator[Browser]:
    """Run a browser until the end of the block; skip the test where there is none."""
    programs = find_programs()
    if programs is None:
        pytest.skip("no Chromium: .ci/fetch-servers installs it, as root on Debian and Ubuntu")
    options = ChromeOptions()
    options.binary_location = programs[0]
    for argument in (*ARGUMENTS, f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(programs[1]))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
