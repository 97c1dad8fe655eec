"""Secrets are noticed before they travel, and never repeated; git's facts without credentials."""

import subprocess
from pathlib import Path

import pytest

from runyard.sdk.git_facts import git_properties, read_git
from runyard.sdk.secret_scan import find_secrets

TOKEN = "ghp_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("id_rsa", b"", "files of this name"),
        ("deep/.env", b"A=1", "files of this name"),
        ("cert.pem", b"-----BEGIN RSA PRIVATE KEY-----\n", "a private key in line 1"),
        ("a.py", b"x = 1\ntoken = '" + TOKEN.encode() + b"'", "a GitHub token in line 2"),
        ("a.py", b"k = 'AKIA" + b"A" * 16 + b"'", "an AWS access key in line 1"),
        ("c.txt", b"AccountKey=" + b"a" * 86 + b"==", "an Azure storage key in line 1"),
    ],
)
def test_likely_secrets_are_found(path: str, content: bytes, words: str) -> None:
    found = find_secrets(path, content)
    assert any(words in one for one in found)
    assert TOKEN not in " ".join(found)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("train.py", b"import os\nkey = os.environ['AWS_ACCESS_KEY_ID']\n"),
        ("cert.pem", b"-----BEGIN CERTIFICATE-----\nMIIB\n"),
        (".env.example", b"TOKEN=...\n"),
        ("model.bin", b"\0\1AKIA" + b"A" * 16),
    ],
)
def test_ordinary_files_are_left_in_peace(path: str, content: bytes) -> None:
    assert find_secrets(path, content) == []


def test_a_clean_branch_and_a_detached_dirty_head() -> None:
    commit = "a" * 40
    clean = git_properties(f"# branch.oid {commit}\n# branch.head main\n", "https://h/r.git\n")
    assert clean["azureml.git.branch"] == "main"
    assert clean["azureml.git.dirty"] == "False"
    assert clean["mlflow.source.git.commit"] == commit
    assert clean["mlflow.source.git.repoURL"] == "https://h/r.git"
    dirty = git_properties(f"# branch.oid {commit}\n# branch.head (detached)\n1 .M a.py\n", "")
    assert dirty["azureml.git.dirty"] == "True"
    assert "azureml.git.branch" not in dirty
    assert git_properties("# branch.oid (initial)\n# branch.head main\n", "") == {}


def test_a_real_repository_is_read(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e@x", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    assert read_git(tmp_path / "nowhere") == {}
    git("init", "-b", "trunk")
    (tmp_path / "a.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    git("remote", "add", "origin", "https://me:secret@host/r.git")
    assert read_git(tmp_path)["azureml.git.dirty"] == "False"
    (tmp_path / "a.py").write_text("2")
    found = read_git(tmp_path)
    assert found["azureml.git.dirty"] == "True"
    assert found["azureml.git.branch"] == "trunk"
    assert "secret" not in repr(found)
