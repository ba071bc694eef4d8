"""Worker processes: chunks of `fit_many` side by side on the cores of one machine.

Each worker is a Python that calls `serve`, with one torch thread. It gets pickled jobs from the process that
started it and hands back trained values, so that a script needs no `if __name__ == "__main__"`, and it ends when that
process ends.
"""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any

import torch

from vibayes.errors import TrainingError, VibayesError
from vibayes.trainable import TrainableModel
from vibayes.training.checkpoint import chunk_path
from vibayes.training.history import History
from vibayes.training.progress import Progress

__all__ = ["cores", "end_with_parent", "make_jobs", "pack", "run_jobs", "serve", "train_in_workers"]

_LENGTH = 8  # bytes that tell how long the next message is


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_jobs(
    models: Sequence[TrainableModel],
    datasets: Sequence[Any],
    rates: list[float],
    seeds: list[int],
    size: int,
    options: dict[str, Any],
    checkpoint: str | os.PathLike[str] | None,
) -> list[bytes] | None:
    """Chunks as jobs for worker processes, or None where they cannot be sent."""
    jobs = []
    for first in range(0, len(models), size):
        part = slice(first, first + size)
        own = {
            "lr": rates[part],
            "seed": seeds[part],
            "chunk": size,
            "workers": 1,
            "progress": False,
            "checkpoint": None if checkpoint is None else str(chunk_path(checkpoint, first, len(models), size)),
        }
        packed = pack({"models": models[part], "datasets": datasets[part], "options": {**options, **own}})
        if packed is None:
            return None
        jobs.append(packed)
    return jobs


def train_in_workers(
    models: Sequence[TrainableModel], jobs: Sequence[bytes], size: int, n_workers: int, progress: bool
) -> list[History]:
    """Train chunks in worker processes and take over their results."""
    with Progress(len(jobs), show=progress, label=f"fit {len(models)} models in {n_workers} processes") as shown:
        ended = itertools.count(1)
        outcomes = run_jobs(jobs, n_workers, lambda number: shown.update(next(ended), f"chunk {number} ended"))
    histories: list[History] = []
    for number, (states, found) in enumerate(outcomes):
        for model, state in zip(models[number * size :], states, strict=False):
            model.load_state_dict(state)
        histories += found
    return histories


def pack(job: Any) -> bytes | None:
    """The job as bytes, or None where another process could not read them (lambdas, classes of a script)."""
    try:
        packed = pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return None if b"__main__" in packed else packed


def run_jobs(jobs: Sequence[bytes], n_workers: int, done: Callable[[int], None]) -> list[Any]:
    """What becomes of each job; `done` is called with the number of each that ends.

    An error in a job is raised here once the others have ended, so that nothing they reached is lost.
    """
    workers = [_Worker() for _ in range(min(n_workers, len(jobs)))]
    idle = list(workers)
    lock = threading.Lock()

    def one(number: int) -> Any:
        with lock:
            worker = idle.pop()
        try:
            return worker.run(jobs[number])
        finally:
            with lock:
                idle.append(worker)
            done(number)

    pool = ThreadPoolExecutor(len(workers))
    try:
        futures = [pool.submit(one, number) for number in range(len(jobs))]
        outcomes = [future.exception() or future.result() for future in futures]
    except BaseException:  # interrupted: what is not begun is left, and the others end as if interrupted themselves
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.interrupt()
        raise
    finally:
        pool.shutdown()
        for worker in workers:
            worker.close()
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


class _Worker:
    """A process that runs jobs one after the other."""

    def __init__(self) -> None:
        # one thread per process from the start: BLAS libraries read the variable when they are loaded
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from vibayes.training.workers import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            process_group=0,  # a terminal interrupts this process alone, which tells its workers, once
        )

    def run(self, job: bytes) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            _write(self.process.stdin, job)
            answer = _read(self.process.stdout)
        except (BrokenPipeError, EOFError):
            raise TrainingError(
                "A worker process died, most likely for lack of memory. Use fewer workers; with a checkpoint, finished "
                "models are kept."
            ) from None
        kind, value = pickle.loads(answer)
        if kind == "error":
            raise value
        return value

    def interrupt(self) -> None:
        """Have it keep what it reached and end."""
        if os.name == "nt":
            self.process.terminate()
        else:
            self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # what a dead worker did not read
                    stream.close()
        try:
            self.process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _write(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_LENGTH, "big") + message)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes:
    length = int.from_bytes(_exactly(stream, _LENGTH), "big")
    return _exactly(stream, length)


def _exactly(stream: IO[bytes], n: int) -> bytes:
    message = stream.read(n)
    if len(message) < n:
        raise EOFError
    return message


# -- in the worker ------------------------------------------------------------------------------------------------


def _fit(job: dict[str, Any]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Train the models of a job; their values and histories."""
    from vibayes.training.replicas import fit_many

    histories = fit_many(job["models"], job["datasets"], **job["options"])
    return [model.state_dict() for model in job["models"]], histories


def end_with_parent(wait: Callable[[float], bool | None] = time.sleep) -> None:
    """End this process when the one that started it is gone, however it went, or when `wait` says so.

    Args:
        wait: waits for so many seconds; true where this process is to end now.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        if wait(1.0):
            break
    os._exit(1)


def serve() -> None:
    """Run jobs from standard input until it ends."""
    torch.set_num_threads(1)
    threading.Thread(target=end_with_parent, daemon=True).start()
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what models print must not get between messages
    while True:
        try:
            job = pickle.loads(_read(incoming))
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer: tuple[str, Any] = ("done", _fit(job))
        except KeyboardInterrupt:
            return
        except VibayesError as error:
            answer = ("error", error)
        except Exception as error:
            answer = ("error", TrainingError(f"A worker process failed: {type(error).__name__}: {error}"))
        _write(outgoing, pickle.dumps(answer))
