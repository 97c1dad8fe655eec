"""Solves and links conda packages with py-rattler. Imported when the first conda spec comes."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import rattler
from rattler import exceptions

from runyard.environments.base import Log

_UNREACHABLE = (exceptions.GatewayError, exceptions.FetchRepoDataError)
_UNUSABLE = (
    exceptions.CacheDirError,
    exceptions.ConversionError,
    exceptions.DetectVirtualPackageError,
    exceptions.ExtractError,
    exceptions.InstallerError,
    exceptions.InvalidChannelError,
    exceptions.InvalidMatchSpecError,
    exceptions.InvalidPackageNameError,
    exceptions.InvalidUrlError,
    exceptions.IoError,
    exceptions.LinkError,
    exceptions.PackageNameMatcherParseError,
    exceptions.SolverError,
    exceptions.TransactionError,
    exceptions.ValidatePackageRecordsError,
)
_THINKING = timedelta(minutes=5)  # for the solver, once the channels have answered


class Unreachable(Exception):
    """A channel did not answer; the text says which and why."""


class Unsolved(Exception):
    """The packages cannot be had together, or not be installed; in rattler's own words."""


def install_packages(
    channels: Sequence[str],
    specs: Sequence[str],
    prefix: Path,
    cache: Path,
    patience: float,
    log: Log,
) -> tuple[str, ...]:
    """Solve and link into `prefix`; the lock, name==version=build, one line a package.

    `patience` is how many seconds the channels have to answer.
    """
    try:
        return asyncio.run(_install(channels, specs, prefix, cache, patience, log))
    except _UNREACHABLE as error:
        raise Unreachable(str(error).strip()) from error
    except TimeoutError as error:
        raise Unreachable(f"timed out: no answer within {patience:g} seconds") from error
    except _UNUSABLE as error:
        raise Unsolved(str(error).strip()) from error


async def _install(
    channels: Sequence[str],
    specs: Sequence[str],
    prefix: Path,
    cache: Path,
    patience: float,
    log: Log,
) -> tuple[str, ...]:
    sources = [rattler.Channel(url) for url in channels]
    wanted = [rattler.MatchSpec(spec) for spec in specs]
    gateway = rattler.Gateway(cache_dir=cache / "repodata")
    async with asyncio.timeout(patience):  # the solver below finds all this in memory
        platforms = [rattler.Subdir.current(), rattler.Subdir("noarch")]
        await gateway.query(sources, platforms, wanted)
    records = await _solve(sources, wanted, gateway, log)
    lock = tuple(sorted(f"{one.name.normalized}=={one.version}={one.build}" for one in records))
    for line in lock:
        log(line)
    log(f"linking {len(lock)} conda packages")
    await rattler.install(
        records,
        target_prefix=prefix,
        cache_dir=cache / "pkgs",
        installed_packages=[],
        show_progress=False,
    )
    return lock


async def _solve(
    sources: Sequence[rattler.Channel],
    wanted: Sequence[rattler.MatchSpec],
    gateway: rattler.Gateway,
    log: Log,
) -> list[rattler.RepoDataRecord]:
    """Each package from the first channel that has it; if that fails, from any of them."""
    virtual = rattler.VirtualPackage.detect()
    try:
        return await rattler.solve(
            sources, wanted, gateway=gateway, virtual_packages=virtual, timeout=_THINKING
        )
    except exceptions.SolverError:
        if len(sources) < 2:
            raise
    log("there is no solution with strict channel priority; trying without")
    return await rattler.solve(
        sources,
        wanted,
        gateway=gateway,
        virtual_packages=virtual,
        timeout=_THINKING,
        channel_priority=rattler.ChannelPriority.Disabled,
    )
