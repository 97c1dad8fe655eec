"""pip's configuration, translated for uv."""

from pathlib import Path

from runyard.environments.pip_configuration import (
    configuration_files,
    existing_only,
    load_pip_configuration,
    merge_options,
    network_variables,
    render_options,
)
from runyard.planning.environments import IndexOptions


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_later_files_win_key_by_key_and_variables_over_all(tmp_path: Path) -> None:
    system = written(
        tmp_path / "a.conf",
        "[global]\nindex-url = https://one/simple\nextra_index_url = https://x/s\n  https://y/s\n"
        "cert = /etc/cert.pem\n[install]\nfind-links = /w1 /w2\n",
    )
    user = written(
        tmp_path / "b.conf", "[global]\nindex-url = https://two/simple\nno-index = yes\n"
    )
    environ = {
        "PIP_EXTRA_INDEX_URL": "https://z/s",
        "PIP_DEFAULT_TIMEOUT": "99",
        "PIP_PROXY": "p:3",
    }
    read = load_pip_configuration(environ, [system, user, tmp_path / "missing.conf"])
    assert read.options == IndexOptions(
        index_url="https://two/simple",
        extra_index_urls=("https://z/s",),
        find_links=("/w1", "/w2"),
        no_index=True,
    )
    assert (read.cert, read.timeout, read.proxy) == ("/etc/cert.pem", "99", "p:3")


def test_percent_signs_in_passwords_survive(tmp_path: Path) -> None:
    file = written(tmp_path / "pip.conf", "[global]\nindex-url = https://u:p%40ss@host/simple\n")
    assert load_pip_configuration({}, [file]).options.index_url == "https://u:p%40ss@host/simple"


def test_a_broken_file_is_passed_over_with_a_note_that_tells_no_secret(tmp_path: Path) -> None:
    file = written(tmp_path / "pip.conf", "index-url = https://u:secret@host\n")
    read = load_pip_configuration({}, [file])
    assert read.options == IndexOptions()
    assert str(file) in read.notes[0]
    assert "secret" not in read.notes[0]


def test_pip_config_file_names_one_more_or_none_at_all(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "my.conf")}
    files = configuration_files(environ, prefix="/venv")
    assert files[-2:] == [Path("/venv/pip.conf"), tmp_path / "my.conf"]
    assert tmp_path / ".config" / "pip" / "pip.conf" in files
    assert configuration_files({**environ, "PIP_CONFIG_FILE": "/dev/null"}) == []


def test_the_environments_own_lines_add_to_the_machines() -> None:
    machine = IndexOptions(
        index_url="https://m", extra_index_urls=("https://e",), find_links=("/w",)
    )
    asked = IndexOptions(index_url="https://a", extra_index_urls=("https://f",))
    merged = merge_options(machine, asked)
    assert merged.index_url == "https://a"
    assert merged.extra_index_urls == ("https://e", "https://f")
    assert merged.find_links == ("/w",)


def test_folders_that_are_not_there_are_skipped_with_a_note(tmp_path: Path) -> None:
    here = tmp_path / "wheels with space"
    here.mkdir()
    options, notes = existing_only(
        IndexOptions(
            extra_index_urls=("file:///no/such/simple", here.as_uri(), "https://u:p@host/simple"),
            find_links=(str(here), "/no/such/wheels"),
        )
    )
    assert options.extra_index_urls == (here.as_uri(), "https://u:p@host/simple")
    assert options.find_links == (here.as_uri(),)
    assert [note.split(":")[0] for note in notes] == [
        "extra-index-url file",
        "find-links /no/such/wheels",
    ]


def test_options_become_lines_of_a_file() -> None:
    text = render_options(
        IndexOptions(
            index_url="https://i", extra_index_urls=("https://e",), find_links=("file:///w",)
        )
    )
    assert text == "--index-url https://i\n--extra-index-url https://e\n--find-links file:///w\n"
    assert render_options(IndexOptions(no_index=True)) == "--no-index\n"
    assert render_options(IndexOptions()) == ""


def test_what_the_environment_says_already_is_not_replaced(tmp_path: Path) -> None:
    cert = written(tmp_path / "cert.pem", "x")
    environ = {"PIP_CERT": str(cert), "PIP_PROXY": "proxy:3128", "https_proxy": "http://own"}
    read = load_pip_configuration(environ, [])
    assert network_variables(read, ["host1", "host2"], environ) == {
        "SSL_CERT_FILE": str(cert),
        "HTTP_PROXY": "http://proxy:3128",
        "UV_INSECURE_HOST": "host1 host2",
    }
