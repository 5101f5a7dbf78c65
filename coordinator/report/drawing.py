"""The one drawer: values into SVG, for reports and whatever else shows them. Knows no job and no style sheet.

Colours are of Okabe and Ito's palette, which all people can tell apart, and never stand alone: lines differ by dashes,
states by their shade from light to dark, by hatching and by place. All of it is presentation attributes, so that it
reads where style sheets are blocked; the classes `ink`, `faint` and `shade0` … let a dark page turn them round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, isfinite, log10
from typing import Any

from markupsafe import Markup

from muster.coordinator.display.tables import short
from muster.coordinator.report.markup import joined, number, tag
from muster.coordinator.report.ticks import UNITS, log_ticks, plain, round_ticks
from muster.jobs.contract.pictures import Bars, Curves, Histogram, Parallel, Picture, Points

BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY)
DASHES = (None, "7 3", "2 2", "9 3 2 3", "1 3", "5 5")
SHADES = ("#eef3f8", "#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08519c")  # from nothing to all
INK, FAINT = "#222222", "#8a8a8a"
WIDTH, HEIGHT = 860, 250
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 22, 40
FONT = 11
POINTS_MOST = 400  # of a line
LABEL_CHARS = 26
EDGE = 40  # pixels at the right, where words end and do not begin

NARROW = 2.0  # from the lowest value to the highest: of less, bars take half of a logarithmic axis
Scale = Callable[[float], float]


def picture(what: Picture) -> Markup | None:
    """A kind's picture; None for what is a table."""
    drawers: dict[type, Callable[[Any], Markup]]
    drawers = {Curves: curves, Histogram: histogram, Bars: bars, Parallel: parallel}
    draw = drawers.get(type(what))
    return draw(what) if draw else None


def drawing(width: float, height: float, title: str, *content: object) -> Markup:
    """A picture with its name for who cannot see it."""
    return tag(
        "svg", tag("title", title), *content, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:g} {height:g}",
        width=width, height=height, role="img", font_family="system-ui, sans-serif", font_size=FONT,
    )  # fmt: skip


def label(x: float, y: float, text: str, anchor: str = "start", colour: str = INK, **more: object) -> Markup:
    kind = "ink" if colour == INK else "faint" if colour == FAINT else None
    return tag("text", text, x=x, y=y, text_anchor=anchor, fill=colour, class_=kind, **more)


def line(x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, **more: object) -> Markup:
    kind = "faint-line" if colour == FAINT else "ink-line" if colour == INK else None
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, class_=kind, **more)


# --- axes -----------------------------------------------------------------------------------------------------


def _scale(low: float, high: float, begin: float, end: float, log: bool = False) -> Scale:
    if log:
        low, high = log10(low), log10(high)
    span = (high - low) or 1.0
    return lambda value: begin + (end - begin) * (((log10(value) if log else value) - low) / span)


def _frame(
    x: Scale, y: Scale, xs: Sequence[float], ys: Sequence[float], x_name: str, y_name: str,
    shown: Callable[[float], str] = plain,
) -> Markup:  # fmt: skip
    """Grid, ticks and names of two axes."""
    right, base = WIDTH - RIGHT, HEIGHT - BOTTOM
    rows = [
        joined(
            line(LEFT, y(value), right, y(value), stroke_opacity=0.35),
            label(LEFT - 6, y(value) + 4, plain(value), "end"),
        )
        for value in ys
    ]
    columns = [_tick(x(value), base + 15, shown(value)) for value in xs]
    names = label((LEFT + right) / 2, HEIGHT - 8, x_name, "middle"), label(4, 10, y_name, colour=FAINT)
    return joined(*rows, *columns, line(LEFT, base, right, base, INK), *names)


def _tick(x: float, y: float, text: str) -> Markup:
    """Below its place; what would reach beyond the picture ends there."""
    return label(x, y, text, "middle") if x < WIDTH - EDGE else label(min(x + RIGHT, WIDTH), y, text, "end")


# --- pictures of any numbers ----------------------------------------------------------------------------------


def curves(what: Curves) -> Markup:
    """Lines, told apart by colour and by dashes, each named in the legend below."""
    kept = [(name, _thinned(points)) for name, points in what.curves]
    kept = [(name, points) for name, points in kept if points]
    if not kept:
        return _empty(what.title)
    xs = [x for _, points in kept for x, _ in points]
    ys = [y for _, points in kept for _, y in points]
    low, high = _range(ys)
    x = _scale(min(0.0, *xs), max(xs) or 1.0, LEFT, WIDTH - RIGHT)
    y = _scale(low, high, HEIGHT - BOTTOM, TOP)
    drawn = []
    for i, (_, points) in enumerate(kept):
        path = _stepped(points, x, y) if what.steps else " ".join(f"{number(x(a))},{number(y(b))}" for a, b in points)
        drawn.append(tag("polyline", points=path, fill="none", **_look(i)))
        if len(points) == 1:
            drawn.append(tag("circle", cx=x(points[0][0]), cy=y(points[0][1]), r=3, fill=COLOURS[i % len(COLOURS)]))
    frame = _frame(x, y, round_ticks(min(0.0, *xs), max(xs) or 1.0, 8), round_ticks(low, high), what.x, what.y)
    legend, more = _legend([name for name, _ in kept])
    return drawing(WIDTH, HEIGHT + more, what.title, frame, *drawn, legend)


def _look(i: int) -> dict[str, object]:
    dashes = DASHES[(i + i // len(COLOURS)) % len(DASHES)]  # no two of thirty-six look the same
    return {"stroke": COLOURS[i % len(COLOURS)], "stroke_width": 1.8, "stroke_dasharray": dashes}


def _stepped(points: Points, x: Scale, y: Scale) -> str:
    found, before = [], None
    for a, b in points:
        if before is not None:
            found.append(f"{number(x(a))},{number(y(before))}")
        found.append(f"{number(x(a))},{number(y(b))}")
        before = b
    return " ".join(found)


def _legend(names: Sequence[str]) -> tuple[Markup, int]:
    """Of lines, below the picture; with its height."""
    if len(names) == 1 and not names[0]:
        return Markup(""), 0
    lines = [
        (lambda x, y, i=i: tag("line", x1=x, y1=y + 5, x2=x + 24, y2=y + 5, **_look(i)), short(name, LABEL_CHARS))
        for i, name in enumerate(names)
    ]
    return _named(lines, LEFT, HEIGHT + 5, 196, 29)


Sign = Callable[[float, float], Markup]


def _named(signs: Sequence[tuple[Sign, str]], left: float, top: float, wide: int, beside: int) -> tuple[Markup, int]:
    """Signs with their names `beside` them, four to a row of so `wide` columns; with the height of all."""
    drawn = []
    for i, (sign, name) in enumerate(signs):
        x, y = left + (i % 4) * wide, top + 16 * (i // 4)
        drawn += [sign(x, y), label(x + beside, y + 9, name)]
    return joined(*drawn), 8 + 16 * ceil(len(signs) / 4)


def histogram(what: Histogram) -> Markup:
    """Bars; of several series as outlines over each other, each of them as parts of its own whole."""
    kept = [(name, [bar for bar in bars if bar[2]]) for name, bars in what.series]
    kept = [(name, bars) for name, bars in kept if bars]
    if not kept:
        return _empty(what.title)
    low, high = min(bars[0][0] for _, bars in kept), max(bars[-1][1] for _, bars in kept)
    log = what.log and low > 0
    are_whole = all(b - a == 1 for _, bars in kept for a, b, _ in bars)
    if log and high < NARROW * low:
        low, high = low * (low / high) ** 0.5, high * (high / low) ** 0.5
    elif are_whole or not high > low:
        low, high = low - 0.5, high + 0.5
    shares = len(kept) > 1
    tops = [max(count for *_, count in bars) / (sum(c for *_, c in bars) if shares else 1) for _, bars in kept]
    most = max(tops) * (1.1 if what.marks else 1.0)  # names of marks stand above all bars
    x, y = _scale(low, high, LEFT, WIDTH - RIGHT, log), _scale(0, most, HEIGHT - BOTTOM, TOP)
    drawn = []
    for i, (_, bars_) in enumerate(kept):
        whole = sum(count for *_, count in bars_) if shares else 1
        path = "".join(_bar(x(a), x(b), y(0), y(count / whole)) for a, b, count in bars_)
        fill = {"fill": "none", **_look(i)} if shares else {"fill": BLUE}
        drawn.append(tag("path", d=path, **fill))
    drawn += _marks([(name, x(value)) for name, value in what.marks if low <= value <= high])
    ticks = log_ticks(low, high, what.unit) if log else round_ticks(low, high, 8)
    ticks = [one for one in ticks if one == round(one)] if are_whole else ticks
    counts = round_ticks(0, max(tops), 4)
    frame = _frame(x, y, ticks, counts, what.x, "share" if shares else "count", UNITS[what.unit])
    legend, more = _legend([name for name, _ in kept]) if shares else (Markup(""), 0)
    return drawing(WIDTH, HEIGHT + more, what.title, frame, *drawn, legend)


def _marks(places: Sequence[tuple[str, float]]) -> list[Markup]:
    """Dashed lines from top to bottom with names; those that stand close to each other share one."""
    drawn = [line(x, TOP, x, HEIGHT - BOTTOM, VERMILION, stroke_dasharray="4 3") for _, x in places]
    groups: list[tuple[list[str], float]] = []
    for name, x in places:
        if groups and x - groups[-1][1] < EDGE:
            groups[-1][0].append(name)
        else:
            groups.append(([name], x))
    for names, x in groups:
        is_last = x > WIDTH - RIGHT - EDGE * len(names)
        drawn.append(label(x + (-3 if is_last else 3), TOP + 9, ", ".join(names), "end" if is_last else "start"))
    return drawn


def _bar(left: float, right: float, base: float, top: float) -> str:
    width = max(1.0, right - left - 0.5)
    return f"M{number(left)} {number(base)}V{number(top)}h{number(width)}V{number(base)}z"


def bars(what: Bars) -> Markup:
    """Lying bars, each with its number."""
    if not what.bars:
        return _empty(what.title)
    most = max((value for _, value in what.bars), default=0.0) or 1.0
    left, each = 230, 18
    drawn = []
    for i, (name, value) in enumerate(what.bars):
        top, width = 4 + i * each, (WIDTH - left - 110) * max(0.0, value) / most
        drawn += [
            label(left - 6, top + 11, short(name, 34), "end"),
            tag("rect", x=left, y=top, width=max(1.0, width), height=each - 5, fill=BLUE),
            label(left + width + 6, top + 11, f"{plain(value)} {what.unit}"),
        ]
    return drawing(WIDTH, 8 + each * len(what.bars), what.title, *drawn)


def parallel(what: Parallel) -> Markup:
    """Trials as lines over axes; the better, the darker and the later drawn."""
    if not what.lines or not what.axes:
        return _empty(what.title)
    top, base, step = 26, HEIGHT - 24, (WIDTH - 2 * LEFT) / max(1, len(what.axes) - 1)
    drawn = []
    for i, (name, low, high) in enumerate(what.axes):
        left = LEFT + i * step
        drawn += [
            line(left, top, left, base, INK),
            label(left, 10, short(name, 18), "middle"),
            label(left, top - 4, short(high, 16), "middle", FAINT),
            label(left, base + 13, short(low, 16), "middle", FAINT),
        ]
    for places, good in sorted(what.lines, key=lambda one: one[1]):
        points = [(LEFT + i * step, base - (base - top) * at) for i, at in enumerate(places) if at is not None]
        path = " ".join(f"{number(a)},{number(b)}" for a, b in points)
        shade = min(len(SHADES) - 1, 1 + int(good * (len(SHADES) - 1)))
        drawn.append(
            tag("polyline", points=path, fill="none", stroke=SHADES[shade], stroke_width=1 + 1.5 * good,
                class_=f"line{shade}")
        )  # fmt: skip
    return drawing(WIDTH, HEIGHT, what.title, *drawn)


def _empty(title: str) -> Markup:
    return drawing(WIDTH, 28, title, label(LEFT, 18, "nothing yet", colour=FAINT))


def _thinned(points: Points) -> list[tuple[float, float]]:
    finite = [(a, b) for a, b in points if isfinite(a) and isfinite(b)]
    step = max(1, -(-len(finite) // POINTS_MOST))
    return finite[(len(finite) - 1) % step :: step] if finite else []


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        return low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1
    return (0.0, high) if 0 <= low < high * 0.5 else (low, high)


# --- small ones, for a place in a table -------------------------------------------------------------------------


def spark(values: Sequence[float | None], width: int = 90, height: int = 16) -> Markup:
    """A line without axes, from 0 to its own highest; None is a gap. The number beside it says what it is."""
    most = max((one for one in values if one is not None), default=0.0) or 1.0
    step = width / max(1, len(values) - 1)
    runs: list[list[str]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{round(i * step)},{round((height - 2) * (1 - value / most)) + 1}")
    lines = [
        tag("polyline", points=" ".join(run if len(run) > 1 else [*run, *run]), fill="none", stroke=BLUE)
        for run in runs
        if run
    ]
    return tag("svg", *lines, viewBox=f"0 0 {width} {height}", width=width, height=height, class_="spark")


def meter(parts: Sequence[tuple[float, str]], title: str, width: int = 140, height: int = 12) -> Markup:
    """A bar in parts of all of it, each with its fill; what is left is empty."""
    whole, left, drawn = sum(part for part, _ in parts) or 1.0, 0.0, list[Markup]()
    for part, fill in parts:
        wide = width * part / whole
        if wide > 0:
            drawn.append(tag("rect", x=left, y=0, width=wide, height=height, fill=fill))
        left += wide
    edge = tag("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, fill="none", stroke=FAINT)
    return tag("svg", tag("title", title), *drawn, edge, viewBox=f"0 0 {width} {height}", width=width, height=height,
               role="img", class_="meter")  # fmt: skip


# --- machines over time, shards in their order ----------------------------------------------------------------------

ROW = 17  # pixels of a machine
STRIP_LEFT = 150
HATCH = Markup(
    '<defs><pattern id="absent" width="5" height="5" patternUnits="userSpaceOnUse"><path d="M0 5L5 0" stroke="#8a8a8a"'
    ' stroke-width="0.7" fill="none"/></pattern>'
    '<pattern id="paused" width="4" height="4" patternUnits="userSpaceOnUse">'
    '<circle cx="2" cy="2" r="0.8" fill="#8a8a8a"/></pattern></defs>'
)


@dataclass(frozen=True)
class StripRow:
    """One machine, or layer, or a group of some, cell by cell."""

    name: str
    levels: Sequence[float | None]  # 0 to 1: how much of what there is; None where there is nothing
    dotted: Sequence[bool] = ()  # of what has no level, whether it is there all the same
    orange: Sequence[bool] = ()
    green: Sequence[bool] = ()
    failed: Sequence[bool] = ()
    signs: Sequence[tuple[float, str]] = ()  # places, in cells, each with its sign


def strip(
    rows: Sequence[StripRow], ticks: Sequence[tuple[float, str]], lines: Sequence[float], scale: str, title: str
) -> Markup:
    """Rows of cells, each shaded by its level. `ticks` and dashed `lines` stand at shares of the width; `scale` says
    what the darkest or, in the dark, the lightest shade is."""
    if not rows:
        return _empty(title)
    space, height = WIDTH - STRIP_LEFT - RIGHT, ROW * len(rows)
    drawn: list[Markup] = [HATCH]
    runs: dict[str, list[str]] = {}
    for i, row in enumerate(rows):
        top, wide = i * ROW, space / len(row.levels)
        drawn.append(label(STRIP_LEFT - 6, top + 11, short(row.name, 22), "end"))
        _add_runs(runs, [_fill(row, cell) for cell in range(len(row.levels))], top + 1.0, ROW - 7.0, wide)
        _add_runs(runs, [ORANGE if one else None for one in row.orange], top + ROW - 5.5, 1.8, wide)
        _add_runs(runs, [GREEN if one else None for one in row.green], top + ROW - 3.2, 1.8, wide)
    for fill, paths in runs.items():
        drawn.append(tag("path", d="".join(paths), fill=fill, class_=_shade(fill)))
    for i, row in enumerate(rows):
        wide = space / len(row.levels)
        for at, sign in [*((cell + 0.5, "▲") for cell, one in enumerate(row.failed) if one), *row.signs]:
            small: dict[str, object] = {"font_size": 8} if sign == "▲" else {"font_weight": "bold"}
            colour = VERMILION if sign == "▲" else INK
            drawn.append(label(STRIP_LEFT + at * wide, i * ROW + 10, sign, "middle", colour, **small))
    for share in lines:
        place = STRIP_LEFT + share * space
        drawn.append(line(place, 0, place, height, INK, stroke_dasharray="2 3"))
    for share, name in ticks:
        place = STRIP_LEFT + share * space
        drawn += [line(place, height, place, height + 4, INK), _tick(place, height + 16, name)]
    return drawing(WIDTH, height + 40, title, *drawn, _scale_of_shades(scale, height + 26))


def _scale_of_shades(name: str, top: float) -> Markup:
    boxes = [
        tag("rect", x=STRIP_LEFT + 34 + 18 * i, y=top, width=18, height=10, fill=fill, class_=_shade(fill))
        for i, fill in enumerate(SHADES)
    ]
    left = STRIP_LEFT + 40 + 18 * len(SHADES)
    return joined(label(STRIP_LEFT, top + 9, "none"), *boxes, label(left, top + 9, name))


def _shade(fill: str) -> str | None:
    """What a dark page turns round."""
    return f"shade{SHADES.index(fill)}" if fill in SHADES else None


def _fill(row: StripRow, cell: int) -> str:
    level = row.levels[cell]
    if level is None:
        return "url(#paused)" if row.dotted and row.dotted[cell] else "url(#absent)"
    return SHADES[min(len(SHADES) - 1, round(level * (len(SHADES) - 1)))]


def _add_runs(into: dict[str, list[str]], fills: Sequence[str | None], top: float, height: float, wide: float) -> None:
    """Neighbours of one fill are one rectangle, all rectangles of a fill one path."""
    begin = 0
    for column in range(1, len(fills) + 1):
        if column == len(fills) or fills[column] != fills[begin]:
            if (fill := fills[begin]) is not None:
                left, width = STRIP_LEFT + begin * wide, (column - begin) * wide
                into.setdefault(fill, []).append(
                    f"M{number(left)} {number(top)}h{number(width)}v{number(height)}h-{number(width)}z"
                )
            begin = column


def stacked(rows: Sequence[tuple[str, Sequence[float]]], kinds: Sequence[tuple[str, str]], title: str) -> Markup:
    """A bar a row, in parts that add up to all of it. `kinds`: what each part is, and its fill."""
    if not rows:
        return _empty(title)
    wide, drawn = WIDTH - STRIP_LEFT - RIGHT, [HATCH]
    for i, (name, parts) in enumerate(rows):
        left, whole = float(STRIP_LEFT), sum(parts)
        drawn.append(label(STRIP_LEFT - 6, i * ROW + 12, short(name, 22), "end"))
        for part, (_, fill) in zip(parts, kinds, strict=True):
            width = wide * part / whole if whole else 0.0
            if width >= 0.3:
                drawn.append(_box(left, i * ROW + 2, width, ROW - 4, fill))
            if width > 34:
                drawn.append(label(left + 3, i * ROW + 12, f"{part / whole:.0%}", colour=ink_on(fill)))
            left += width
    boxes = [(lambda x, y, fill=fill: _box(x, y, 12, 10, fill), name) for name, fill in kinds]
    legend, more = _named(boxes, STRIP_LEFT, ROW * len(rows) + 8, 172, 17)
    return drawing(WIDTH, ROW * len(rows) + 4 + more, title, *drawn, legend)


def _box(x: float, y: float, width: float, height: float, fill: str) -> Markup:
    """The lightest shade is turned round in the dark, and what stands on it."""
    kind = _shade(fill) if fill == SHADES[0] else None
    return tag("rect", x=x, y=y, width=width, height=height, fill=fill, stroke=FAINT, stroke_width=0.5, class_=kind)


def ink_on(fill: str) -> str:
    """Black or white, whichever can be read there."""
    if not fill.startswith("#") or fill == SHADES[0]:
        return INK
    parts = [int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return "#000000" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 else "#ffffff"


def budgets(rows: Sequence[tuple[str, float, float, str]], mark: float | None, title: str) -> Markup:
    """A bar a row against what there is: name, how much, of how much, and that in words; `mark`: what was asked for."""
    if not rows:
        return _empty(title)
    most = max([max(much, there) for _, much, there, _ in rows] + [mark or 0.0]) or 1.0
    wide, drawn = WIDTH - STRIP_LEFT - 150, list[Markup]()
    for i, (name, much, there, said) in enumerate(rows):
        top = i * ROW + 2
        drawn += [
            label(STRIP_LEFT - 6, top + 10, short(name, 22), "end"),
            tag("rect", x=STRIP_LEFT, y=top, width=wide * there / most, height=ROW - 4, fill="none", stroke=FAINT),
            tag("rect", x=STRIP_LEFT, y=top + 2, width=wide * much / most, height=ROW - 8, fill=BLUE),
            label(STRIP_LEFT + wide * max(much, there) / most + 6, top + 10, said),
        ]
    if mark:
        place = STRIP_LEFT + wide * mark / most
        drawn.append(line(place, 0, place, ROW * len(rows), VERMILION, stroke_dasharray="4 3"))
    return drawing(WIDTH, ROW * len(rows) + 4, title, *drawn)
