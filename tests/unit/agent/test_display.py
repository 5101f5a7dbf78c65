"""What a person sees of an agent: no word of a coordinator steers the terminal."""

from __future__ import annotations

import io

from muster.agent.display import StatusLine


def test_the_words_of_a_coordinator_do_not_steer_the_terminal() -> None:
    out = io.StringIO()
    StatusLine(out).say("refused: \x1b[2J\x1b]0;owned\x07 no\u202e")
    assert not set(out.getvalue()) & set("\x1b\x07\u202e")
    assert "refused: " in out.getvalue()
