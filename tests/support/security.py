"""Certificates and keys made on the spot: a deployment over TLS with known nodes only."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Security:
    """A certificate authority, a server certificate for loopback, and a key for each node.

    Parameters
    ----------
    root : Path
        Where the files go.
    nodes : int
        How many keys to make.
    names : Mapping[int, str]
        The names under which nodes are registered, where they have one.
    """

    def __init__(self, root: Path, nodes: int, names: Mapping[int, str] | None = None) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._names = dict(names or {})
        self.authority, self._certificate = root / "ca.pem", root / "server.pem"
        self._key = root / "server.key"
        self._certificates()
        self.private = [root / f"node-{i}" for i in range(nodes)]
        self.public = [path.with_suffix(".pub") for path in self.private]
        for private, public in zip(self.private, self.public, strict=True):
            key = ec.generate_private_key(ec.SECP384R1())
            _write(private, _private(key, serialization.PrivateFormat.OpenSSH))
            form = serialization.PublicFormat.OpenSSH
            public.write_bytes(key.public_key().public_bytes(serialization.Encoding.OpenSSH, form))

    @property
    def superlink_options(self) -> list[str]:
        """The options of a SuperLink that admits registered nodes only."""
        return [
            *("--ssl-ca-certfile", str(self.authority)),
            *("--ssl-certfile", str(self._certificate)),
            *("--ssl-keyfile", str(self._key)),
            "--enable-supernode-auth",
        ]

    def registration(self, index: int) -> list[str]:
        """What `flwr supernode register` is told of a node."""
        name = self._names.get(index)
        return [str(self.public[index]), *([] if name is None else ["--name", name])]

    def node_options(self, index: int) -> list[str]:
        """The options of a SuperNode with its own key."""
        return [
            *("--root-certificates", str(self.authority)),
            *("--auth-supernode-private-key", str(self.private[index])),
            *("--ssl-ca-certfile", str(self.authority)),
            *("--ssl-certfile", str(self._certificate)),
            *("--ssl-keyfile", str(self._key)),
        ]

    def _certificates(self) -> None:
        now = datetime.datetime.now(datetime.UTC)

        def builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey):
            common = [
                x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (name, issuer)
            ]
            return (
                x509.CertificateBuilder()
                .subject_name(common[0])
                .issuer_name(common[1])
                .public_key(key.public_key())
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - datetime.timedelta(minutes=5))
                .not_valid_after(now + datetime.timedelta(days=1))
            )

        authority_key = ec.generate_private_key(ec.SECP256R1())
        basic = x509.BasicConstraints(ca=True, path_length=None)
        authority = builder("test authority", "test authority", authority_key)
        signed = authority.add_extension(basic, critical=True).sign(authority_key, hashes.SHA256())
        self.authority.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        server = builder("localhost", "test authority", key).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        signed = server.sign(authority_key, hashes.SHA256())
        self._certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        _write(self._key, _private(key, serialization.PrivateFormat.PKCS8))


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
