"""Says when the ranks of MPI have met: after their first sum."""

import os
import time

from mpi4py import MPI

total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank() + 1)
size = MPI.COMM_WORLD.Get_size()
assert total == size * (size + 1) // 2
# One write: ranks that share a terminal must not cut each other's lines.
os.write(1, f"met {size} {time.time()}\n".encode())
