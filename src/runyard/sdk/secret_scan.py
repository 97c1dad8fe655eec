"""Likely secrets in files that are about to be uploaded. Pure; never repeats the secret."""

import re
from fnmatch import fnmatch

LARGEST_BYTES = 256 * 1024  # keys and settings are small; data files are not looked into

KEY_FILES = (
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "*.pfx",
    "*.p12",
    ".env",
    ".env.*",
    ".netrc",
    ".pypirc",
    ".git-credentials",
    "credentials",
    "credentials.json",
)

PATTERNS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("a private key", re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")),
    ("an AWS access key", re.compile(rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a GitHub token", re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{60})")),
    ("a Slack token", re.compile(rb"\bxox[abprs]-[A-Za-z0-9-]{20}")),
    ("an Azure storage key", re.compile(rb"AccountKey=[A-Za-z0-9+/]{60}")),
    ("a Google API key", re.compile(rb"\bAIza[\w-]{35}")),
    ("a Hugging Face token", re.compile(rb"\bhf_[A-Za-z0-9]{34}")),
)

_PUBLIC = (".env.example", ".env.sample", ".env.template")


def find_secrets(path: str, content: bytes) -> list[str]:
    """What in a file looks like a secret: its kind and line, at most one of each kind."""
    name = path.rsplit("/", 1)[-1]
    if name in _PUBLIC:
        return []
    found = []
    if any(fnmatch(name, pattern) for pattern in KEY_FILES):
        found.append("files of this name usually hold secrets")
    if b"\0" in content:
        return found
    for kind, pattern in PATTERNS:
        if match := pattern.search(content):
            line = content.count(b"\n", 0, match.start()) + 1
            found.append(f"{kind} in line {line}")
    return found
