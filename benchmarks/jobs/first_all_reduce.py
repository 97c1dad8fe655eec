"""Says when the ranks of torch.distributed have met: after their first all_reduce."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
size = dist.get_world_size()
assert total.item() == size * (size + 1) // 2
# One write: ranks that share a terminal must not cut each other's lines.
os.write(1, f"met {size} {time.time()}\n".encode())
dist.destroy_process_group()
