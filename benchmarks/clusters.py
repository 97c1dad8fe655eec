"""What a trivial run costs on a cluster, against the cluster's own way to run the same script."""

from benchmarks.options import Options
from benchmarks.ray_jobs import measure_ray
from benchmarks.report import Report
from benchmarks.slurm_jobs import measure_slurm


def measure(options: Options) -> Report:
    """Ours and theirs in turn, on clusters that are started for it on this machine."""
    report = Report("clusters: a trivial script, submit → terminal status seen by the caller")
    measure_slurm(report, options)
    measure_ray(report, options)
    return report
