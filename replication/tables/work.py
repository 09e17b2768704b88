"""How much decoding was done, and where; for ``status``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkDone:
    """How much was decoded since the start: by Spark jobs, and by the driver itself. Sizes are of frames.

    ``retries`` counts parts of jobs that succeeded only when their task was run again. ``queries`` are jobs for other
    processes, such as those of ``verify``.
    """

    jobs: int = 0
    tasks: int = 0
    retries: int = 0
    job_rows: int = 0
    job_bytes: int = 0
    driver_batches: int = 0
    driver_rows: int = 0
    driver_bytes: int = 0
    queries: int = 0
    query_bytes: int = 0

    def add(self, tasks: int, retries: int, rows: int, size: int) -> None:
        """Count a job of ``tasks`` tasks, or with 0 a batch of the driver."""
        if tasks:
            self.jobs += 1
            self.retries += retries
            self.tasks += tasks
            self.job_rows += rows
            self.job_bytes += size
        elif size:
            self.driver_batches += 1
            self.driver_rows += rows
            self.driver_bytes += size
