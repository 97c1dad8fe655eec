"""The pages: everything is shown, nothing of it runs, and a link opens them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
import pytest

from runyard.domain.compute import NodeUse
from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.files import FileEntry
from runyard.domain.metrics import MetricKind, Point, Series
from runyard.domain.runs import Attempt, RunError, RunRecord, RunSpec, ScriptSpec
from runyard.domain.states import RunState
from runyard.server import pages
from runyard.server.logtail import LogTail

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "</pre></title><script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "half \ud800 a character",
]
KNOWN_TAGS = {
    *("html", "head", "meta", "title", "link", "body", "header", "main", "script", "a", "span"),
    *("div", "h1", "h2", "p", "form", "label", "select", "option", "input", "button", "strong"),
    *("table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "section", "details"),
    *("summary", "pre", "code", "svg", "polyline", "img", "nav"),
}


class Inspector(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.scripts: list[str] = []
        self.events: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        if tag == "script":
            self.scripts.append(values.get("src") or "inline")
        self.events += [name for name in values if name.startswith("on") or name == "style"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_harmless(html: str) -> Inspector:
    seen = Inspector(html)
    assert seen.tags <= KNOWN_TAGS
    assert set(seen.scripts) <= {"/static/page.js"}
    assert seen.events == []
    assert all(link.startswith(("/", "?log=")) for link in seen.links)
    assert not any(link.startswith("//") for link in seen.links)
    return seen


def open_page(server: LiveServer, path: str) -> str:
    answer = server.request("GET", path)
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    return answer.data.decode()


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_shown_and_never_run(server: LiveServer, text: str) -> None:
    plain = text.encode(errors="replace").decode()
    run = server.make_run(
        display_name=plain, tags={plain: plain}, properties={plain: plain}, submitted_by=plain
    )
    path = "outputs/" + plain.replace("/", "_")
    server.keep_file(run.id, path, b"x")
    server.append_log(run.id, quote(path), plain.encode())
    points = [Point(name=text, value=text), Point(name=text + "2", value=[text])]
    points += [Point(name=text + "3", value=value) for value in (1.0, 2.0, float("nan"))]
    points += [Point(name=text + "4", value={text: text}, kind=MetricKind.ROW)]
    points += [Point(name=text + "5", value=path, kind=MetricKind.IMAGE)]
    server.store.metrics.append(run.id, points)
    failure = RunError(code=plain, message=plain, traceback=plain)
    server.change(
        run.id,
        lambda now: msgspec.structs.replace(now, error=failure, waiting=plain, warnings=(plain,)),
    )
    seen = assert_harmless(open_page(server, f"/runs/{run.id}"))
    assert seen.text.count(plain) >= 8
    assert_harmless(open_page(server, f"/?experiment={quote(plain)}&workspace={quote(plain)}"))
    assert_harmless(open_page(server, "/"))
    assert_harmless(open_page(server, f"/runs/{run.id}?part=live"))
    assert_harmless(open_page(server, f"/runs/{run.id}?log={quote(plain)}"))


def test_a_runs_page_says_everything(server: LiveServer) -> None:
    run = server.make_run(display_name="my trial", tags={"colour": "red"})
    child = server.make_run(parent=run.id)
    points = [Point(name="loss", value=1.0 / (step + 1), step=step) for step in range(1000)]
    points += [Point(name="cpu", value=step, kind=MetricKind.SYSTEM) for step in range(3)]
    server.store.metrics.append(run.id, points)
    server.append_log(run.id, "azureml-logs/55_azureml-execution.txt", b"getting ready\n")
    server.append_log(run.id, "azureml-logs/70_driver_log.txt", b"epoch 1\n")
    server.keep_file(run.id, "outputs/my model.pkl", b"x" * 2500)
    page = open_page(server, f"/runs/{run.id}")
    seen = assert_harmless(page)
    for text in ("my trial", "Running", "colour", "red", "loss", "1000", "epoch 1", "2.5 kB"):
        assert text in seen.text
    assert "getting ready" not in seen.text
    assert f"/api/v1/runs/{run.id}/files/outputs/my%20model.pkl" in seen.links
    assert f"/runs/{child.id}" in seen.links
    assert page.count("<polyline") == 2
    assert seen.scripts == ["/static/page.js"]
    other = open_page(server, f"/runs/{run.id}?log=azureml-logs%2F55_azureml-execution.txt")
    assert "getting ready" in other


MATRIX = {
    "schema_type": "confusion_matrix",
    "schema_version": "v1",
    "data": {"class_labels": ["cat", "dog"], "matrix": [[51, 2], [3, 44]]},
}
ACCURACY = {
    "schema_type": "accuracy_table",
    "data": {
        "class_labels": ["cat"],
        "probability_thresholds": [0.25],
        "probability_tables": [[[61, 62, 63, 64]]],
    },
}
RESIDUALS = {"schema_type": "residuals", "data": {"bin_edges": [71, 72], "mean": 0.75}}


def test_rows_tables_and_documents_are_shown_as_tables(server: LiveServer) -> None:
    run = server.make_run()
    kinds: list[tuple[MetricKind, object]] = [
        (MetricKind.ROW, {"epoch": 1, "f1": 0.125}),
        (MetricKind.ROW, {"epoch": 2, "recall": 0.25}),
        (MetricKind.TABLE, {"x": list(range(1000, 1080)), "y": [5]}),
        (MetricKind.CONFUSION_MATRIX, MATRIX),
        (MetricKind.ACCURACY_TABLE, ACCURACY),
        (MetricKind.RESIDUALS, RESIDUALS),
    ]
    points = [Point(name=f"a {kind}", value=value, kind=kind) for kind, value in kinds]
    points.append(Point(name="odd", value={"data": "?"}, kind=MetricKind.CONFUSION_MATRIX))
    server.store.metrics.append(run.id, points)
    page = open_page(server, f"/runs/{run.id}")
    cells = re.findall(r"<t[dh]>([^<]*)</t[dh]>", page)
    for row in (["1", "0.125", ""], ["2", "", "0.25"], ["cat", "51", "2"], ["dog", "3", "44"]):
        assert row in [cells[at : at + 3] for at in range(len(cells))]
    assert ["cat", "0.25", "61", "62", "63", "64"] in [cells[i : i + 6] for i in range(len(cells))]
    assert {"71", "72", "0.75", "1000", "1049"} <= set(cells)
    assert "1050" not in cells
    assert "and 30 more rows" in page
    assert "odd" in Inspector(page).text


PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"


def test_a_logged_image_is_shown_and_nothing_else_is(server: LiveServer) -> None:
    run = server.make_run()
    contents = {"plots/a b.png": PNG, "page.png": b"<script>alert(1)</script>", "x.svg": b"<svg/>"}
    for path, data in contents.items():
        server.keep_file(run.id, path, data)
        point = Point(name=path, value=path, kind=MetricKind.IMAGE)
        server.store.metrics.append(run.id, [point])
    seen = assert_harmless(open_page(server, f"/runs/{run.id}"))
    shown = [link for link in seen.links if "/images/" in link]
    assert [link.partition("?v=")[0] for link in shown] == [
        f"/runs/{run.id}/images/plots/a%20b.png",
        f"/runs/{run.id}/images/page.png",
    ]
    assert f"/api/v1/runs/{run.id}/files/x.svg" in seen.links
    image = server.request("GET", shown[0])
    assert (image.status, image.data) == (200, PNG)
    assert image.headers["Content-Type"] == "image/png"
    assert image.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in image.headers["Content-Security-Policy"]
    for path, status in ((shown[1], 422), (f"/runs/{run.id}/images/none.png", 404)):
        refused = server.request("GET", path)
        assert refused.status == status
        assert refused.headers["Content-Type"].startswith("application/json")


def test_the_live_part_has_what_changes_and_no_more(server: LiveServer) -> None:
    run = server.make_run()
    server.store.metrics.append(run.id, [Point(name="loss", value=0.5)])
    server.append_log(run.id, "azureml-logs/70_driver_log.txt", b"a line of the log")
    part = open_page(server, f"/runs/{run.id}?part=live")
    assert "loss" in part
    assert "a line of the log" not in part
    page = open_page(server, f"/runs/{run.id}")
    for id in ("logged", "kept"):
        assert f'<div id="{id}">' in part
        assert f'<div id="{id}">' in page


def test_a_finished_runs_page_needs_no_script(server: LiveServer) -> None:
    run = server.make_run()
    server.complete(run.id)
    assert assert_harmless(open_page(server, f"/runs/{run.id}")).scripts == []


def test_a_long_log_shows_its_end(server: LiveServer) -> None:
    run = server.make_run()
    lines = b"".join(b"line %d\n" % number for number in range(60_000))
    server.append_log(run.id, "azureml-logs/70_driver_log.txt", lines + "ü".encode()[:1])
    page = open_page(server, f"/runs/{run.id}")
    assert "line 59999\n" in page
    assert "line 0\n" not in page
    assert "Only the end is shown" in page
    seen = re.search(r'data-seen="\d+/(\d+)/', page)
    assert seen is not None
    assert int(seen[1]) == len(lines)


def test_runs_are_listed_newest_first_page_by_page(own_server: LiveServer) -> None:
    made = [own_server.make_run().id for _ in range(60)]
    page = open_page(own_server, "/")
    assert re.findall(r'<td><a href="/runs/([^"]*)"', page) == made[::-1][:50]
    older = re.search(r'href="(/\?after=[^"]*)"', page)
    assert older is not None
    page = open_page(own_server, older[1])
    assert re.findall(r'<td><a href="/runs/([^"]*)"', page) == made[::-1][50:]
    assert "Older runs" not in page
    assert "No runs here yet" in open_page(own_server, "/?experiment=other")


def test_a_link_with_a_ticket_opens_the_page(server: LiveServer) -> None:
    run = server.make_run()
    answer = server.request("POST", f"/api/v1/runs/{run.id}/ticket")
    address = msgspec.json.decode(answer.data)["url"]
    assert address.startswith(f"/runs/{run.id}?ticket=")
    opened = server.request("GET", address, token=None)
    assert (opened.status, opened.headers["Location"]) == (303, f"/runs/{run.id}")
    cookie = opened.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Max-Age=43200" in cookie
    headers = {"Cookie": "other=1; " + cookie.partition(";")[0]}
    for path in (f"/runs/{run.id}", f"/api/v1/runs/{run.id}"):
        assert server.request("GET", path, token=None, headers=headers).status == 200


def open_link(server: LiveServer, path: str) -> str:
    """The cookie that a browser gets by a link."""
    answer = server.request("POST", path)
    opened = server.request("GET", msgspec.json.decode(answer.data)["url"], token=None)
    return opened.headers["Set-Cookie"].partition(";")[0]


def test_a_link_opens_that_run_and_its_children_alone(server: LiveServer) -> None:
    run, other = server.make_run(), server.make_run()
    child = server.make_run(parent=run.id)
    for one in (run, child, other):
        server.keep_file(one.id, "outputs/x", b"x")
        server.complete(one.id)
    headers = {"Cookie": open_link(server, f"/api/v1/runs/{run.id}/ticket")}

    def status(path: str) -> int:
        return server.request("GET", path, token=None, headers=headers).status

    for id, page, rest in ((run.id, 200, 200), (child.id, 200, 200), (other.id, 401, 403)):
        assert status(f"/runs/{id}") == page
        for path in ("", "/metrics", "/files", "/files/outputs/x", "/events"):
            assert status(f"/api/v1/runs/{id}{path}") == rest
    assert status("/") == 401
    for path in ("runs", "workspaces", f"runs/{run.id}/snapshot"):
        assert status(f"/api/v1/{path}") == 403
    assert status(f"/api/v1/blobs/{server.keep(b'x')}") == 401


def test_a_second_link_does_not_close_the_first_page(server: LiveServer) -> None:
    runs = [server.make_run() for _ in range(3)]
    cookies = [open_link(server, f"/api/v1/runs/{run.id}/ticket") for run in runs]
    headers = {"Cookie": "; ".join(cookies)}
    for run in runs:
        assert server.request("GET", f"/runs/{run.id}", token=None, headers=headers).status == 200


def test_the_owner_can_have_a_link_to_everything(server: LiveServer) -> None:
    run = server.make_run()
    headers = {"Cookie": open_link(server, "/api/v1/ticket")}
    for path in ("/", f"/runs/{run.id}", "/api/v1/runs"):
        assert server.request("GET", path, token=None, headers=headers).status == 200
    path = f"/api/v1/blobs/{server.keep(b'x')}"
    assert server.request("GET", path, token=None, headers=headers).status == 401


def test_a_link_on_another_site_opens_the_page_too(server: LiveServer) -> None:
    # After a cross-site link the browser keeps strict cookies back for the whole redirect.
    headers = {"Sec-Fetch-Site": "cross-site"}
    path = f"/?workspace=a%20b&ticket={server.ticket()}"
    answer = server.request("GET", path, token=None, headers=headers)
    assert answer.status == 200
    assert "Set-Cookie" in answer.headers
    assert 'content="0; url=/?workspace=a+b"' in answer.data.decode()


def test_without_a_ticket_the_page_says_how_to_get_one(server: LiveServer) -> None:
    run = server.make_run()
    old = server.ticket(-1)
    for path in (f"/runs/{run.id}", "/", f"/runs/{run.id}?ticket={old}", "/?ticket=", "/?ticket=x"):
        answer = server.request("GET", path, token=None)
        assert answer.status == 401
        assert "Location" not in answer.headers
        assert "Set-Cookie" not in answer.headers
        text = answer.data.decode()
        assert "runyard show RUN" in text
        assert "run.get_portal_url()" in text


def test_an_unknown_run_has_a_page_that_says_so(server: LiveServer) -> None:
    answer = server.request("GET", "/runs/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert answer.status == 404
    assert answer.headers["Content-Type"].startswith("text/html")
    assert_harmless(answer.data.decode())


@pytest.mark.parametrize("name", ["page.css", "page.js", "icon.svg"])
def test_static_files_are_served(server: LiveServer, name: str) -> None:
    assert server.request("GET", f"/static/{name}", token=None).status == 200


def test_a_script_runs_page_shows_script_environment_and_error() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    script = ScriptSpec(
        arguments=("train.py", "--lr", "0.1"),
        snapshot="f" * 64,
        environment=EnvironmentSpec(name="tf", pip=("numpy",)),
        variables={"PASSWORD": "hush"},
        max_restarts=2,
    )
    run = RunRecord(
        id="tf_1",
        uid="u",
        spec=RunSpec(workspace="yard", experiment="tf", script=script),
        state=RunState.FAILED,
        attempt=2,
        attempts=(
            Attempt(
                attempt=1,
                started=now,
                ended=now + timedelta(seconds=2),
                error=RunError(code="NodeLost", message="It <b>vanished</b>.", rank=1, node=1),
                nodes=(NodeUse(id="gpu-2"),),
            ),
        ),
        created=now,
        started=now,
        ended=now + timedelta(seconds=3723),
        error=RunError(
            code="UserError", message="It broke.", rank=0, exit_code=1, traceback="Traceback …"
        ),
        environment=EnvironmentUse(
            key="k", interpreter="/py", python="3.11.7", lock=("numpy==1",), notes=("a note",)
        ),
    )
    tail = LogTail(names=[])
    tree = [FileEntry("train.py", "0" * 64, 1), FileEntry("lib/net.py", "0" * 64, 1)]
    html = pages.run_page(run, series=[], log=tail, files=[], children=[], snapshot=tree)
    seen = assert_harmless(html)
    for text in (
        "2 files",
        "2 of 3",
        "Attempt 1 failed: It <b>vanished</b>.",
        "NodeLost · rank 1 · node 1 · gpu-2 · 2026-01-02 03:04:07 UTC · ran 2.0 s",
        "lib/net.py",
        "train.py --lr 0.1",
        "It broke.",
        "exit code 1",
        "Traceback …",
        "3.11.7",
        "numpy==1",
        "a note",
        "1 h 02 min",
        "2026-01-02 03:04:05 UTC",
    ):
        assert text in seen.text
    assert "hush" not in html  # variables may be secrets


@pytest.mark.parametrize(
    ("values", "has_chart"),
    [
        ([], False),
        ([1.0], False),
        ([1, 2], True),
        ([5.0, 5.0, 5.0], True),
        ([1.0, float("nan"), 2.0], True),
        ([float("inf"), float("nan")], False),
        ([1.0, "x"], False),
        ([True, False], False),
        ([-1e308, 1e308], True),
        ([10**400, 1], False),
        (list(range(10_000)), True),
        ([None, 1], False),
    ],
)
def test_repeated_numbers_have_a_chart(values: list[object], has_chart: bool) -> None:
    nothing: list[int | None] = [None] * len(values)
    times = [0.0] * len(values)
    series = Series(name="x", kind=MetricKind.SCALAR, values=values, steps=nothing, times=times)
    row = pages.plan_metric(series)
    assert bool(row.chart) is has_chart
    pairs = [point.split(",") for point in row.chart.split()]
    assert len(pairs) <= 400
    assert all(0 <= float(x) <= 240 and 0 <= float(y) <= 44 for x, y in pairs)
