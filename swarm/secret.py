"""What looks like a key: by a file's name, or by what is in it.

Enters: names and contents. Leaves: yes or no.
Guards: words about keys, public keys and the made-up ones of documentation are none.
"""

from __future__ import annotations

import fnmatch
import re

NAMES = ("*.pem", "*.key", "id_rsa*", "id_ed25519*", ".env", ".env.*")
NOT_NAMES = ("*.example", "*.sample", "*.template")

# Each with bytes that it cannot do without: looking for these first makes the common answer quick.
CONTENTS = (
    (b"PRIVATE KEY", re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")),
    (b"AKIA", re.compile(rb"\bAKIA([0-9A-Z]{16})\b")),  # Amazon
    (b"gh", re.compile(rb"\bgh[pousr]_([A-Za-z0-9]{36})\b")),  # GitHub
    (b"github_pat_", re.compile(rb"\bgithub_pat_([A-Za-z0-9]{22}_[A-Za-z0-9]{59})\b")),
    (b"xox", re.compile(rb"\bxox[baprs]-([0-9]{8,}-[0-9A-Za-z-]{16,})")),  # Slack
    (b"sk-ant-", re.compile(rb"\bsk-ant-([A-Za-z0-9_-]{32,})")),  # Anthropic
    (b"AIza", re.compile(rb"\bAIza([0-9A-Za-z_-]{35})(?![0-9A-Za-z_-])")),  # Google
)
_FEW = 8  # different characters: `xxxxxxxx` and `0123` again and again are no key
_TEXT_BYTES = 8000  # as git tells text from data


def is_secret(path: str) -> bool:
    """Does a file's name look like a key or a credentials file?"""
    name = path.rsplit("/", 1)[-1].casefold()
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in NOT_NAMES):
        return False
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in NAMES)


def has_secret(content: bytes, known: bytes = b"") -> bool:
    """Does a text hold what reads like a key, and `known` not as many of the same?"""
    if b"\0" in content[:_TEXT_BYTES]:
        return False
    return any(
        _is_real(found) and content.count(found[0]) > known.count(found[0])
        for needed, pattern in CONTENTS
        if needed in content
        for found in pattern.finditer(content)
    )


def _is_real(found: re.Match[bytes]) -> bool:
    if not found.re.groups:
        return True
    secret = found[1]
    return b"EXAMPLE" not in secret.upper() and len(set(secret)) >= _FEW
