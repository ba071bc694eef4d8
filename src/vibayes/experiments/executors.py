"""Where groups are trained: this process, local processes, or a Ray cluster.

Each gets the same tasks and calls the same function, so results, claims and resuming are the same.
"""

import importlib
import multiprocessing
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from vibayes.errors import ConfigurationError
from vibayes.experiments.names import check_name
from vibayes.training.workers import end_with_parent

__all__ = ["EXECUTORS", "Executor", "Processes", "Ray", "ThisProcess", "make_executor"]

Task = Mapping[str, Any]


class Executor(ABC):
    """Runs tasks and gives back what becomes of each.

    Attributes:
        name: as on the command line; written into result files.
        local: whether workers see this machine's devices.
        device: where workers train unless told.
    """

    name = ""
    local = True
    device = "cpu"

    @abstractmethod
    def run(
        self, function: Callable[[Task], Any], tasks: Sequence[Task], labels: Sequence[Any], display: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield `(label, outcome)` for every task, in the order they end."""


class ThisProcess(Executor):
    """One group after the other, here."""

    name = "process"

    def run(
        self, function: Callable[[Task], Any], tasks: Sequence[Task], labels: Sequence[Any], display: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield `(label, outcome)` for every task, in order."""
        for label, task in zip(labels, tasks, strict=True):
            yield label, function(task)


class Processes(Executor):
    """Local worker processes, one torch thread each.

    Args:
        workers: how many; one per core when None.
    """

    name = "processes"

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ConfigurationError(f"workers must be a positive whole number, got {workers}.")
        self.workers = workers or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(2))

    def run(
        self, function: Callable[[Task], Any], tasks: Sequence[Task], labels: Sequence[Any], display: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield `(label, outcome)` for every task, in the order they end; a worker that dies is replaced once.

        Workers end with this process, however it ends, and at once when it is interrupted.
        """
        left = dict(enumerate(tasks))
        context = multiprocessing.get_context("spawn")
        for attempt in range(2):
            stop = context.Event()
            pool = ProcessPoolExecutor(
                min(self.workers, max(len(left), 1)), context, initializer=_begin_worker, initargs=(stop,)
            )
            futures: dict[Future[Any], int] = {pool.submit(function, task): i for i, task in left.items()}
            try:
                while futures:
                    for future in wait(futures, return_when=FIRST_COMPLETED).done:
                        i = futures.pop(future)
                        outcome = future.result()
                        del left[i]
                        yield labels[i], outcome
                return
            except BrokenProcessPool as error:
                if attempt == 1:
                    raise ConfigurationError(
                        "A worker process died twice, most likely for lack of memory. Use fewer --workers; "
                        "finished runs are kept."
                    ) from error
            finally:
                if futures:  # interrupted: nobody waits for what is under way, which a checkpoint keeps
                    stop.set()
                pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker(stop: Any) -> None:
    torch.set_num_threads(1)
    threading.Thread(target=end_with_parent, args=(stop.wait,), daemon=True).start()


class Ray(Executor):
    """Tasks on a Ray cluster whose machines share the folder of results.

    Args:
        address: of the cluster, `"auto"` for the one this machine belongs to; None starts one here.
        workers: how many tasks run at once; as many as the cluster has room for when None.
    """

    name = "ray"
    local = False

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise ConfigurationError('--executor ray needs Ray: pip install "vibayes[ray]".') from None
        self.ray = ray
        self.workers = workers
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, include_dashboard=False if address is None else None)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigurationError(f"No Ray cluster at {address!r}: {error}") from error
        self.device = "cuda" if ray.cluster_resources().get("GPU", 0) >= 1 else "cpu"

    def run(
        self, function: Callable[[Task], Any], tasks: Sequence[Task], labels: Sequence[Any], display: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield `(label, outcome)` for every task, in the order they end."""
        gpu = bool(tasks) and str(tasks[0].get("device", "cpu")).startswith("cuda")
        remote = self.ray.remote(num_cpus=1, num_gpus=1 if gpu else 0, max_retries=1)(_on_ray)
        waiting = list(enumerate(tasks))
        limit = self.workers or len(waiting)
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < limit:
                    i, task = waiting.pop(0)
                    running[remote.remote(function, dict(task), not gpu)] = i
                ready, _ = self.ray.wait(list(running), num_returns=1)
                for reference in ready:
                    i = running.pop(reference)
                    try:
                        outcome = self.ray.get(reference)
                    except self.ray.exceptions.RayError as error:
                        raise ConfigurationError(
                            f"A Ray task was lost ({str(error).splitlines()[0]}). Run the command again to go on."
                        ) from error
                    yield labels[i], outcome
        finally:
            for reference in running:
                self.ray.cancel(reference, force=True)


def _on_ray(function: Callable[[Task], Any], task: Task, single: bool) -> Any:
    if single:
        torch.set_num_threads(1)
    return function(task)


EXECUTORS = ("process", "processes", "ray")


def make_executor(name: str, *, workers: int | None = None, address: str | None = None) -> Executor:
    """An executor by name."""
    name = check_name(name, EXECUTORS, "executor")
    if name != "ray" and address is not None:
        raise ConfigurationError("--address belongs to --executor ray.")
    if name == "process":
        if workers not in (None, 1):
            raise ConfigurationError("--workers belongs to --executor processes or ray.")
        return ThisProcess()
    return Processes(workers) if name == "processes" else Ray(address, workers)
