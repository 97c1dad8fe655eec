"""Many runs at once: all finish, and submitting stays quick meanwhile."""

from benchmarks.driver import Driver
from benchmarks.machine import scratch
from benchmarks.options import Options
from benchmarks.report import Report, Times
from benchmarks.servers import yard


def measure(options: Options) -> Report:
    """Submit calls on an idle server, then the same calls while hundreds wait."""
    report = Report(f"queue: {options.queued} runs queued at once")
    with scratch() as folder:
        source = folder / "source"
        source.mkdir()
        (source / "script.py").write_text("print('hello')\n")
        with yard(folder / "yard") as ours, ours.driver() as one, ours.driver() as other:
            probes = 10 if options.quick else 60
            idle = Times([_submit(one, str(source)) for _ in range(probes + 1)][1:])
            ids = other.ask("submit_many", folder=str(source), count=options.queued)
            assert isinstance(ids, list)
            probed = [one.ask("submit", folder=str(source)) for _ in range(probes)]
            busy = Times([answer["seconds"] for answer in probed if isinstance(answer, dict)])
            states = one.ask("statuses", ids=ids[-1:])
            assert isinstance(states, dict)
            still = not {"Completed", "Failed", "Canceled"} & set(states.values())
            ended = other.ask("wait", ids=ids)
            assert isinstance(ended, dict)
            one.ask("wait", ids=[answer["id"] for answer in probed if isinstance(answer, dict)])
    done = sum(state == "Completed" for state in ended.values())
    report.at_least(
        f"runs completed of {options.queued}", done, options.queued, unit="",
        note="" if done == len(ids) else str({k: v for k, v in ended.items() if v != "Completed"}),
    )  # fmt: skip
    note = f"idle {idle}; meanwhile {busy}"
    if not still:
        note += "; the queue was empty before the last probe"
    report.at_most("p95 of a submit call meanwhile against idle", busy.p95 / idle.p95, 3, note)
    return report


def _submit(driver: Driver, folder: str) -> float:
    """Seconds of one submit call on a server that has nothing else to do."""
    answer = driver.ask("submit", folder=folder)
    assert isinstance(answer, dict)
    driver.ask("wait", ids=[answer["id"]])
    return float(answer["seconds"])
