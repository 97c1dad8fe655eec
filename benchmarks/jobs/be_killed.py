"""In a rank: write the process number below FOLDER, then work together until the end.

With a second word, the rank has SIGTERM ignored, and waits beside its peer instead.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

folder, stubborn = sys.argv[1], len(sys.argv) > 2
dist.init_process_group("gloo")
ones = torch.ones(1000)
dist.all_reduce(ones)
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.path.join(folder, "." + os.environ["RANK"]), "w") as number:
    number.write(str(os.getpid()))
os.rename(number.name, os.path.join(folder, os.environ["RANK"]))
while True:
    time.sleep(0.01)
    if not stubborn:
        dist.all_reduce(ones)
