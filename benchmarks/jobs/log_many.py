"""In a job: log COUNT numbered points over SECONDS, five names in turn."""

import sys
import time

from azureml.core import Run

run = Run.get_context()
count, seconds = int(sys.argv[1]), float(sys.argv[2])
begun = time.monotonic()
for number in range(count):
    run.log(f"value-{number % 5}", number)
    if number % 1000 == 0:
        ahead = begun + seconds * number / count - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
print("logged", count)
