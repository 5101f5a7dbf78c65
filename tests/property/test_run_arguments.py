"""The words of `muster run`: how sources are joined, where values stand, and when a run is to end."""

from __future__ import annotations

import itertools
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.runs import arguments, halting
from muster.coordinator.runs.arguments import Group, Source
from muster.coordinator.runs.halting import HaltRule
from muster.jobs.common.errors import UsageError
from muster.jobs.kinds.command import CommandParams, ItemLine
from muster.jobs.user_code.command_template import line_values

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
SOURCES = st.lists(st.tuples(st.booleans(), st.lists(WORDS, max_size=5)), min_size=1, max_size=4)


def joined(found: list[tuple[bool, list[str]]]) -> arguments.Joined:
    sources = [
        arguments.source(values, linked and number > 0, None, False, ":::")
        for number, (linked, values) in enumerate(found)
    ]
    return arguments.join(sources)


@given(SOURCES)
def test_items_are_all_combinations_and_are_counted_before_they_are_made(found: list[tuple[bool, list[str]]]) -> None:
    blocks: list[list[tuple[str, ...]]] = []
    left_out = 0
    for number, (linked, values) in enumerate(found):
        if linked and number:
            pairs = list(zip(blocks[-1], values))  # noqa: B905 - the longer one is cut, as there
            left_out += abs(len(blocks[-1]) - len(values))
            blocks[-1] = [(*row, value) for row, value in pairs]
        else:
            blocks.append([(value,) for value in values])
    wanted = [tuple(itertools.chain(*rows)) for rows in itertools.product(*blocks)]
    made = joined(found)
    assert list(made.rows()) == wanted and len(made) == len(wanted) and made.left_out == left_out
    assert made.columns == tuple(str(n + 1) for n in range(len(found)))


def test_a_million_items_are_counted_and_none_is_made() -> None:
    thousand = Source([("x",)] * 1000, False)
    assert len(arguments.join([thousand, thousand])) == arguments.ITEMS_LIMIT
    with pytest.raises(UsageError, match=r"1,000 times 1,000 times 1,000 are 1,000,000,000 items"):
        arguments.join([thousand] * 3)


SEPARATORS = st.sampled_from([":::", ":::+", "::::", "::::+"])
PLAIN = st.text("ab{}.", min_size=1, max_size=4)


@given(
    st.lists(PLAIN, max_size=3), st.lists(st.tuples(SEPARATORS, st.lists(PLAIN, min_size=1, max_size=3)), max_size=4)
)
def test_each_word_is_of_the_command_or_of_one_source(command: list[str], given: list[tuple[str, list[str]]]) -> None:
    if given and given[0][0].endswith("+"):
        given[0] = (given[0][0][:-1], given[0][1])
    said = arguments.split([*command, *(word for mark, values in given for word in (mark, *values))])
    wanted: list[Group] = []
    for mark, values in given:
        linked = mark.endswith("+")
        if mark.startswith("::::"):
            wanted += [Group((value,), True, linked) for value in values]
        else:
            wanted.append(Group(tuple(values), False, linked))
    assert said == arguments.Words(" ".join(command), tuple(wanted))


@given(st.lists(WORDS, min_size=1, max_size=4), st.data())
def test_a_value_by_its_number_is_one_word_of_what_a_person_would_type(values: list[str], data: st.DataObject) -> None:
    columns = tuple(str(n + 1) for n in range(len(values)))
    numbers = st.integers(1, len(values)) | st.integers(-len(values), -1)
    chosen = data.draw(st.lists(numbers, max_size=4))
    run = arguments.template(" ".join(["x", *(f"{{{n}}}" for n in chosen)]), columns)
    line = ItemLine.of(CommandParams(run), columns)
    shown = line.run.shown(line_values(dict(zip(columns, values, strict=True)), 1))
    wanted = [values[n - 1 if n > 0 else n] for n in chosen] or values  # without a placeholder: all, at the end
    assert shlex.split(shown) == ["x", *wanted]


@pytest.mark.parametrize(
    ("command", "columns", "wanted"),
    [
        ("echo", ("1", "2"), "echo {1} {2}"),
        ("echo {}", ("1", "2"), "echo {1} {2}"),
        ("echo {.}{/}", ("1", "2"), "echo {1.} {2.}{1/} {2/}"),
        ("echo {2/.} {-2//}", ("a", "b"), "echo {b/.} {a//}"),
        ("echo", ("1",), "echo {1}"),
        ("cat {1} {1.}", (), "cat {} {.}"),
        ("echo {#}", ("1",), "echo {#}"),
        ("train {lr}", ("lr",), "train {lr}"),
        ("awk '{print $1}'", ("1",), "awk '{print $1}' {1}"),
        ("cmd > {out}", (), "cmd > {out} {}"),
    ],
)
def test_placeholders_become_those_of_the_kind(command: str, columns: tuple[str, ...], wanted: str) -> None:
    assert arguments.template(command, columns) == wanted


@pytest.mark.parametrize("command", ["echo {3}", "echo {-3}", "echo {0}", "echo {%}", "echo {= s/a// =}"])
def test_placeholders_that_nothing_has_are_refused(command: str) -> None:
    with pytest.raises(UsageError) as caught:
        arguments.template(command, ("1", "2"))
    assert caught.value.hint


def test_a_command_in_quotes_may_be_followed_by_what_it_returns() -> None:
    said = arguments.split(["gzip -9 < {} > {out}", "--return", "{}.gz", ":::", "a", "b"])
    assert (said.command, said.returned) == ("gzip -9 < {} > {out}", "{}.gz")
    assert arguments.split(["ls", "--return", "x"]).command == "ls --return x"
    for more in ([], ["x", "--results", "kept"], ["x", "-j", "4"]):
        with pytest.raises(UsageError, match="follows --return"):
            arguments.split(["gzip -9 < {} > {out}", "--return", *more, ":::", "a"])


@pytest.mark.parametrize(
    ("records", "wrong"), [(["a,b", "c"], "record 2 has 1 columns"), (["a\0b,c"], "record 1 has a NUL")]
)
def test_records_that_do_not_fit_are_named(records: list[str], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        arguments.source(records, False, re.compile(","), False, "sweep.csv")


@pytest.mark.parametrize(
    ("text", "count", "ends", "at_once"),
    [("1-99%4", 99, ("1", "99"), 4), ("1-9:2", 5, ("1", "9"), None), ("7", 1, ("7", "7"), None),
     ("1,5-6", 3, ("1", "6"), None)],
)  # fmt: skip
def test_arrays_are_read_as_sbatch_reads_them(
    text: str, count: int, ends: tuple[str, str], at_once: int | None
) -> None:
    numbers, most = arguments.array(text)
    assert (len(numbers), (numbers[0], numbers[-1]), most) == (count, ends, at_once)


@pytest.mark.parametrize("text", ["", "a", "5-1", "1-", "1-3%", "1-3%x", "1-3%0", "0-999999999", "1-3:0", "1,,2"])
def test_arrays_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--array"):
        arguments.array(text)


RULES = st.builds(
    HaltRule,
    st.sampled_from(["now", "soon"]),
    st.sampled_from(["fail", "success", "done"]),
    st.integers(1, 100),
    st.booleans(),
)


@given(RULES)
def test_a_rule_is_read_as_it_is_written(rule: HaltRule) -> None:
    assert halting.parse(f"{rule.when},{rule.what}={rule.count}{'%' if rule.share else ''}") == rule


@given(RULES, st.lists(st.booleans(), min_size=1, max_size=200))
def test_once_a_rule_is_met_it_stays_met_and_never_without_an_end_that_it_counts(
    rule: HaltRule, ends: list[bool]
) -> None:
    met = False
    for count in range(len(ends) + 1):
        well = sum(ends[:count])
        now = rule.is_met(count - well, well, len(ends))
        counted = {"fail": count - well, "success": well, "done": count}[rule.what]
        assert now >= met and (counted > 0 or not now)
        met = now
    if rule.what == "done" and rule.share:
        assert met


@pytest.mark.parametrize("text", ["", "soon", "soon,fail=0", "later,fail=1", "now,fail=101%", "1", "now,fail=x"])
def test_rules_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--halt"):
        halting.parse(text)
    assert halting.parse("never") is None
