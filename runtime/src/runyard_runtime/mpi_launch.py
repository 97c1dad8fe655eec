"""The launch agent: what mpirun calls, in place of ssh, to have a daemon on another node.

It leaves the command on the job's board, and the agent of that node runs it. It does not wait for
the daemon: that calls mpirun by itself, and if it cannot be started, the node says so.
"""

import os

from runyard_runtime import board, job_folder, wire


def main(folder, arguments):
    """Ask for the command on that host; the exit code that mpirun sees."""
    host, command = arguments[0], " ".join(arguments[1:])  # as ssh does it
    plan = job_folder.read_json(os.path.join(folder, wire.PLAN_FILE))
    notes = board.BOARDS[plan.get("board") or "folder"](folder, None)
    notes.post({"node": 0, "kind": "prted", "to": host, "command": command})
    return 0
