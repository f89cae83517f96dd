"""What looks like a key, each with a look-alike that does not."""

from __future__ import annotations

import pytest

from swarm.secret import has_secret, is_secret

MIXED = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF"  # 32 characters


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        (".env", True),
        ("a/b/.env.production", True),
        (".ENV", True),
        ("id_ed25519.pub", True),
        ("tls/server.KEY", True),
        (".env.example", False),
        ("config/.env.template", False),
        ("key.pem.sample", False),
        ("environment.py", False),
        ("keys.py", False),
    ],
)
def test_secret_looking_names(name: str, answer: bool) -> None:
    assert is_secret(name) is answer


@pytest.mark.parametrize(
    ("text", "look_alike"),
    [
        ("-----BEGIN PRIVATE KEY-----", "-----BEGIN PUBLIC KEY-----"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "-----BEGIN CERTIFICATE-----"),
        ("-----BEGIN ENCRYPTED PRIVATE KEY-----", "a PRIVATE KEY is no public one"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----", "-----BEGIN PGP PUBLIC KEY BLOCK-----"),
        ("AKIAQ3EGR7YHJ2K5L8MN", "AKIAIOSFODNN7EXAMPLE"),
        ('"AKIAQ3EGR7YHJ2K5L8MN"', "XAKIAQ3EGR7YHJ2K5L8MNX"),
        (f"ghp_{MIXED}wXy4", f"ghp_{'x' * 36}"),
        (f"gho_{MIXED}wXy4", f"ghq_{MIXED}wXy4"),
        (f"github_pat_{MIXED[:22]}_{MIXED}{MIXED[:27]}", "github_pat_your_token_goes_here"),
        ("xoxb-123456789012-123456789012-" + MIXED[:24], "xoxb-your-token-goes-here-please"),
        (f"sk-ant-api03-{MIXED}{MIXED}", "sk-ant-api03-your-key-here"),
        (f"AIza{MIXED}-_x", f"AIza{'0' * 35}"),
    ],
)
def test_contents_that_read_like_a_key(text: str, look_alike: str) -> None:
    assert has_secret(f"key = {text}\n".encode())
    assert not has_secret(f"key = {look_alike}\n".encode())


def test_a_key_that_is_known_is_not_new_and_one_more_is() -> None:
    text = f"ghp_{MIXED}wXy4\n".encode()
    assert not has_secret(b"more\n" + text, known=text)
    assert has_secret(text + text, known=text)


def test_data_is_no_text() -> None:
    assert not has_secret(b"\0-----BEGIN PRIVATE KEY-----")
