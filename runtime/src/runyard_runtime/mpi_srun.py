"""The starter of MPI jobs in a Slurm cluster whose site wants it: `srun --mpi=…` starts the ranks.

It is one step of the job, over all its nodes; MPI meets through Slurm's plugin. What srun starts
for each rank is `mpi_rank`, as under mpirun, so ranks, logs and ends are the same. Plan key `srun`:
{"mpi": "pmix"}; the job's number is in the agent's folder, where `node_watch` leaves it.
"""

import os

from runyard_runtime import job_folder, mpi, ranks
from runyard_runtime.mpi_starter import ByMpirun

BATCH_FILE = "batch.json"
_WORDS_CHARS = 500
_MAJOR = 5  # of the Open MPI whose settings are given: names that another does not know do no harm


def facts(job):
    """What other nodes must know; see `mpi_starter`."""
    kind = job["srun"]["mpi"]
    remark = "srun --mpi=%s starts the ranks" % kind
    return {"path": "srun", "major": _MAJOR, "srun": kind, "remark": remark, "can_name_hosts": True}


class BySrun(ByMpirun):
    """Has srun start the ranks of all nodes."""

    program = "srun"

    def launch(self):
        """Start srun."""
        known = job_folder.read_json(os.path.join(self._agent.own, BATCH_FILE)) or {}
        if not known.get("job"):
            raise ranks.StartFailed("srun cannot start the ranks: this is no job of Slurm's.")
        nodes, kind = len(self._addresses), self._job["srun"]["mpi"]
        env = mpi.daemon_environment(
            self._base, self._mpirun.major, self._addresses, self._is_one_machine, None
        )
        if self._base.get("SLURM_CONF"):
            env["SLURM_CONF"] = self._base["SLURM_CONF"]
        self.keep(mpi.plan_srun(kind, known["job"], nodes, self._per_node), env)
        self._note("started srun --mpi=%s for %d ranks" % (kind, nodes * self._per_node))

    def explain(self, candidates):
        """Say of ranks that Slurm killed at once what that means: their own logs do not have it."""
        log = self._said_on(0)
        if "CANCELLED" in log:
            message = (
                "Slurm ended all ranks of the step at once, as it does when one of them calls "
                "MPI_Abort; under mpi4py an exit code other than 0 is such a call. srun says: %s"
            )
            words = " ".join(line.strip() for line in log.split("\n") if "error" in line)
            for one in candidates:
                if one["error"] and one["error"].get("code") == "ExitCodeUnknown":
                    text = message % words[-_WORDS_CHARS:]
                    one["error"] = dict(one["error"], code="MpiAborted", message=text)
        return ByMpirun.explain(self, candidates)
