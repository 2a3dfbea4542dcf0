"""Take the README's pictures of the status page: ``make screenshots``. Needs Chromium and chromedriver."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.support.agent.browser import Browser, find_programs, running_browser
from tests.support.agent.page_states import drawn
from tests.support.waiting import wait_until

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"

PAGES = {"first_dump": "status-page", "quarantined": "status-page-quarantined"}
"""The states that are shown, with the names of their pictures."""

WIDTH, HEIGHT = 900, 810
COLORS = 64
"""Enough for text and a few plain areas; a tenth of the size with all colors."""


def save(window: Browser, url: str, path: Path, *, dark: bool) -> None:
    """Write a picture of the page's upper part as a small PNG."""
    window.open(url, width=WIDTH, dark=dark)
    wait_until(lambda: window.shown("content"), "the page shows the agent")
    window.picture(path)
    with Image.open(path) as whole:
        part = whole.convert("RGB").crop((0, 0, WIDTH, min(HEIGHT, whole.height)))
    part.quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> int:
    """Write all pictures; return the exit status."""
    if find_programs() is None:
        print("no Chromium or no chromedriver on the PATH: .ci/fetch-servers installs them", file=sys.stderr)
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, running_browser(Path(profile)) as window:
        for state, name in PAGES.items():
            for dark in (False, True):
                path = FOLDER / f"{name}-{'dark' if dark else 'light'}.png"
                with drawn(state) as url:
                    save(window, url, path, dark=dark)
                print(f"{path.relative_to(FOLDER.parents[1])}: {path.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
