"""Says when the ranks of MPI have met: after their first sum."""

import time

from mpi4py import MPI

total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank() + 1)
size = MPI.COMM_WORLD.Get_size()
assert total == size * (size + 1) // 2
print("met", size, time.time(), flush=True)
