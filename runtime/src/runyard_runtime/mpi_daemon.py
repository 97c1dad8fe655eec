"""Runs a node's part of MPI, mpirun or its daemon, under the node's own host name.

A process of its own, so that an agent with threads can start it. It keeps mpirun as other keepers
keep a rank (see `ranks`): its folder has rank-0.json and rank-0.exit.
"""

import os
import sys

from runyard_runtime import hostnames, job_folder, ranks


def main(folder, hostname, log, cwd, nice, argv):
    """Be the keeper of that command; never returns. No `hostname`: that of the machine."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if hostname:
        try:
            hostnames.enter(hostname)
        except OSError as error:
            sys.stderr.write("runyard: no host name of its own for MPI: %s\n" % error)
            sys.stderr.flush()
    exits = job_folder.Reserved(ranks.exit_path(folder, 0))
    process = ranks.Command(0, argv, dict(os.environ), False)
    ranks.keep(process, folder, log, cwd, nice, exits, hears=os.dup(2))
