"""pip's own configuration, for uv, which does not read it.

People sit behind mirrors and say so once, in pip.conf or PIP_* variables: index, extra indexes,
find-links, certificate, proxy, trusted hosts, timeout. What they said there counts here too.
"""

import configparser
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runyard.domain.secrets import redact
from runyard.planning.environments import IndexOptions, local_folder

_TRUE = {"1", "true", "yes", "on", "y", "t"}
_ALIASES = {"default-timeout": "timeout", "pypi-url": "index-url"}
_SECTIONS = ("global", "install")  # the later one counts, as for `pip install`


class PipConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """What pip would be told on this machine."""

    options: IndexOptions = IndexOptions()
    cert: str = ""
    proxy: str = ""
    timeout: str = ""
    notes: tuple[str, ...] = ()


def configuration_files(environ: Mapping[str, str], prefix: str = sys.prefix) -> list[Path]:
    """The files that pip reads here, the least important first."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == "/dev/null":  # pip's way to say: read none
        return []
    home = Path(environ.get("HOME") or Path.home())
    system = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path(folder) / "pip" / "pip.conf" for folder in reversed(system) if folder]
    files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", user / "pip" / "pip.conf"]
    if sys.platform == "darwin":
        files.insert(0, Path("/Library/Application Support/pip/pip.conf"))
        files.append(home / "Library" / "Application Support" / "pip" / "pip.conf")
    files.append(Path(prefix) / "pip.conf")
    return files + ([Path(named)] if named else [])


def load_pip_configuration(
    environ: Mapping[str, str], files: Sequence[Path] | None = None
) -> PipConfiguration:
    """pip's configuration: its files, then its variables, which win key by key."""
    settings: dict[str, str] = {}
    notes: list[str] = []
    for path in configuration_files(environ) if files is None else files:
        settings.update(_read(path, notes))
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            settings[_key(name[4:])] = value

    return PipConfiguration(
        options=IndexOptions(
            index_url=settings.get("index-url", "").strip(),
            extra_index_urls=tuple(settings.get("extra-index-url", "").split()),
            find_links=tuple(settings.get("find-links", "").split()),
            no_index=settings.get("no-index", "").strip().lower() in _TRUE,
            trusted_hosts=tuple(settings.get("trusted-host", "").split()),
        ),
        cert=settings.get("cert", "").strip(),
        proxy=settings.get("proxy", "").strip(),
        timeout=settings.get("timeout", "").strip(),
        notes=tuple(notes),
    )


def merge_options(machine: IndexOptions, asked: IndexOptions) -> IndexOptions:
    """The machine's options and those of the environment's own lines, as pip puts them together."""
    return IndexOptions(
        index_url=asked.index_url or machine.index_url,
        extra_index_urls=machine.extra_index_urls + asked.extra_index_urls,
        find_links=machine.find_links + asked.find_links,
        no_index=machine.no_index or asked.no_index,
        prerelease=asked.prerelease,
        trusted_hosts=machine.trusted_hosts + asked.trusted_hosts,
    )


def existing_only(options: IndexOptions) -> tuple[IndexOptions, tuple[str, ...]]:
    """The options without folders that are not there, and a note on each of those.

    pip passes over such folders; uv refuses to work.
    """
    notes: list[str] = []

    def keep(locations: tuple[str, ...], what: str) -> tuple[str, ...]:
        kept = []
        for location in dict.fromkeys(locations):
            folder = local_folder(location)
            if folder is None:
                kept.append(location)
            elif Path(folder).expanduser().exists():
                kept.append(Path(folder).expanduser().absolute().as_uri())
            else:
                notes.append(f"{what} {redact(location)}: skipped, there is no such folder")
        return tuple(kept)

    index = keep((options.index_url,), "index-url") if options.index_url else ()
    present = msgspec.structs.replace(
        options,
        index_url=index[0] if index else "",
        extra_index_urls=keep(options.extra_index_urls, "extra-index-url"),
        find_links=keep(options.find_links, "find-links"),
    )
    return present, tuple(notes)


def render_options(options: IndexOptions) -> str:
    """The options as lines of a requirements file.

    A file, because command lines are visible to every user of the machine and URLs hold passwords.
    """
    lines = []
    if options.index_url:
        lines.append(f"--index-url {options.index_url}")
    lines += [f"--extra-index-url {url}" for url in options.extra_index_urls]
    lines += [f"--find-links {url}" for url in options.find_links]
    if options.no_index:
        lines.append("--no-index")
    return "".join(f"{line}\n" for line in lines)


def network_variables(
    configuration: PipConfiguration, trusted_hosts: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Certificate, proxy, timeout and trusted hosts as variables; what is set already stays."""
    variables: dict[str, str] = {}
    if configuration.cert and Path(configuration.cert).is_file():
        variables["SSL_CERT_FILE"] = configuration.cert
    if configuration.proxy:
        proxy = configuration.proxy
        url = proxy if "://" in proxy else f"http://{proxy}"
        variables.update(HTTP_PROXY=url, HTTPS_PROXY=url)
    if configuration.timeout.isdigit():
        variables["UV_HTTP_TIMEOUT"] = configuration.timeout
    if trusted_hosts:
        variables["UV_INSECURE_HOST"] = " ".join(trusted_hosts)
    taken = {name.upper() for name, value in environ.items() if value}
    return {name: value for name, value in variables.items() if name not in taken}


def _read(path: Path, notes: list[str]) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        notes.append(f"{path}: skipped, it cannot be read ({error})")
        return {}
    try:
        parser.read_string(text)
    except configparser.Error:
        # The parser's own message quotes the line, which may hold a password.
        notes.append(f"{path}: skipped, it is not a valid pip configuration")
        return {}
    return {
        _key(name): value
        for section in _SECTIONS
        if parser.has_section(section)
        for name, value in parser.items(section)
    }


def _key(name: str) -> str:
    key = name.strip().lower().replace("_", "-").removeprefix("--")
    return _ALIASES.get(key, key)
