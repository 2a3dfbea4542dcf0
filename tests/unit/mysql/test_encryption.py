"""How a url asks for TLS: the strictest mode asked for holds; what can't be had is an error."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from connector.errors import ConfigurationError
from connector.mysql.connection import parse_url
from tests.support.servers.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


def asked(query: str) -> tuple[ssl.VerifyMode, bool]:
    """What is verified of the server: its certificate, its name."""
    context: ssl.SSLContext = parse_url(f"mysql://u@db?{query}")["ssl"]
    return context.verify_mode, context.check_hostname


@pytest.mark.parametrize(
    ("query", "certificate", "name"),
    [
        ("ssl_mode=required", False, False),
        ("ssl_mode=REQUIRED", False, False),
        ("ssl_mode=verify_ca", True, False),
        ("ssl_mode=verify_identity", True, True),
        ("ssl_ca={ca}", True, False),
        ("ssl_ca={ca}&ssl_mode=required", True, False),
        ("ssl_ca={ca}&ssl_mode=VERIFY_IDENTITY", True, True),
        ("ssl_verify_cert=true", True, False),
        ("ssl_verify_identity=true", True, True),
        ("ssl_verify_identity=true&ssl_verify_cert=false&ssl_mode=required", True, True),
    ],
)
def test_the_strictest_mode_that_is_asked_for_holds(
    query: str, certificate: bool, name: bool, authority: Authority
) -> None:
    verified = ssl.CERT_REQUIRED if certificate else ssl.CERT_NONE
    assert asked(query.format(ca=authority.certificate)) == (verified, name)


def test_without_a_mode_tls_is_taken_where_the_server_has_it_and_it_can_be_turned_off() -> None:
    assert {"ssl", "ssl_disabled"}.isdisjoint(
        parse_url("mysql://u@db?ssl_verify_cert=0&ssl_verify_identity=false")
    )
    assert parse_url("mysql://u@db?ssl_mode=disabled")["ssl_disabled"] is True


def test_a_client_certificate_is_presented(authority: Authority) -> None:
    certificate, key = authority.issue("agent")
    assert asked(f"ssl_cert={certificate}&ssl_key={key}") == (ssl.CERT_NONE, False)


def test_a_key_with_a_passphrase_is_refused_and_no_terminal_asked(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key_file = authority.issue("agent")
    key = load_pem_private_key(key_file.read_bytes(), None)
    secret = BestAvailableEncryption(b"secret")
    (tmp_path / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    with pytest.raises(ConfigurationError, match="not a valid PEM file"):
        parse_url(f"mysql://u@db?ssl_cert={certificate}&ssl_key={tmp_path / 'key'}")


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("ssl_mode=verify-full", "unknown ssl_mode 'verify-full'"),
        ("ssl_mode=", "parameter ssl_mode is empty"),
        ("ssl_ca=", "parameter ssl_ca is empty"),
        ("sslmode=", "unknown parameter sslmode"),
        ("ssl_ca=/nowhere/ca.pem", "ssl_ca /nowhere/ca.pem: no such file or directory"),
        ("ssl_ca={text}", "ssl_ca {text}: not a valid PEM file"),
        ("ssl_cert={ca}", "ssl_cert {ca}: not a valid PEM file"),
        ("sslmode=required", "unknown parameter sslmode"),
    ],
)
def test_what_cannot_be_used_is_named(query: str, problem: str, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    files = {"text": tmp_path / "text", "ca": authority.certificate}
    with pytest.raises(ConfigurationError) as refused:
        parse_url(f"mysql://u@db?{query.format(**files)}")
    assert problem.format(**files) in str(refused.value)
    assert refused.value.hint
