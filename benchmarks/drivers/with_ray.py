"""Ray's side: its own job client against its own dashboard, in a process that stays warm."""

import os
import sys
import time

from lines import serve
from ray.job_submission import JobSubmissionClient

client = JobSubmissionClient(os.environ["RAY_API_SERVER_ADDRESS"])


def job(folder):
    """Seconds from the submit call to a terminal status in the caller's hands."""
    begun = time.perf_counter()
    submitted = client.submit_job(entrypoint=f"{sys.executable} {folder}/script.py")
    while True:
        status = client.get_job_status(submitted)
        if status.is_terminal():
            break
        time.sleep(0.01)
    seconds = time.perf_counter() - begun
    assert status == "SUCCEEDED", client.get_job_info(submitted)
    return seconds


if __name__ == "__main__":
    serve(job=job)
