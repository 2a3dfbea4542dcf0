"""The status page in a real browser: what it shows in each state of an agent, and what its buttons do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from connector.capture import request_intake
from connector.landing.event_batch import QuarantineNotice
from connector.schema import TableName
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import shop
from tests.support.agent.browser import NARROW, WIDE, Browser, running_browser
from tests.support.agent.page_states import PICTURES, drawn
from tests.support.agent.status_page import client_of, live_agent, page_of
from tests.support.waiting import wait_until

READ, CONTROL = "read-token-0123456789", "control-token-0123456789"

ANSWERS = {
    "nothing_yet": ("Starting", "Not known yet", "Nothing"),
    "first_dump": ("Running", "0.8 s", "Nothing"),
    "steady": ("Running", "0.6 s", "Nothing"),
    "lagging": ("Running", "1 h 2 min", "2 things"),
    "gap": ("Running", "0.6 s", "1 thing"),
    "quarantined": ("Running", "0.6 s", "4 things"),
    "thousand": ("Running", "0.6 s", "Nothing"),
    "standby": ("Standing by", "0.7 s", "Nothing"),
    "store_gone": ("Running, can't land", "3 min 10 s", "1 thing"),
}
"""Is it running, how far behind, what needs you."""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture(autouse=True)
def quick_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_intake, "POLL_SECONDS", 0.02)


def test_the_buttons_do_what_they_say(window: Browser) -> None:
    database, store = shop(rows=40), MemoryStore()
    with page_of(database, store) as (client, agent):
        agent.wait_dumped()
        window.open(str(client.base_url))
        window.wait_text("state", "Running")
        window.wait_text("tables", "public.items")
        window.wait_text("finished-text", "2 finished dumps")
        window.click("pause-all")
        agent.wait(lambda m: m.dump_control and m.dump_control.pause_new, "new dumps begin paused")
        window.wait_text("message", "Requested: pause all dumps")
        client.post("/api/dump", json={"id": "<b>odd</b>", "tables": ["public.items"]})
        window.wait_dump("<b>odd</b>", "public.items: paused")
        window.click_dump("settings", "<b>odd</b>")
        field = window.driver.find_element(By.NAME, "chunk_rows")
        assert field.get_attribute("placeholder") == "7"
        field.send_keys("11", Keys.ENTER)
        agent.wait(
            lambda m: any(d.settings and d.settings.chunk_rows == 11 for d in m.dumps),
            "its chunks have 11 rows",
        )
        wait_until(lambda: chunk_rows_of(window, "<b>odd</b>") == "11", "its own settings are shown")
        window.click_dump("resume", "<b>odd</b>")
        agent.wait(lambda m: any((d.id, d.state) == ("<b>odd</b>", "complete") for d in m.dumps), "it ends")
        window.wait_text("finished-text", "3 finished dumps")
        client.post("/api/dump", json={"id": "next", "tables": ["public.items"]})
        window.wait_dump("next", "public.items: paused")
        window.click_dump("cancel", "next")
        assert "Cancel dump next?" in window.answer_dialog()
        agent.wait(
            lambda m: any((d.id, d.state) == ("next", "cancelled") for d in m.dumps), "it is cancelled"
        )
        window.click("resume-all")
        agent.wait(lambda m: m.dump_control and not m.dump_control.pause_new, "new dumps run")
        set_for_all(window, delay_seconds="2", workers="1", chunk_rows="1")
        agent.wait(
            lambda m: m.dump_control and m.dump_control.settings.delay_seconds == 2, "all are slowed down"
        )
        client.post("/api/dump", json={"id": "slow", "tables": ["public.items"]})
        window.wait_dump("slow", "public.items: running")
        window.click_dump("pause", "slow")
        agent.wait(lambda m: any(d.id == "slow" and d.paused for d in m.dumps), "one dump is paused")
        window.wait_dump("slow", "public.items: paused")
        window.click_dump("resume", "slow")
        agent.wait(lambda m: any(d.id == "slow" and not d.paused for d in m.dumps), "and resumed")
        set_for_all(window, defaults=Keys.SPACE)
        agent.wait(lambda m: any((d.id, d.state) == ("slow", "complete") for d in m.dumps), "it ends")
        window.click("dump-all")
        window.answer_dialog()
        agent.wait(lambda m: sum(d.kind == "full" for d in m.dumps) >= 6, "all tables are dumped again")
        notice = QuarantineNotice(TableName("public", "parts"), database.end, "its key is gone", "add a key")
        agent.capture._tables.quarantine(notice)
        window.wait_text("problems", "public.parts is quarantined: its key is gone\nWhat to do: add a key")
        store.put("requests/<b>bad.json", b'{"tables": "items"}')
        window.wait_text("rejected-text", "1 request was rejected")
        window.wait_text("problems", "Request requests/<b>bad.json was rejected")
        window.open_folded()
        window.wait_text("rejected-requests", "<b>bad.json: tables: input should be a valid array")
        window.wait_text("need", "2 things")
        assert window.complaints() == []
        assert window.hosts() == {client.base_url.netloc.decode()}
    window.wait_text("state", "Not reachable")


def chunk_rows_of(window: Browser, dump: str) -> str | None:
    """Open the settings of a dump, and return what its chunks have, as they show before anything is typed."""
    window.click_dump("settings", dump)
    window.wait_shown("settings-dialog")
    shown = window.driver.find_element(By.NAME, "chunk_rows").get_attribute("placeholder")
    window.type(Keys.ESCAPE)
    window.wait_hidden("settings-dialog")
    return shown


def set_for_all(window: Browser, **keys: str) -> None:
    """Open the settings of all dumps, type into its fields by name, and press Enter."""
    window.click("set-all")
    window.wait_shown("settings-dialog")
    for name, typed in keys.items():
        window.driver.find_element(By.NAME, name).send_keys(typed)
    window.type(Keys.ENTER)
    window.wait_hidden("settings-dialog")


@pytest.mark.parametrize("name", PICTURES)
def test_each_state_is_answered_and_read_in_either_light_and_on_a_phone(window: Browser, name: str) -> None:
    with drawn(name) as url:
        window.open(url)
        for element, answer in zip(("state", "lag", "need"), ANSWERS[name], strict=True):
            window.wait_text(element, answer)
        window.open_folded()
        for width, dark in ((WIDE, False), (WIDE, True), (NARROW, True), (NARROW, False)):
            window.show(width=width, dark=dark)
            assert not window.overflows()
            assert window.low_contrast() == []
        complaints = window.complaints()
        assert [said for said in complaints if "409" not in said or name != "nothing_yet"] == []


def test_the_page_asks_for_the_token_refuses_a_wrong_one_and_asks_again_for_buttons(window: Browser) -> None:
    with page_of(shop(rows=3), MemoryStore(), read_token=READ, control_token=CONTROL) as (client, agent):
        window.open(str(client.base_url))
        window.wait_shown("token-form")
        assert not window.shown("answers")
        for token, element, text in (
            ("wrong-token-0123456789", "message", "The agent does not accept this token."),
            (READ, "state", "Running"),
        ):
            window.driver.find_element(By.ID, "token").send_keys(token, Keys.ENTER)
            window.wait_text(element, text)
        window.wait_shown("pause-all")
        window.click("pause-all")
        window.wait_text("message", "Not requested: this token may read only")
        window.wait_shown("token-form")
        window.driver.find_element(By.ID, "token").send_keys(CONTROL, Keys.ENTER)
        window.wait_hidden("token-form")
        window.click("pause-all")
        agent.wait(lambda m: m.dump_control and m.dump_control.pause_new, "new dumps begin paused")
        assert window.driver.get_cookies() == []
        assert all("40" in said for said in window.complaints())  # the refusals alone: 401, 403


def test_everything_is_reached_and_done_by_keyboard(window: Browser) -> None:
    with drawn("steady") as url:
        window.open(url)
        window.wait_dump("nightly-orders", "paused")
        stops = window.tab_stops()
        wanted = [
            "pause-all",
            "resume-all",
            "set-all",
            "dump-all",
            "resume dump nightly-orders of public.orders",
        ]
        assert stops[:5] == wanted
        assert {"Last manifests", "HTTP API", "Metrics"} <= set(stops)
        window.focus("set-all")
        window.type(Keys.ENTER)
        window.wait_shown("settings-dialog")
        window.type(Keys.TAB, "3", Keys.ESCAPE)
        window.wait_hidden("settings-dialog")
        assert window.focused() == "set-all"


def test_what_was_merged_and_verified_of_each_lake_is_shown(window: Browser) -> None:
    with drawn("lagging") as url:
        window.open(url)
        window.wait_text("lakes", "s3a://lake/tables")
        assert "2 behind the newest" in window.text("lakes")
        window.wait_text("verified", "s3a://lake/tables")
        assert "% of the rows" in window.text("verified")
        assert window.text("verified").endswith(" 3")
        assert "in 3 keys when it was last verified" in window.text("problems")
        assert "deltatide verify public." in window.text("problems")
        window.open_folded()
        assert window.text("manifests").splitlines()[0].endswith(" exact")


def test_one_of_a_thousand_tables_is_found_by_its_name(window: Browser) -> None:
    with drawn("thousand") as url:
        window.open(url)
        window.wait_text("tables-text", "1,000 tables; of these, 50 are shown")
        window.focus("filter")
        window.type("part_0999")
        window.wait_text("tables", "part_0999_of_a_table")
        assert len(window.driver.find_elements(By.CSS_SELECTOR, "#tables > tr")) == 1
        assert "290 more" in window.text("more-dumps")


def test_a_standby_says_why_it_shows_nothing_and_the_page_of_the_api_works_offline(window: Browser) -> None:
    store = MemoryStore()
    live = live_agent(store)
    live.stand_by()
    store.fail("folders", times=10**9)
    with client_of(live) as client:
        window.open(str(client.base_url))
        window.wait_text("state-text", "folders failed on purpose")
        window.open(f"{client.base_url}/docs")
        window.wait_text("operations", "POST /api/pause")
        assert (window.complaints(), window.overflows(), window.low_contrast()) == ([], False, [])


def test_what_makes_the_pictures_of_the_readme_is_complete(tmp_path: Path, window: Browser) -> None:
    from tests.screenshots import PAGES, save

    assert set(PAGES) <= set(PICTURES)
    with drawn("steady") as url:
        save(window, url, tmp_path / "x.png", dark=True)
    assert 5_000 < (tmp_path / "x.png").stat().st_size < 120_000
