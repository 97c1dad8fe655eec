"""Train with DistributedDataParallel: every process has a part of the data and all weights."""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--dist-backend", default="gloo")
parser.add_argument("--dist-url", default="env://")
parser.add_argument("--rank", type=int, default=int(os.environ.get("RANK", 0)))
parser.add_argument("--world-size", type=int, default=int(os.environ.get("WORLD_SIZE", 1)))
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()


def images_and_labels():
    """Ten kinds of 8x8 images, the same ones in every process."""
    source = torch.Generator().manual_seed(7)
    patterns = torch.randn(10, 64, generator=source)
    labels = torch.randint(10, (2000,), generator=source)
    return patterns[labels] + torch.randn(2000, 64, generator=source), labels


def digest(model):
    """A short name for the weights: equal only if they are equal, bit for bit."""
    weights = b"".join(value.detach().cpu().numpy().tobytes() for value in model.parameters())
    return hashlib.sha256(weights).hexdigest()[:16]


dist.init_process_group(
    args.dist_backend, init_method=args.dist_url, rank=args.rank, world_size=args.world_size
)
run = Run.get_context()
print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
if args.dist_backend == "nccl":
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
device = torch.device("cuda" if args.dist_backend == "nccl" else "cpu")

torch.manual_seed(args.rank)  # different weights at the start: DDP gives all of them rank 0's
network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
model = DistributedDataParallel(network.to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = TensorDataset(*images_and_labels())
sampler = DistributedSampler(data)
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    losses = []
    for images, labels in DataLoader(data, batch_size=50, sampler=sampler):
        loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    total = torch.stack(losses).mean()
    dist.all_reduce(total)
    if dist.get_rank() == 0:  # all processes log to one run: let one of them speak
        run.log("loss", total.item() / dist.get_world_size())

print("weights", digest(model), flush=True)
if dist.get_rank() == 0:
    os.makedirs("outputs", exist_ok=True)
    torch.save(network.state_dict(), "outputs/model.pt")
dist.barrier()
dist.destroy_process_group()
