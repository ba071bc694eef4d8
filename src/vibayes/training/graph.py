"""One training step, captured in a CUDA graph where that is possible."""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Generic, ParamSpec, TypeVar

import torch

from vibayes.compiler import compiler_options, quiet_compiler
from vibayes.training.problem import Problem
from vibayes.training.run import Options

__all__ = ["Compiled", "Step"]

logger = logging.getLogger("vibayes")

# Steps run eagerly before capture, so that every library has made its workspaces.
_WARM_UP = 3


T = TypeVar("T")
P = ParamSpec("P")


class Compiled(Generic[P, T]):
    """The function through `torch.compile`, or as it is where that fails; the reason is logged once.

    On a CPU torch's own normals are several times faster than the compiler's, and are those of the eager function. Each
    size of a batch (the last of a loader's epoch may be shorter) is compiled on its own: code for all sizes cannot be
    made of much that models do.

    Args:
        function: what to compile.
        device: where it runs.
        keep: keeps what a call changes, such as generators, and gives a function that puts it back: where the first
            call fails, the second is to begin where it began.
    """

    def __init__(
        self, function: Callable[P, T], device: torch.device, keep: Callable[[], Callable[[], None]] | None = None
    ) -> None:
        self.function, self.keep = function, keep
        with quiet_compiler():
            self.chosen: Callable[P, T] = torch.compile(
                _with_own_code(function), options=compiler_options(device), dynamic=False
            )
        self.calls = 0
        self._put_back: Callable[[], None] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it; the first call compiles."""
        keep, self.keep = self.keep, None  # whose owner may own this: a circle would hold all tensors of a run
        self._put_back = None if keep is None else keep()
        self.calls += 1
        try:
            return self.chosen(*args, **kwargs)
        except Exception as error:
            if not self.failed(error):
                raise
            return self.chosen(*args, **kwargs)

    def failed(self, error: Exception) -> bool:
        """Go on without the compiler if it is to blame for an error, of the gradients of the first call, say."""
        if self.calls > 1 or self.chosen is self.function or isinstance(error, torch.OutOfMemoryError):
            return False
        self.chosen = self.function
        if self._put_back is not None:
            self._put_back()
        logger.warning("torch.compile failed and the step runs without it: %s", str(error).partition("\n")[0])
        return True


def _with_own_code(function: Callable[P, T]) -> Callable[P, T]:
    """Calls the function, by code that nothing else runs by.

    The compiler keeps what it makes with the code that it made it of, and gives up on code that it has met eight times.
    A method is the same code for all models: the ninth one of a process would train without the compiler.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    return FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)


class Step:
    """Calls a function of no arguments whose inputs and outputs stay the same tensors.

    On CUDA, after a few eager calls, the function is captured once and replayed from then on: no Python and no kernel
    launches one by one. Where capture is impossible the function goes on running eagerly, and the reason is logged.

    It does not keep the function, whose owner keeps it: a circle would hold all tensors of a run until the garbage
    collector comes by.

    Args:
        problem: says whether steps are alike.
        options: `graph` (None: where possible).
    """

    def __init__(self, problem: Problem, options: Options) -> None:
        wanted = options.graph if options.graph is not None else problem.device.type == "cuda"
        self.capture = wanted and problem.device.type == "cuda" and problem.can_be_captured and options.world_size == 1
        if options.graph and not self.capture:
            logger.warning(
                "A CUDA graph was asked for but steps run eagerly: it needs a CUDA device and data in memory."
            )
        self.device = problem.device
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    @property
    def kind(self) -> str:
        """`"graph"` or `"eager"`."""
        return "eager" if self.graph is None else "graph"

    def __call__(self, function: Callable[[], None]) -> None:
        """Run the step once, the same function every time."""
        if self.device.type != "cuda":
            return function()
        with torch.cuda.device(self.device):  # streams and captures are those of the current GPU
            self._run(function)

    def _run(self, function: Callable[[], None]) -> None:
        if self.capture and self.graph is None and self.calls == _WARM_UP:
            self.graph = self._captured(function)
        if self.graph is not None:
            self.graph.replay()
            return
        if self.capture:  # warm-up belongs on a side stream
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                function()
            torch.cuda.current_stream().wait_stream(stream)
        else:
            function()
        self.calls += 1

    def _captured(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        usual, stream = torch.cuda.graph.default_capture_stream, None
        if usual is not None and usual.device.index != torch.cuda.current_device():  # something was captured elsewhere
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            torch.cuda.synchronize()
            with _no_garbage_collection(), torch.cuda.graph(graph, stream=stream):
                function()
        except RuntimeError as error:
            self.capture = False
            torch.cuda.synchronize()
            # A capture that was broken off leaves the generator waiting for its end; a copy of its state does not wait.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            logger.warning("The step could not be captured in a CUDA graph and runs eagerly: %s", error)
            return None
        return graph


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Nothing is freed meanwhile but what is let go of: freeing what an earlier graph held would end a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
