"""Keys, certificates, tokens and kubeconfigs of one cluster, made when it starts and thrown away with it."""

from __future__ import annotations

import base64
import ipaddress
import json
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CONTEXT = "airflow-ft-test"
VALID = timedelta(days=3650)  # training-operator makes its own certificate anew if one ends within 90 days


class Authority:
    """A certificate authority and what it signed, as files ``NAME.key`` and ``NAME.crt`` in one folder."""

    def __init__(self, folder: Path, common_name: str, organisation: str = "", alternative: Sequence[str] = ()) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._subject = _name(common_name, organisation)
        self._key = _new_key()
        limits = x509.BasicConstraints(ca=True, path_length=None)
        builder = _builder(self._subject, self._subject, self._key, alternative)
        self._write("ca", self._key, builder.add_extension(limits, critical=True).sign(self._key, hashes.SHA256()))

    @property
    def certificate(self) -> Path:
        """What clients trust."""
        return self.folder / "ca.crt"

    def sign(self, name: str, common_name: str, organisation: str = "", alternative: Sequence[str] = ()) -> None:
        """Make a key and a certificate for a server or a client."""
        key = _new_key()
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = _builder(_name(common_name, organisation), self._subject, key, alternative)
        self._write(name, key, builder.add_extension(usage, critical=False).sign(self._key, hashes.SHA256()))

    def _write(self, name: str, key: rsa.RSAPrivateKey, certificate: x509.Certificate) -> None:
        write_key(self.folder / f"{name}.key", key)
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def service_account_keys(folder: Path) -> None:
    """The pair that signs the tokens of service accounts: ``sa.key``, ``sa.pub``."""
    key = _new_key()
    write_key(folder / "sa.key", key)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "sa.pub").write_bytes(public)


def write_key(path: Path, key: rsa.RSAPrivateKey) -> None:
    """PKCS#1: the certificate rotator inside training-operator reads nothing else."""
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    path.touch(0o600)
    path.write_bytes(pem)


class Users:
    """Users with tokens, in the API server's token file, and a kubeconfig for each."""

    def __init__(self, tokens: Path, authority: Authority) -> None:
        self.tokens = tokens
        self._authority = authority
        tokens.touch(0o600)

    def add(self, name: str, group: str, server: str, kubeconfig: Path) -> None:
        """Add a user. The API server reads the file when it starts."""
        token = secrets.token_hex(16)
        with self.tokens.open("a") as file:
            file.write(f'{token},{name},{name},"{group}"\n')
        write_kubeconfig(kubeconfig, name, token, server, self._authority.certificate)


def write_kubeconfig(path: Path, user: str, token: str, server: str, certificate: Path) -> None:
    """A kubeconfig with one context. JSON is YAML."""
    trusted = base64.b64encode(certificate.read_bytes()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": {"server": server, "certificate-authority-data": trusted}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user, "namespace": "default"}}],
        "current-context": CONTEXT,
    }
    path.touch(0o600)
    path.write_text(json.dumps(content, indent=1))


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _name(common_name: str, organisation: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organisation:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(parts)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, alternative: Sequence[str]
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
    )
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(one) for one in alternative]), False)
    return builder


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
