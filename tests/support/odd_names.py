"""File names that trip up what quotes, splits or sorts carelessly. All are good names."""

from __future__ import annotations

from pathlib import Path

ODD_NAMES = (
    "-rf",
    "--help.jpg",
    "a b  c.jpg",
    " leading and trailing ",
    "line\nbreak.txt",
    "tab\there",
    "it's.jpg",
    'say "hi".jpg',
    "back\\slash",
    "$(touch pwned)",
    "`id`;&|<>*?[x]{}",
    "{}.png",
    "#%!~=,@+",
    "ünïcödé-日本語-🎉.jpg",
    "e\u0301 combining",
    "Case",
    "case",
    "x" * 255,
    "sub/.hidden dir/deep.txt",
    "sub/a",
    "sub-a",
    "sub.a",
    "sub/-n",
    "\x01\x7f control",
    "\u202eright to left",
)


def fill(folder: Path) -> dict[str, bytes]:
    """A file of each name, one of them empty; what is in each."""
    contents = {name: f"{i}:{name}".encode() for i, name in enumerate(ODD_NAMES)} | {"empty": b""}
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return contents
