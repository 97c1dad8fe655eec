"""In a job: work for a while, log, write an output, and end with the code that was asked for."""

import os
import sys
import time

from azureml.core import Run

number, seconds, code = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
run = Run.get_context()
os.makedirs("outputs", exist_ok=True)
for step in range(10):
    run.log("step", step)
    print("step", step, flush=True)
    time.sleep(seconds / 10)
with open("outputs/number.txt", "w") as answer:
    answer.write(str(number))
sys.exit(code)
