"""The job file: what is read, and that whatever is wrong is said with its place and the nearest right name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.jobs.common.errors import JobFileError
from muster.jobs.job_file import yaml_text
from muster.jobs.job_file.read import FILE_LIMIT, CodeSpec, JobFile, parse_job, read_job_file
from muster.jobs.kinds import registry
from tests.support import tiny

HEAD = "name: weights\nkind: tiny\nsource: weights/\n"


@pytest.fixture(autouse=True)
def tiny_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load", tiny.load)


def parse(more: str = "", head: str = HEAD) -> JobFile:
    return parse_job(head + more, "job.yaml")


def refused(more: str = "", head: str = HEAD) -> JobFileError:
    with pytest.raises(JobFileError) as caught:
        parse(more, head)
    assert caught.value.message.startswith("job.yaml")
    assert "\n" not in caught.value.message + (caught.value.hint or "")
    assert len(caught.value.message) < 400
    return caught.value


def test_the_least_that_is_needed() -> None:
    job = parse()
    assert (job.name, job.kind, job.attempts, job.max_failures, job.priority) == ("weights", "tiny", 3, 20, 1)
    assert job.source is not None
    assert job.source.path == "weights/"
    assert job.shard.is_auto
    assert (job.resources.cpus, job.resources.memory, job.timeout, job.env, job.code) == (1, None, None, None, None)
    assert job.params == {"n_clusters": 8, "tol": 1.0, "inner": {"start": "density"}, "named": None}


def test_all_that_is_wrong_is_said_at_once_each_with_its_line() -> None:
    error = refused("shard: {rowz: 3}\nattempts: none\npriority: 0\nparams: {n_cluster: 2}\nresorces: {}\n")
    told = [*error.earlier, error.message]
    wrong = {"shard.rowz": 4, "attempts": 5, "priority": 6, "params.n_cluster": 7, "resorces": 8}
    assert {line.split(": ")[1]: line.split(": ")[0] for line in told} == {
        path: f"job.yaml:{number}" for path, number in wrong.items()
    }


def test_a_kind_that_is_not_there_is_said_with_the_rest() -> None:
    error = refused(head="name: a\nkind: tinny\nsource: w\n", more="attempts: none\n")
    assert [said.partition(":")[2] for said in (*error.earlier, error.message)] == [
        "4: attempts: expected a whole number, got text",
        "2: kind: there is no kind 'tinny'",
    ]


def test_what_follows_from_another_error_is_not_said() -> None:
    assert refused("shard: {rows: x}\n").earlier == ()
    assert refused(head="name: a b\nkind: tiny\nsource: w\n", more="attempts: x\n").earlier != ()
    assert refused(head="name: a\nkind: 3\n").earlier == ()
    assert refused("retries: 3\n").earlier == ()  # like `resources`, of which nobody spoke
    misspelt = refused(head="name: a\nkind: tiny\nsorce: {pth: w}\n")
    told = [tuple(said.split(": ")[:2]) for said in (*misspelt.earlier, misspelt.message)]
    assert told == [("job.yaml:3", "sorce"), ("job.yaml:3", "source.pth")]


def test_a_misspelt_path_names_the_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(HEAD)
    with pytest.raises(JobFileError, match="cannot be read") as raised:
        read_job_file(tmp_path / "job.yml")
    assert raised.value.hint == f"did you mean {tmp_path / 'job.yaml'}?"


def test_everything() -> None:
    job = parse(
        "source: {path: w.bin, layers: ['w*'], dtype: <f4, shape: [-1, 65536]}\n"
        "shard: {rows: 17}\nresources: {cpus: 2, memory: 2GiB, disk: 1.5GiB}\nparams: {n_clusters: 128, tol: 1e-4}\n"
        "env: torch\nattempts: 5\ntimeout: 1h30m\nmax_failures: 7\npriority: 9\n",
        "name: 'a-1'\nkind: tiny\n",
    )
    assert job.source is not None
    assert (job.source.dtype, job.source.shape, job.source.layers) == ("<f4", [-1, 65536], ["w*"])
    assert (job.shard.rows, job.shard.size) == (17, None)
    assert (job.resources.cpus, job.resources.memory, job.resources.disk) == (2, 2 << 30, 3 << 29)
    assert job.params["n_clusters"] == 128
    assert job.params["tol"] == 1e-4
    assert (job.env, job.attempts, job.timeout, job.max_failures, job.priority) == ("torch", 5, 5400.0, 7, 9)


def test_a_pattern_is_of_arrays() -> None:
    job = parse('source: {path: w, pattern: "**/*.f32"}\n', "name: a\nkind: tiny\n")
    assert job.source is not None and job.source.pattern == "**/*.f32"
    head = "name: a\nkind: tiny\n"
    assert "are of arrays" in refused('source: {files: "*.f32", pattern: "*"}\n', head=head).message
    assert "cannot be printed" in refused('source: {path: w, pattern: "a\\x01"}\n', head=head).message


def test_code_is_short_or_long() -> None:
    head = "name: a\nkind: coded\nsource: w\n"
    assert parse("code: work.py:embed\n", head).code == CodeSpec("work.py:embed")
    long = parse("code: {entry: 'lib/work.py:embed', include: ['lib/*.py']}\n", head)
    assert long.code == CodeSpec("lib/work.py:embed", ["lib/*.py"])


def test_a_driven_kind_needs_no_source() -> None:
    assert parse("", "name: a\nkind: driven\n").source is None


@pytest.mark.parametrize("line", ["source: weights", "shard: {rows: 3}"])
def test_a_kind_without_sources_takes_none(line: str) -> None:
    with pytest.raises(JobFileError, match=line.partition(" ")[0] + " kind `sourceless`"):
        parse(line, "name: a\nkind: sourceless\n")


def test_one_number_has_one_spelling() -> None:
    assert parse("params: {tol: 1}").params == parse("params: {tol: 1.0}").params == parse().params
    assert all(type(parse(more).params["tol"]) is float for more in ["", "params: {tol: 1}", "params: {tol: '1'}"])


WRONG = [
    ("shard: {sise: 1MiB}", "job.yaml:4: shard.sise: unknown field; did you mean `size`?"),
    ("atempts: 3", "job.yaml:4: atempts: unknown field; did you mean `attempts`?"),
    ("qqqq: 3", "job.yaml:4: qqqq: unknown field"),
    ("params: {n_cluster: 3}", "job.yaml:4: params.n_cluster: unknown field; did you mean `n_clusters`?"),
    ("params:\n  inner:\n    strat: 1", "job.yaml:6: params.inner.strat: unknown field; did you mean `start`?"),
    ("params: {n_clusters: many}", "job.yaml:4: params.n_clusters: expected a whole number, got text"),
    ("params: {n_clusters: 0}", "job.yaml:4: params.n_clusters: expected a whole number >= 1"),
    (
        "params: {inner: {start: densty}}",
        "params.inner.start: expected one of density, random, got 'densty'; did you mean `density`?",
    ),
    ("params: {inner: {start: [[1, x]]}}", "params.inner.start[0][1]: expected a number, got text"),
    ("params: {named: {a: {strat: x}}}", "params.named[...].strat: unknown field; did you mean `start`?"),
    ("params: [1]", "job.yaml:4: params: expected a mapping, got a list"),
    ("params: {n_clusters: 99999999999999999999999}", "job.yaml:4: params: a whole number beyond 64 bits"),
    ("shard: {size: 1MiB, rows: 3}", "job.yaml:4: shard: expected exactly one of `size` and `rows`"),
    ("shard: {}", "job.yaml:4: shard: expected exactly one of `size` and `rows`"),
    ("shard: {size: 0}", "job.yaml:4: shard.size: expected a size from 1 byte"),
    ("shard: {size: big}", "job.yaml:4: shard.size: expected a size such as 128MiB"),
    ("shard: atuo", "job.yaml:4: shard: expected `auto`, or how a layer is cut, got 'atuo'"),
    ("shard: {rows: 0}", "job.yaml:4: shard.rows: expected a whole number >= 1"),
    ("shard: 3", "job.yaml:4: shard: expected a mapping, got a whole number"),
    ("shard:", "job.yaml:4: shard: expected a mapping, got nothing"),
    ("resources: {memory: lots}", "job.yaml:4: resources.memory: expected a size such as"),
    ("variables: {1x: a}", "job.yaml:4: variables: '1x' cannot be a variable of an environment"),
    ("flush: soon", "job.yaml:4: flush: "),
    ("at_once: 0", "job.yaml:4: at_once: expected"),
    ("resources: {disk: -1}", "job.yaml:4: resources.disk: expected"),
    ("resources: {cpus: 0}", "job.yaml:4: resources.cpus: expected a whole number >= 1"),
    ("resources: {cpu: 1}", "job.yaml:4: resources.cpu: unknown field; did you mean `cpus`?"),
    ("timeout: soon", "job.yaml:4: timeout: expected a duration such as 90s"),
    ("timeout: 0", "job.yaml:4: timeout: expected a duration above 0"),
    ("attempts: 0", "job.yaml:4: attempts: expected a whole number >= 1"),
    ("attempts: true", "job.yaml:4: attempts: expected a whole number, got true or false"),
    ("same_kernels: yes", "job.yaml:4: same_kernels: expected"),
    ("same_kernels: required", "job.yaml:4: same_kernels: expected"),
    ("priority: 0", "job.yaml:4: priority: expected a whole number >= 1"),
    ("env: 3", "job.yaml:4: env: expected text, got a whole number"),
    ("code: work.py:f", "job.yaml:4: code: kind `tiny` runs no code of yours"),
    ("name: again", "job.yaml:4: 'name' is there twice"),
    ("shard: {size: 1, size: 2}", "job.yaml:4: 'size' is there twice"),
    ("1: x", "job.yaml:4: a key that is not text"),
    ("? [a]\n: x", "job.yaml:4: a key that is not text"),
    ("shard: {size: 1", "not YAML: "),
    ("\tx: 1", "not YAML: "),
    ("x: !!python/object:os.system {}", "not YAML: could not determine a constructor"),
    ("x: *gone", "not YAML: found undefined alias"),
    ("---\nname: b", "not YAML: but found another document"),
]


@pytest.mark.parametrize(("more", "message"), WRONG)
def test_what_is_wrong_is_said(more: str, message: str) -> None:
    error = refused(more + "\n")
    assert any(message in said for said in (*error.earlier, error.message))


SOURCES = [
    ("source: {path: ''}", "source.path: expected text of length >= 1"),
    ("source: {layers: [a]}", "source.path: missing"),
    ("source: [a]", "source: expected a mapping, got a list"),
    ("source: {path: a, layers: 'c*'}", "source.layers: expected a list, got text"),
    ("source: {path: a, layers: []}", "source.layers: expected a list of length >= 1"),
    ('source: {path: a, layers: ["a\\nb"]}', "source.layers[0]: 'a\\nb' holds a character"),
    ('source: {path: "a\\0b"}', "source.path: 'a\\x00b' holds a character"),
    ("source: {path: a, dtype: <f4}", "source.shape: missing: raw binary needs both"),
    ("source: {path: a, shape: [3]}", "source.dtype: missing: raw binary needs both"),
    ("source: {path: a, dtype: complex64, shape: [3]}", "source.dtype: expected something like float32"),
    ("source: {path: a, dtype: object, shape: [3]}", "source.dtype: expected something like float32"),
    ("source: {path: a, dtype: <f4, shape: [3, -1]}", "source.shape[1]: expected 1 or more, got -1"),
    ("source: {path: a, dtype: <f4, shape: [0]}", "source.shape[0]: expected 1 or more, or -1 for as many"),
    ("source: {path: a, dtype: <f4, shape: [-2]}", "source.shape[0]: expected 1 or more, or -1 for as many"),
    ("source: {path: a, dtype: <f4, shape: []}", "source.shape: expected a list of length >= 1"),
    ("source: {path: a, dtype: <f4, shape: [-1, 9000000000, 9000000000]}", "source.shape: a row is larger"),
    ("", "source: missing: kind `tiny` computes on rows"),
]


@pytest.mark.parametrize(("source", "message"), SOURCES)
def test_sources(source: str, message: str) -> None:
    assert message in refused(source + "\n", "name: a\nkind: tiny\n").message


ENTRIES = [
    "work.py",
    "work:f",
    "'work.py:'",
    ":f",
    "/x/work.py:f",
    "../work.py:f",
    "a/../../w.py:f",
    "w.py:f()",
    "w.py:f;g",
    '"w.py:f\\n"',
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_entries(entry: str) -> None:
    assert "code.entry: " in refused(f"code: {entry}\n", "name: a\nkind: coded\nsource: w\n").message


def test_code_may_be_needed() -> None:
    assert "code: missing: kind `coded`" in refused("", "name: a\nkind: coded\nsource: w\n").message


@pytest.mark.parametrize("name", ['"a/b"', '".."', "a.b", '"a\\n"', "x" * 300, '""', "é", '"$(id)"'])
def test_job_names(name: str) -> None:
    error = refused("", f"name: {name}\nkind: tiny\nsource: w\n")
    assert "job.yaml:1: name: " in error.message
    assert "letters, digits" in (error.hint or "")


@pytest.mark.parametrize("name", ["12", "true", "1.5"])
def test_a_name_that_yaml_takes_for_something_else(name: str) -> None:
    assert refused("", f"name: {name}\nkind: tiny\nsource: w\n").hint == "write it in quotes"


def test_a_date_is_a_name() -> None:
    assert parse("", "name: 2024-01-01\nkind: tiny\nsource: w\n").name == "2024-01-01"


def test_an_unknown_kind() -> None:
    error = refused("", "name: a\nkind: tinny\nsource: w\n")
    assert (error.message, error.hint) == ("job.yaml: kind: there is no kind 'tinny'", "kinds here: tiny")


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "text\n", "3\n", "null\n"])
def test_not_a_job_at_all(text: str) -> None:
    assert "a job file is a mapping of fields" in refused("", text).message


@pytest.mark.parametrize("text", ["{}", "name: a\n", "kind: tiny\n"])
def test_missing_fields(text: str) -> None:
    error = refused("", text)
    assert any("missing: this field must be given" in said for said in (*error.earlier, error.message))


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{', '.join(['*' + chr(97 + i)] * 9)}]}}\n" for i in range(12)
)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n",
        "a: &a {b: *a}\n",
        BOMB,
        MERGED,
        "[" * 100_000,
        "- " * 100_000,
        "{a: " * 50_000,
        "[" * 500_000 + "]" * 500_000,
    ],
    ids=["cycle", "mapping-cycle", "bomb", "merged-bomb", "open", "dashes", "mappings", "closed"],
)
def test_bombs(text: str) -> None:
    error = refused("", text)
    assert "nested deeper" in error.message or "not YAML" in error.message


def test_aliases_and_merges_work() -> None:
    job = parse("params: &p {n_clusters: 3}\n")
    assert job.params["n_clusters"] == 3
    merged = yaml_text.load("base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\n", "job.yaml")
    assert merged.value["more"] == {"x": 1, "y": 3}


@pytest.mark.parametrize("text", ["x: 1e-4", "x: 1.0e-4", "x: 0.0001", "x: 1E-4"])
def test_numbers_as_people_write_them(text: str) -> None:
    assert yaml_text.load(text, "job.yaml").value == {"x": 1e-4}


@pytest.mark.parametrize(
    ("text", "value"),
    [("x: 12", 12), ("x: .5", 0.5), ("x: 5.", 5.0), ("x: 1.2.3", "1.2.3"), ("x: e5", "e5"), ("x: -", None)],
)
def test_other_scalars(text: str, value: object) -> None:
    if value is None:
        with pytest.raises(JobFileError):
            yaml_text.load(text, "job.yaml")
    else:
        assert yaml_text.load(text, "job.yaml").value == {"x": value}


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_a_job_or_a_clear_error(text: str) -> None:
    try:
        parse_job(text, "job.yaml")
    except JobFileError as error:
        assert "\n" not in error.message


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_field_is_refused_on_one_line(name: str, value: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_job(f"name: a\nkind: tiny\nsource: w\n? {json.dumps(name)}\n: {json.dumps(value)}\n", "job.yaml")
    assert caught.value.message.isprintable()


def test_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(HEAD)
    assert read_job_file(path).name == "weights"
    path.write_text(HEAD + "x: 1\n")
    with pytest.raises(JobFileError, match=r"^job\.yaml:4: x: unknown field"):
        read_job_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"\xff\xfe\xff", "not UTF-8"),
        (b"#" * (FILE_LIMIT + 1), "longer than 1 MiB"),
        ("folder", "Is a directory"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | str | None, message: str) -> None:
    path = tmp_path / "job.yaml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    with pytest.raises(JobFileError, match=message):
        read_job_file(path)
