"""Which files of a source folder are left out: `.amlignore`, or else `.gitignore`. Pure."""

from collections.abc import Callable, Iterable

Ignores = Callable[[str], bool]  # takes a relative POSIX path; a folder's ends in "/"

AMLIGNORE = ".amlignore"
GITIGNORE = ".gitignore"
# Never taken along. Git's own files change with every command; what matters of them (commit,
# branch, remote) is recorded as properties of the run.
ALWAYS = frozenset({".git"})


def choose_ignore_file(names: Iterable[str]) -> str | None:
    """The one file that counts, of those at the root: `.amlignore` wins outright, as in v1."""
    present = set(names)
    return next((name for name in (AMLIGNORE, GITIGNORE) if name in present), None)


def nothing_ignored(path: str) -> bool:
    """The rules of a folder without an ignore file."""
    return False


def parse_ignore_file(text: str) -> tuple[Ignores, bool]:
    """The rules in an ignore file, and whether ignored folders need not be looked into.

    They must be looked into where a line brings files back ("!keep.txt").
    """
    from pathspec import GitIgnoreSpec

    lines = text.splitlines()
    spec = GitIgnoreSpec.from_lines(lines)
    return spec.match_file, not any(line.startswith("!") for line in lines)
