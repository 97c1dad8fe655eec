"""Which commit a source folder is at, recorded as properties of the run."""

import re
import subprocess
from pathlib import Path

from runyard.domain.secrets import redact

PATIENCE_SECONDS = 3.0  # a huge or remote repository is not worth a slow submit


def read_git(folder: Path) -> dict[str, str]:
    """v1's git properties of the folder; empty if it is in no repository, or git is not there."""
    if not any((above / ".git").exists() for above in (folder, *folder.parents)):
        return {}
    status = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    if status is None:
        return {}
    return git_properties(status, _git(folder, "config", "--get", "remote.origin.url") or "")


def _git(folder: Path, *arguments: str) -> str | None:
    # No fsmonitor: a repository's own settings must not start programs. No locks: a submit must
    # not disturb the git commands of its user.
    options = ["-C", str(folder), "-c", "core.fsmonitor=false", "--no-optional-locks"]
    try:
        done = subprocess.run(
            ["git", *options, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def git_properties(status: str, remote: str) -> dict[str, str]:
    """The properties that `git status --porcelain=v2 --branch` and the remote's URL mean. Pure."""
    head = dict(re.findall(r"^# branch\.(oid|head) (.+)$", status, re.MULTILINE))
    commit, branch = head.get("oid", ""), head.get("head", "")
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return {}  # a repository without a commit
    dirty = any(line and not line.startswith("#") for line in status.splitlines())
    found = {
        "azureml.git.commit": commit,
        "mlflow.source.git.commit": commit,
        "azureml.git.dirty": str(dirty),
    }
    if branch and branch != "(detached)":
        found["azureml.git.branch"] = found["mlflow.source.git.branch"] = branch
    if url := redact(remote.strip(), hidden=""):
        found["azureml.git.repository_uri"] = found["mlflow.source.git.repoURL"] = url
    return found
