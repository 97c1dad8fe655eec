# mypy: ignore-errors
"""The platform as a job sees it, small enough to read: the HTTP API and the agent's shipping.

Standard library only and Python 3.6: it runs beside the runtime under every interpreter.
"""

import contextlib
import hashlib
import json
import os
import shutil
import socketserver
import tempfile
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, HTTPServer

from runyard_runtime import wire

RUN = "exp_1_abcd"
TOKEN = "secret"


class Server(socketserver.ThreadingMixIn, HTTPServer):
    """Keeps runs, files and metrics in dicts."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server_port
        self.unready = 0  # how many requests still get 503
        self.forget_answers = 0  # how many requests are served but never answered
        self.requests = []
        self.runs = {RUN: record(RUN, "azureml.scriptrun", parent="sweep")}
        self.runs["sweep"] = record("sweep", "hyperdrive")
        self.files = {RUN: {}}
        self.blobs = {}
        self.points = {}
        self.models = []  # oldest first

    def handle_error(self, request, client_address):
        pass  # a client that went away


def record(run_id, kind, **spec):
    spec = dict({"workspace": "ws", "experiment": "exp", "id": run_id, "kind": kind}, **spec)
    return {
        "id": run_id,
        "spec": spec,
        "number": 7,
        "state": "Running",
        "tags": dict(spec.get("tags", {})),
        "properties": {},
        "display_name": spec.get("display_name", "brave_sun"),
        "created": "2026-01-01T00:00:00Z",
        "started": "2026-01-01T00:00:01Z",
        "ended": None,
        "error": None,
        "waiting": "",
        "warnings": [],
    }


class Problem(Exception):
    def __init__(self, status, code, what, why="", fix=""):
        super().__init__(what)
        self.status = status
        self.body = {"code": code, "what": what, "why": why, "fix": fix}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def serve(self):
        server = self.server
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server.requests.append("%s %s" % (self.command, url.path))
        self.close_connection = True
        if server.unready:
            server.unready -= 1
            self.answer(503, b"starting")
            return
        try:
            if self.headers["Authorization"] != "Bearer " + TOKEN:
                raise Problem(401, "denied", "The token is wrong.")
            parts = [urllib.parse.unquote(part) for part in url.path.split("/")[3:]]
            found = self.route(parts, query, body)
            status, data = 200, found if isinstance(found, bytes) else json.dumps(found).encode()
        except Problem as problem:
            status, data = problem.status, json.dumps(problem.body).encode()
        if server.forget_answers:
            server.forget_answers -= 1
            self.connection.close()
            return
        self.answer(status, data)

    do_GET = do_POST = do_PUT = do_PATCH = serve

    def answer(self, status, data):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def route(self, parts, query, body):
        server = self.server
        if parts[0] == "blobs":
            return self.route_blobs(parts, body)
        if parts[0] == "models":
            return self.route_models(parts, query, json.loads(body) if body else None)
        if parts == ["workspaces", "ws", "datasets"]:
            return dict(json.loads(body), id="dataset-1")
        if parts == ["workspaces", "ws"]:
            return {"id": "1", "name": "ws", "location": "local", "created": "2026-01-01T00:00:00Z"}
        if parts == ["workspaces", "ws", "experiments"]:
            return [{"name": "exp"}, {"name": "other"}]
        if parts == ["runs"]:
            return self.new_run(json.loads(body)) if body else self.list_runs(query)
        run = server.runs.get(parts[1])
        if run is None:
            raise Problem(404, "not_found", "There is no run '%s'." % parts[1], "why", "fix")
        return self.route_run(run, parts[2:], query, body)

    def route_blobs(self, parts, body):
        blobs = self.server.blobs
        if self.command == "GET":
            return blobs[parts[1]]
        if parts[1] == "missing":
            return [digest for digest in json.loads(body) if digest not in blobs]
        if hashlib.sha256(body).hexdigest() != parts[1]:
            raise Problem(400, "invalid", "The content has another digest.")
        blobs[parts[1]] = body
        return {}

    def route_models(self, parts, query, data):
        models = self.server.models
        if self.command == "POST":
            return self.new_model(data)
        if self.command == "PATCH":
            (model,) = [one for one in models if one["id"] == parts[1]]
            model["tags"].update(data.get("set_tags", {}))
            model["properties"].update(data.get("add_properties", {}))
            return model
        found = [
            one for one in reversed(models) if query.get("name", [one["name"]])[0] == one["name"]
        ]
        for pair in query.get("tag", []):
            key, given, value = pair.partition("=")
            found = [one for one in found if key in one["tags"]]
            found = [one for one in found if not given or one["tags"][key] == value]
        if "number" in query:
            found = [one for one in found if str(one["number"]) == query["number"][0]]
        if "latest" in query:
            newest = {one["name"]: one for one in reversed(found)}
            found = [one for one in found if newest[one["name"]] is one]
        start = int(query.get("after", ["0"])[0])
        more = start + 2 < len(found)
        return {"models": found[start : start + 2], "next": str(start + 2) if more else None}

    def new_model(self, draft):
        if " " in draft["name"]:
            raise Problem(400, "invalid", "No spaces.")
        for known in self.server.models:
            if known["id"] == draft["id"]:
                return known
        rows = draft.get("manifest")
        if rows is None:
            kept = self.server.files.get(draft["run"], {})
            path = draft["path"]
            cut = path.rfind("/") + 1
            names = [name for name in sorted(kept) if name == path or name.startswith(path + "/")]
            rows = [[name[cut:], kept[name], len(self.server.blobs[kept[name]])] for name in names]
            if not rows:
                raise Problem(404, "no_model_files", "Nothing at '%s'." % path, "It has: x.")
        number = 1 + sum(one["name"] == draft["name"] for one in self.server.models)
        model = dict(draft, manifest=rows, number=number, created="2026-01-01T00:00:00Z")
        self.server.models.append(model)
        return model

    def new_run(self, submission):
        spec = submission["spec"]
        if spec["id"] in self.server.runs:
            raise Problem(409, "conflict", "The run '%s' exists." % spec["id"])
        run = record(spec.pop("id"), spec.pop("kind"), **spec)
        self.server.runs[run["id"]] = run
        return run

    def list_runs(self, query):
        found = [run for run in self.server.runs.values() if self.wanted(run, query)]
        found = sorted(found, key=lambda run: run["id"])
        start = int(query.get("after", ["0"])[0])
        page = found[start : start + 2]  # small pages, so that paging is used
        more = start + 2 < len(found)
        return {"runs": page, "next": str(start + 2) if more else None}

    def wanted(self, run, query):
        if query.get("parent", [None])[0] not in (None, run["spec"].get("parent")):
            return False
        for pair in query.get("tag", []):
            key, given, value = pair.partition("=")
            if key not in run["tags"] or (given and run["tags"][key] != value):
                return False
        return run["state"] in query.get("state", [run["state"]])

    def route_run(self, run, rest, query, body):
        server = self.server
        data = json.loads(body) if body and rest[:1] != ["blobs"] else None
        if not rest:
            if self.command == "PATCH":
                run["tags"].update(data.get("set_tags", {}))
                run["properties"].update(data.get("add_properties", {}))
                run["display_name"] = data.get("display_name", run["display_name"])
            return run
        if rest == ["metrics"]:
            if data is not None:
                raise Problem(403, "denied", "That run is not yours.", "Tokens are per run.", "No.")
            return {run["id"]: series(server.points.get(run["id"], []))}
        if rest[0] == "files":
            kept = server.files.setdefault(run["id"], {})
            if data is not None:
                kept.update((path, digest) for path, digest, size, mode in data)
                return {}
            if len(rest) > 1:
                name = "/".join(rest[1:])
                if name not in kept:
                    raise Problem(404, "not_found", "no such file")
                return server.blobs[kept[name]]
            prefix = query.get("prefix", [""])[0]
            return [{"path": name, "size": 1} for name in sorted(kept) if name.startswith(prefix)]
        if rest[0] == "cancel":
            raise Problem(403, "denied", "A run's token may not cancel.")
        if run["state"] != "Running":
            raise Problem(409, "conflict", "The run is over.")
        run["state"] = {"complete": "Completed", "fail": "Failed"}[rest[0]]
        run["error"] = data
        return run


def series(points):
    found = {}
    for point in points:
        kind = point.get("k", "scalar")
        empty = {"name": point["n"], "kind": kind, "values": [], "steps": [], "times": []}
        one = found.setdefault((point["n"], kind), empty)
        one["values"].append(point["v"])
        one["steps"].append(point.get("s"))
        one["times"].append(point["t"])
    return list(found.values())


class Agent(threading.Thread):
    """Ships the events of a job folder to the fake server and acknowledges them."""

    def __init__(self, path, server):
        super().__init__(daemon=True)
        self.path, self.server, self.over = path, server, False
        self.end = 0

    def run(self):
        while not self.over:
            self.ship()
            time.sleep(0.002)

    def ship(self):
        try:
            with open(self.path, "rb") as stream:
                stream.seek(self.end)
                data = stream.read()
        except OSError:
            return
        lines = data[: data.rfind(b"\n") + 1]
        for line in lines.splitlines():
            self.apply(json.loads(line.decode("ascii")))
        self.end += len(lines)
        if lines:
            with open(self.path + ".acked", "w") as stream:
                stream.write("%d\n" % self.end)

    def apply(self, event):
        run_id = event.get("r", RUN)
        tags = self.server.runs[run_id]["tags"]
        if event["e"] == "metric":
            self.server.points.setdefault(run_id, []).append(event)
        elif event["e"] == "tag":
            tags[event["n"]] = event["v"]
        else:
            tags.pop(event["n"], None)


class FakeJob(object):
    """A job folder with its variables set, a server, and an agent if it is started."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        self.server = Server()
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.events = os.path.join(self.folder, "events", "0.jsonl")
        self.address_file = os.path.join(self.folder, "address.json")
        self.agent = None
        self.variables = {
            wire.RUN_ID: RUN,
            wire.JOB_DIR: self.folder,
            wire.RANK: "0",
            wire.RUN_TOKEN: TOKEN,
            wire.WORKSPACE: "ws",
            wire.EXPERIMENT: "exp",
            wire.SUBSCRIPTION: "sub",
            wire.RESOURCE_GROUP: "group",
            wire.SERVICE_ENDPOINT: self.server.url,
        }
        os.environ.update(self.variables)

    def start_agent(self):
        self.agent = Agent(self.events, self.server)
        self.agent.start()

    def logged(self):
        """The events that stand in the file."""
        with open(self.events, "rb") as stream:
            return [json.loads(line.decode("ascii")) for line in stream.read().splitlines()]

    def close(self):
        for name in self.variables:
            os.environ.pop(name, None)
        os.environ.pop(wire.ADDRESS_FILE, None)
        if self.agent is not None:
            self.agent.over = True
            self.agent.join()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        shutil.rmtree(self.folder)


@contextlib.contextmanager
def working_directory(path):
    before = os.getcwd()
    os.chdir(path)
    try:
        yield path
    finally:
        os.chdir(before)
