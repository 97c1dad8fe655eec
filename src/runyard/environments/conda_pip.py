"""The `pip:` part of a conda environment: installed by uv beside what conda put there."""

from importlib import metadata
from pathlib import Path

from runyard.environments.base import Log
from runyard.environments.folders import write_private
from runyard.environments.horovod import install_horovod
from runyard.environments.pip_configuration import render_options
from runyard.environments.uv_tool import Uv
from runyard.planning.environments import VenvPlan
from runyard.planning.requirements import Version, canonical_name


def install_on_top(
    tool: Uv, prefix: Path, plan: VenvPlan, version: Version, log: Log
) -> tuple[str, ...]:
    """Install the plan's lines; what conda installed stays if it will do. What came new."""
    before = _installed(prefix)
    wanted, limits = prefix / "requirements.in", prefix / "constraints.txt"
    where = prefix / "options.txt"  # may hold passwords: never readable by others, never kept
    sources = render_options(tool.options)
    write_private(where, sources)
    write_private(wanted, "".join(f"{line}\n" for line in plan.requirements))
    write_private(limits, "".join(f"{line}\n" for line in plan.constraints))
    python = str(prefix / "bin" / "python")
    options = ["--python", python, "--index-strategy", "unsafe-best-match"]
    options += ["-r", str(where)] if sources else []
    options += ["--prerelease", "allow"] if tool.options.prerelease else []
    options += ["--break-system-packages"]  # the prefix is ours, whatever its Python says
    try:
        if plan.requirements:
            tool.run(
                *("pip", "install", "--link-mode", "hardlink", *options),
                *("--constraint", str(limits), "-r", str(wanted)),
            )
        if plan.horovod:
            lock = sorted(_installed(prefix))
            install_horovod(tool, prefix, plan.horovod, lock, version, options, log)
    finally:
        for temporary in (where, wanted, limits):
            temporary.unlink()
    return tuple(sorted(_installed(prefix) - before))


def _installed(prefix: Path) -> set[str]:
    folders = [str(folder) for folder in prefix.glob("lib/python*/site-packages")]
    found = metadata.distributions(path=folders)
    return {f"{canonical_name(one.name)}=={one.version}" for one in found}
