"""Help texts are shown as they are written."""

from __future__ import annotations

import re
from typing import Any

import typer

from connector.cli import app


def test_no_help_text_has_brackets_that_rich_would_take_for_markup() -> None:
    command: Any = typer.main.get_command(app)
    texts = {name: each.help or "" for name, each in command.commands.items()}
    texts |= {
        f"{n} {p.name}": getattr(p, "help", "") or "" for n, c in command.commands.items() for p in c.params
    }
    assert {name: text for name, text in texts.items() if "[" in text} == {}


def test_a_paragraph_of_a_help_text_is_one_line() -> None:
    """Typer keeps line breaks within paragraphs, which would then be wrapped twice."""
    command: Any = typer.main.get_command(app)
    texts = {name: each.help or "" for name, each in command.commands.items()}
    assert any("\n\n" in text for text in texts.values())
    assert {name for name, text in texts.items() if re.search(r"[^\n]\n[^\n]", text)} == set()
