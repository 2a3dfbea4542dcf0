"""An exhaustive search: every order in which the steps of a small world can happen, up to the world's bounds.

Breadth first, so the trace to a wrong state is one of the shortest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Search:
    """What a search has found: how many states, and the steps to the first that is `wrong`, if any is."""

    states: int
    wrong: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = (f"{number:3d}. {step}" for number, step in enumerate(self.trace, 1))
        return "\n".join([f"{self.states:,} states; {self.wrong or 'nothing is wrong'}", *steps])


def search(
    start: State,
    steps: Callable[[State], Iterable[tuple[str, State]]],
    wrong: Callable[[State], str | None],
    most: int = 300_000,
) -> Search:
    """Visit every state once. `steps`: what can happen next; `wrong`: what must not be, None if all is well.

    Raises `OverflowError` beyond `most` states: a search that is cut short would prove nothing.
    """
    came: dict[State, tuple[str, State] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if (why := wrong(state)) is not None:
            return Search(len(came), why, _trace(came, state))
        for label, new in steps(state):
            if new not in came:
                came[new] = (label, state)
                queue.append(new)
        if len(came) > most:
            raise OverflowError(f"more than {most:,} states")
    return Search(len(came))


def _trace(came: dict[State, tuple[str, State] | None], state: State) -> tuple[str, ...]:
    labels: list[str] = []
    while (step := came[state]) is not None:
        labels.append(step[0])
        state = step[1]
    return tuple(reversed(labels))
