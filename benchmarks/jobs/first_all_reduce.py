"""Says when the ranks of torch.distributed have met: after their first all_reduce."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
size = dist.get_world_size()
assert total.item() == size * (size + 1) // 2
print("met", size, time.time(), flush=True)
dist.destroy_process_group()
