"""Who may read the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.coordinator.page.guard import SECRET, Head, cookie_name, refusal

SECRET_GIVEN = "a" * 32
GOOD = Head(host="127.0.0.1:8470", cookie=SECRET_GIVEN)


def status(head: Head) -> int:
    found = refusal(head, SECRET_GIVEN)
    return found.status if found else 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8470", "127.0.0.1", "127.0.0.1:1", "[::1]:65535"])
def test_loopback_is_answered_at_any_port(host: str) -> None:
    assert status(replace(GOOD, host=host)) == 200


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8470", "127.0.0.1.evil.example", "localhost.", "127.0.0.1:", "0.0.0.0:8470",
     "127.0.0.2", "user@127.0.0.1", "127.0.0.1:8470\n", "[::1", "localhost:８４７０"],
)  # fmt: skip
def test_other_hosts_are_not(host: str) -> None:
    assert status(replace(GOOD, host=host)) == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "get", ""])
def test_nothing_but_get(method: str) -> None:
    assert status(replace(GOOD, method=method)) == 405


def test_a_question_has_no_body() -> None:
    assert status(replace(GOOD, has_body=True)) == 400


@pytest.mark.parametrize("wrong", ["", "a" * 31, "a" * 33, "b" * 32, "ä" * 32, "\udcff"])
def test_without_the_secret_there_is_nothing(wrong: str) -> None:
    bare = replace(GOOD, cookie="")
    assert status(replace(bare, cookie=wrong)) == status(replace(bare, given=wrong)) == 403
    assert status(replace(bare, authorization=f"Bearer {wrong}")) == status(replace(bare, authorization=wrong)) == 403


def test_the_secret_comes_by_address_cookie_or_bearer() -> None:
    bare = replace(GOOD, cookie="")
    assert status(replace(bare, given=SECRET_GIVEN)) == status(GOOD) == 200
    assert status(replace(bare, authorization=f"Bearer {SECRET_GIVEN}")) == 200


def test_another_sites_page_gets_nothing_but_may_lead_here() -> None:
    assert status(replace(GOOD, site="cross-site", mode="cors")) == 403
    assert status(replace(GOOD, site="same-site", mode="no-cors")) == 403
    assert status(replace(GOOD, site="cross-site", mode="navigate")) == 200
    assert status(replace(GOOD, site="same-origin", mode="cors")) == 200


def test_a_cookie_is_of_one_start() -> None:
    assert cookie_name("a" * 32) != cookie_name("b" * 32)
    assert SECRET_GIVEN not in cookie_name(SECRET_GIVEN) and SECRET.fullmatch(SECRET_GIVEN)
