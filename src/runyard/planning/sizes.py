"""What v1's sizes of machines promise, and what a node gets of the machine there is. Pure."""

from difflib import get_close_matches

import msgspec

from runyard.domain.compute import Machine, VmSize
from runyard.domain.errors import NotFound

DEFAULT_SIZE = "STANDARD_NC6"  # v1's, where none is named

# name, cores, memory in GB, GPUs, local disk in GB: what notebooks of v1's time ask for.
_ROWS = """
STANDARD_A1_V2 1 2 0 10
STANDARD_A2_V2 2 4 0 20
STANDARD_A4_V2 4 8 0 40
STANDARD_A8_V2 8 16 0 80
STANDARD_D1 1 3.5 0 50
STANDARD_D2 2 7 0 100
STANDARD_D3 4 14 0 200
STANDARD_D4 8 28 0 400
STANDARD_D11 2 14 0 100
STANDARD_D12 4 28 0 200
STANDARD_D13 8 56 0 400
STANDARD_D14 16 112 0 800
STANDARD_D1_V2 1 3.5 0 50
STANDARD_D2_V2 2 7 0 100
STANDARD_D3_V2 4 14 0 200
STANDARD_D4_V2 8 28 0 400
STANDARD_D5_V2 16 56 0 800
STANDARD_D11_V2 2 14 0 100
STANDARD_D12_V2 4 28 0 200
STANDARD_D13_V2 8 56 0 400
STANDARD_D14_V2 16 112 0 800
STANDARD_D15_V2 20 140 0 1000
STANDARD_DS1_V2 1 3.5 0 7
STANDARD_DS2_V2 2 7 0 14
STANDARD_DS3_V2 4 14 0 28
STANDARD_DS4_V2 8 28 0 56
STANDARD_DS5_V2 16 56 0 112
STANDARD_DS11_V2 2 14 0 28
STANDARD_DS12_V2 4 28 0 56
STANDARD_DS13_V2 8 56 0 112
STANDARD_DS14_V2 16 112 0 224
STANDARD_DS15_V2 20 140 0 280
STANDARD_D2_V3 2 8 0 50
STANDARD_D4_V3 4 16 0 100
STANDARD_D8_V3 8 32 0 200
STANDARD_D16_V3 16 64 0 400
STANDARD_D32_V3 32 128 0 800
STANDARD_D48_V3 48 192 0 1200
STANDARD_D64_V3 64 256 0 1600
STANDARD_D2S_V3 2 8 0 16
STANDARD_D4S_V3 4 16 0 32
STANDARD_D8S_V3 8 32 0 64
STANDARD_D16S_V3 16 64 0 128
STANDARD_D32S_V3 32 128 0 256
STANDARD_E2_V3 2 16 0 50
STANDARD_E4_V3 4 32 0 100
STANDARD_E8_V3 8 64 0 200
STANDARD_E16_V3 16 128 0 400
STANDARD_E32_V3 32 256 0 800
STANDARD_E4S_V3 4 32 0 64
STANDARD_E8S_V3 8 64 0 128
STANDARD_E16S_V3 16 128 0 256
STANDARD_E4DS_V4 4 32 0 150
STANDARD_E8DS_V4 8 64 0 300
STANDARD_D2DS_V4 2 8 0 75
STANDARD_D4DS_V4 4 16 0 150
STANDARD_D8DS_V4 8 32 0 300
STANDARD_F2S_V2 2 4 0 16
STANDARD_F4S_V2 4 8 0 32
STANDARD_F8S_V2 8 16 0 64
STANDARD_F16S_V2 16 32 0 128
STANDARD_F32S_V2 32 64 0 256
STANDARD_F64S_V2 64 128 0 512
STANDARD_F72S_V2 72 144 0 576
STANDARD_H8 8 56 0 1000
STANDARD_H16 16 112 0 2000
STANDARD_HB60RS 60 228 0 700
STANDARD_HC44RS 44 352 0 700
STANDARD_M64S 64 1024 0 2000
STANDARD_M128S 128 2048 0 4000
STANDARD_NC6 6 56 1 340
STANDARD_NC12 12 112 2 680
STANDARD_NC24 24 224 4 1440
STANDARD_NC24R 24 224 4 1440
STANDARD_NC6_PROMO 6 56 1 340
STANDARD_NC12_PROMO 12 112 2 680
STANDARD_NC24_PROMO 24 224 4 1440
STANDARD_NC24R_PROMO 24 224 4 1440
STANDARD_NC6S_V2 6 112 1 736
STANDARD_NC12S_V2 12 224 2 1474
STANDARD_NC24S_V2 24 448 4 2948
STANDARD_NC24RS_V2 24 448 4 2948
STANDARD_NC6S_V3 6 112 1 736
STANDARD_NC12S_V3 12 224 2 1474
STANDARD_NC24S_V3 24 448 4 2948
STANDARD_NC24RS_V3 24 448 4 2948
STANDARD_NC4AS_T4_V3 4 28 1 176
STANDARD_NC8AS_T4_V3 8 56 1 352
STANDARD_NC16AS_T4_V3 16 110 1 352
STANDARD_NC64AS_T4_V3 64 440 4 2816
STANDARD_NC24ADS_A100_V4 24 220 1 64
STANDARD_NC48ADS_A100_V4 48 440 2 128
STANDARD_NC96ADS_A100_V4 96 880 4 256
STANDARD_ND6S 6 112 1 736
STANDARD_ND12S 12 224 2 1474
STANDARD_ND24S 24 448 4 2948
STANDARD_ND24RS 24 448 4 2948
STANDARD_ND40S_V2 40 672 8 2900
STANDARD_ND40RS_V2 40 672 8 2900
STANDARD_ND96ASR_V4 96 900 8 6000
STANDARD_ND96AMSR_A100_V4 96 1900 8 6400
STANDARD_NV6 6 56 1 340
STANDARD_NV12 12 112 2 680
STANDARD_NV24 24 224 4 1440
STANDARD_NV12S_V3 12 112 1 320
STANDARD_NV24S_V3 24 224 2 640
STANDARD_NV48S_V3 48 448 4 1280
"""


def _parse(row: str) -> VmSize:
    name, cores, memory, gpus, disk = row.split()
    return VmSize(
        name=name, cores=int(cores), memory_gb=float(memory), gpus=int(gpus), disk_gb=int(disk)
    )


SIZES = {size.name: size for size in map(_parse, _ROWS.strip().splitlines())}


def find_size(name: str) -> VmSize:
    """The size of that name, however it is written; `NotFound` that offers near ones."""
    wanted = (name or DEFAULT_SIZE).upper()
    for candidate in (wanted, f"STANDARD_{wanted}"):
        if candidate in SIZES:
            # As it was asked for: people and scripts compare it with what they wrote.
            return msgspec.structs.replace(SIZES[candidate], name=name or DEFAULT_SIZE)
    near = ", ".join(get_close_matches(wanted, SIZES, 3)) or DEFAULT_SIZE
    raise NotFound(
        f"There is no VM size '{name}'.",
        why=f"{len(SIZES)} sizes are known; near are: {near}.",
        fix="See them all with: runyard compute sizes, or AmlCompute.supported_vmsizes(workspace)",
    )


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a node of a pool gets of the machine, and in words where that is less than promised."""

    cores: int
    gpus: int
    warnings: tuple[str, ...] = ()


def share_out(size: VmSize, nodes: int, machine: Machine) -> Share:
    """What each of `nodes` nodes gets: never more than its size says, never less than a core.

    Cores are divided for good, so that all nodes can work at once. GPUs are not: a node that
    works alone may have as many as its size says, see `planning.pools`.
    """
    cores = min(size.cores, max(1, machine.cores // max(nodes, 1)))
    gpus = min(size.gpus, len(machine.gpus))
    less_cores = cores < size.cores
    less_gpus = size.gpus * max(nodes, 1) > len(machine.gpus)
    if not less_cores and not less_gpus:
        return Share(cores=cores, gpus=gpus)
    promised = _count(size.cores, "core") + (f" and {_gpus(size.gpus)}" if size.gpus else "")
    has = _count(machine.cores, "core") + (f" and {_gpus(len(machine.gpus))}" if size.gpus else "")
    given = f"each node works with {_count(cores, 'core')}"
    if size.gpus and not machine.gpus:
        given += " and no GPU"
    elif less_gpus:
        given += ", and a run waits until it can have its GPUs"
    words = (
        f"{_count(nodes, 'node')} of {size.name} ({promised} each) "
        f"{'has to share' if nodes == 1 else 'share'} this machine, which has {has}: {given}."
    )
    return Share(cores=cores, gpus=gpus, warnings=(words,))


CROWDED = 2  # processes a core, beyond which a run on `local` is warned of


def crowding(processes: int, machine: Machine) -> tuple[str, ...]:
    """A warning where a run has far more processes than the machine has cores; else nothing."""
    if processes <= CROWDED * machine.cores:
        return ()
    return (
        f"{processes} processes share this machine, which has {_count(machine.cores, 'core')}: "
        "they will be slow, and may need more memory than there is.",
    )


def _gpus(count: int) -> str:
    return _count(count, "GPU") if count else "no GPU"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
