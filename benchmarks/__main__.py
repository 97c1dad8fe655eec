"""`python -m benchmarks [NAME …]`: measure the promises and print one table each."""

import argparse
import dataclasses
import importlib
import json
import sys
import time
from pathlib import Path

from benchmarks.machine import conditions
from benchmarks.options import Options, quick
from benchmarks.report import Report, table

NAMES = (
    "start",
    "logging",
    "footprint",
    "queue",
    "scale",
    "planning",
    "environments",
    "data",
    "distributed",
    "clusters",
    "serving",
    "deployment",
    "durability",
)


def main() -> int:
    """Exit code 0 if every promise was kept, 1 if one was missed or could not be measured."""
    arguments = _arguments()
    options = quick() if arguments.quick else Options()
    given = {key: getattr(arguments, key) for key in ("points", "kills", "runs")}
    options = dataclasses.replace(
        options,
        peers=not arguments.no_peers,
        **{key: value for key, value in given.items() if value is not None},
    )
    about = conditions()
    print("conditions: " + ", ".join(f"{key} {value}" for key, value in about.items()))
    if options.quick:
        print("quick: few repetitions, small sizes; the figures only show that it works")
    reports: list[Report] = []
    for name in arguments.names or NAMES:
        begun = time.perf_counter()
        report = importlib.import_module(f"benchmarks.{name}").measure(options)
        reports.append(report)
        print(f"\n{table(report)}\n  [{time.perf_counter() - begun:.0f} s]", flush=True)
    if arguments.json:
        document = {
            "conditions": about,
            "options": dataclasses.asdict(options),
            "reports": [
                {"name": report.name, "rows": [row.as_json() for row in report.rows]}
                for report in reports
            ],
        }
        Path(arguments.json).write_text(json.dumps(document, indent=2, ensure_ascii=False))
    verdicts = [row.verdict for report in reports for row in report.rows]
    print(f"\n{verdicts.count('ok')} kept, {verdicts.count('MISSED')} missed, "
          f"{verdicts.count('NOT MEASURED')} not measured")  # fmt: skip
    return 1 if {"MISSED", "NOT MEASURED"} & set(verdicts) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of: {', '.join(NAMES)}; default all"
    )
    parser.add_argument("--quick", action="store_true", help="a small version that takes seconds")
    parser.add_argument("--no-peers", action="store_true", help="do not install or run the peers")
    parser.add_argument("--json", metavar="FILE", help="also write everything there")
    parser.add_argument("--points", type=int, help="durability: points logged by four jobs")
    parser.add_argument("--kills", type=int, help="durability: times the server is killed")
    parser.add_argument("--runs", type=int, help="durability: runs during which agents are killed")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(NAMES)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
