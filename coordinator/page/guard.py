"""Who may read the page: what a request says of itself in, a refusal or none out. Pure: knows no server and no farm.

Loopback is open to all users of a machine, and a browser sends requests for whoever it shows a page of. So there is a
secret; `Host` must be loopback's, as a foreign name may lead here; and nothing but GET is heard.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass

SECRET = re.compile(r"[A-Za-z0-9_-]{22,64}", re.ASCII)
HOSTS = re.compile(
    r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE
)  # a tunnel changes ports
BEARER = "Bearer "
OWN_SITES = frozenset({"", "none", "same-origin"})
POLICY = "content-security-policy"
HEADERS = {  # of every answer
    POLICY: "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Head:
    """What a request says of itself; "" for what it does not say."""

    method: str = "GET"
    host: str = ""
    given: str = ""  # the secret, as the address has it
    cookie: str = ""
    authorization: str = ""
    site: str = ""  # Sec-Fetch-Site
    mode: str = ""  # Sec-Fetch-Mode
    has_body: bool = False


@dataclass(frozen=True)
class Refusal:
    status: int
    said: str


def refusal(head: Head, secret: str) -> Refusal | None:
    """Why a request gets nothing; None where it may be answered."""
    if not HOSTS.fullmatch(head.host):
        return Refusal(421, "this page is at 127.0.0.1 and localhost alone")
    if head.method != "GET":
        return Refusal(405, "this page is read, and nothing else: GET alone")
    if head.has_body:
        return Refusal(400, "a question has no body here")
    if not _knows(head, secret):
        return Refusal(403, "open the address that `coordinator page` printed when it started, with its secret")
    if head.site not in OWN_SITES and head.mode != "navigate":
        return Refusal(403, "another site's page asked for this")
    return None


def _knows(head: Head, secret: str) -> bool:
    bearer = head.authorization.removeprefix(BEARER) if head.authorization.startswith(BEARER) else ""
    given = head.given or head.cookie or bearer
    return hmac.compare_digest(given.encode(errors="replace"), secret.encode())


def policy_of(style: str) -> dict[str, str]:
    """The policy for a page with this one style sheet in it, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    nothing = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return {POLICY: f"{nothing}; style-src 'sha256-{digest}'"}


def cookie_name(secret: str) -> str:
    """Of this start alone: a cookie knows no port, and several pages may be at 127.0.0.1."""
    return f"muster-{hashlib.sha256(secret.encode()).hexdigest()[:12]}"
