"""What a run on Ray costs beside a bare Ray job of the same script, on the same cluster."""

from contextlib import ExitStack

from benchmarks.machine import scratch
from benchmarks.options import Options
from benchmarks.peers import PeerMissing
from benchmarks.report import Report, Times
from benchmarks.servers import ray_driver, yard

PROMISE = "a trivial run on Ray, against a bare Ray job of the same script"


def measure_ray(report: Report, options: Options) -> None:
    """Ours and Ray's own client in turn, on one cluster of one node."""
    if not options.peers:
        report.not_measured(PROMISE, "peers were not asked for")
        return
    with scratch() as folder, ExitStack() as stack:
        source = folder / "source"
        source.mkdir()
        (source / "script.py").write_text("print('hello')\n")
        try:
            ray = stack.enter_context(ray_driver(folder / "ray"))
        except PeerMissing as error:
            report.not_measured(PROMISE, str(error))
            return
        address = ray.environ["RAY_API_SERVER_ADDRESS"]
        ours = stack.enter_context(yard(folder / "yard"))
        token = folder / "ray" / "token"
        ours.command(
            *("compute", "attach", "ray", "--ray", address, "--token-file", str(token)),
            *("--option", f"node_folder={folder / 'node'}"),
        )
        driver = stack.enter_context(ours.driver())
        bare: list[float] = []
        run: list[float] = []
        for repetition in range(options.slow_submits + 1):
            bare.append(ray.seconds("job", folder=str(source)))
            run.append(driver.seconds("submit_and_wait", folder=str(source), target="ray"))
            if repetition == 0:  # the first warms up and is not kept
                bare, run = [], []
    theirs, mine = Times(bare), Times(run)
    report.at_most(PROMISE, mine.p50 / theirs.p50, 1.5, f"{mine} against {theirs}")
