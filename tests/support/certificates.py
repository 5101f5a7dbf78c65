"""Certificates as the owner of a Ray cluster makes them: an authority of its own, and one certificate for all nodes."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

ADDRESSES = [f"127.0.0.{number}" for number in range(1, 10)]
AUTHORITY, NODE = "authority", "node"


def rays(folder: Path) -> dict[str, str]:
    """Files in a new folder, and what Ray has to find in its environment to use them."""
    folder.mkdir()
    ours, theirs = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    (folder / "authority.pem").write_bytes(_certificate(AUTHORITY, ours, ours))
    (folder / "node.pem").write_bytes(_certificate(NODE, theirs, ours))
    (folder / "node.key").write_bytes(theirs.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_CA_CERT": str(folder / "authority.pem"),
        "RAY_TLS_SERVER_CERT": str(folder / "node.pem"),
        "RAY_TLS_SERVER_KEY": str(folder / "node.key"),
    }


def _certificate(name: str, key: EllipticCurvePrivateKey, authority: EllipticCurvePrivateKey) -> bytes:
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    names = [x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES]
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(ca=name == AUTHORITY, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return made.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)
