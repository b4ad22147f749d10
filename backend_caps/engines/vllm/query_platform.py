"""What vLLM is given in place of a GPU: its platform, compiled modules, groups and memory.

`query_script` loads it into the Python that has vLLM; it imports nothing of this package.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from backend_caps.engines.vllm import query_values
else:
    _load = sys.modules["backend_caps_query_process"].load
    query_values = _load(Path(__file__).with_name("query_values.py"))
_Value: TypeAlias = Any
"""A value of vLLM or of torch, whose classes are not known here."""
_SHARED_BYTES = {
    (8, 0): 166_912,
    (8, 6): 101_376,
    (9, 0): 232_448,
    (10, 0): 232_448,
    (9, 4): 65_536,
    (9, 5): 163_840,  # of ROCm
}
"""The shared memory that a kernel can have, by compute capability; of others that of 8.6."""
_COMPILES = "vllm.third_party.deep_gemm"
"""A package in vLLM's wheel that asks for CUDA's compiler when it is imported."""
_REQUIRED = {False: ("tokenspeed_mla",), True: query_values.OF_ROCM}
"""Packages on which a choice depends, by whether ROCm drives the GPU, for which they are built."""
_OF_COMPILED = re.compile(r"_(\w*_)?C(_\w+)?")
"""How torch names groups of vLLM's compiled operators: `_C`, `_moe_C`, `_C_cache_ops`."""


def describe(machine: Mapping[str, Any], stand_ins: ModuleType) -> None:
    """Make vLLM see a machine with GPUs: its platform, and its compiled modules.

    Other packages are those of the environment, as vLLM takes another backend where one is missing.

    Args:
        machine: as `query_machine.stand_in` has it, which described torch before.
        stand_ins: the module `query_machine`.
    """
    # Without it vLLM asks a server of NVIDIA's whether FlashInfer's kernels can be fetched.
    os.environ.setdefault("VLLM_HAS_FLASHINFER_CUBIN", "1")
    torch = importlib.import_module("torch")
    count = machine["num_gpus"]
    torch.accelerator.device_count = lambda: count
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.empty_cache = lambda: None
    for name in ("Stream", "Event"):  # of a CPU's torch they raise errors
        setattr(torch.cuda, name, type(name, (_Handle,), {}))
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_: torch.cuda.Stream()
    vars(torch._C).setdefault("_cuda_getCurrentRawStream", lambda *_: 0)  # noqa: SLF001 - dynamo imports it
    is_rocm = machine["rocm"] is not None
    _drive_triton(machine, stand_ins.Anything)
    sys.meta_path.insert(0, _compiled(stand_ins.Packages)())
    sys.meta_path.append(stand_ins.Packages(*_REQUIRED[is_rocm]))  # where they are missing
    if is_rocm:
        modules: _Value = sys.modules
        modules["amdsmi"] = _driver_library(machine)
        modules["flashinfer"] = None  # as if it were not installed: it is not built for ROCm
    _answer_operators(importlib.import_module("torch._ops")._OpNamespace, stand_ins.Anything)  # noqa: SLF001
    # Of CUDA's the one that asks torch, and not NVML, whose library comes with a driver.
    name, cls = ("rocm", "RocmPlatform") if is_rocm else ("cuda", "NonNvmlCudaPlatform")
    platform = importlib.import_module(f"vllm.platforms.{name}")
    setattr(platform, f"_{name}_device_count_stateless", lambda *_: count)
    platforms: _Value = importlib.import_module("vllm.platforms")
    platforms._current_platform = getattr(platform, cls)()  # noqa: SLF001
    registry: _Value = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda function: function()  # noqa: SLF001 - this process is described
    # vLLM logs why a model's class cannot be looked at, and refuses in words that do not say it.
    registry._try_inspect_model_cls = lambda _, model: model.inspect_model_cls()  # noqa: SLF001
    for name in ("_save_modelinfo_to_cache", "_load_modelinfo_from_cache"):  # in the user's home
        setattr(registry._LazyRegisteredModel, name, lambda *_: None)  # noqa: SLF001


def _driver_library(machine: Mapping[str, Any]) -> _Value:
    """Make the library that lists AMD's GPUs, which comes with their driver."""
    library: _Value = ModuleType("amdsmi")
    library.AmdSmiException = type("AmdSmiException", (Exception,), {})
    library.AmdSmiMemoryType = SimpleNamespace(VRAM="vram")
    sizes = (machine[name] for name in ("gcn_arch", "device_name", "memory_mib", "num_gpus"))
    for name, answer in query_values.driver_answers(*sizes).items():
        setattr(library, name, _answering(answer))
    return library


def _answering(answer: object) -> Callable[..., object]:
    return lambda *_args: answer


def _drive_triton(machine: Mapping[str, Any], anything: _Value) -> None:
    """Make Triton describe the GPU too; without a driver it raises."""
    driver = importlib.import_module("triton.runtime").driver
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    major, minor = machine["compute_capability"]
    shared = _SHARED_BYTES.get((major, minor), _SHARED_BYTES[8, 6])

    active = anything("driver")
    arch = machine["gcn_arch"]
    own = target("hip", arch, 64) if arch else target("cuda", major * 10 + minor, 32)
    properties = {
        "max_shared_mem": shared,
        "multiprocessor_count": machine["num_multiprocessors"],
        "warpSize": own.warp_size,
    }
    active.utils = SimpleNamespace(get_device_properties=lambda _: properties)
    active.get_current_target = lambda: own
    active.get_current_device = lambda: 0
    driver.set_active(active)


class _Handle:
    """A stream or an event, on which nothing runs."""

    cuda_stream = 0

    def __init__(self, *_args: object, **_named: object) -> None:
        """Take what torch's takes."""


def silence() -> None:
    """Print nothing of vLLM's, and leave its loggers for what listens to them."""
    logs = importlib.import_module("vllm.logger")
    if hasattr(logs, "configure_logging_if_needed"):  # from 0.33 on, each line would otherwise
        own = importlib.import_module("vllm.config.logging")
        logs.configure_logging_if_needed(own.LoggingConfig())
    logger = logging.getLogger("vllm")
    logger.handlers.clear()
    logger.propagate = False


def _compiled(packages: type) -> type:
    """Make the finder of vLLM's compiled modules, which no machine without its GPU can load."""

    class Compiled(packages):  # type: ignore[misc] # loaded by its path
        def find_spec(
            self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
        ) -> ModuleSpec | None:
            if fullname.startswith(_COMPILES):
                return ModuleSpec(fullname, self, is_package=True)
            if not fullname.startswith("vllm."):
                return None
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
                return None
            return ModuleSpec(fullname, self)

    return Compiled


def _answer_operators(namespace: _Value, anything: _Value) -> None:
    """Let torch have the operators of compiled modules that are not loaded."""
    read = namespace.__getattr__

    def operator(self: _Value, name: str) -> _Value:
        try:
            return read(self, name)
        except AttributeError:
            if name.startswith("__") or not _OF_COMPILED.fullmatch(self.name):
                raise
            return anything(name)

    namespace.__getattr__ = operator


def join_groups(parallel: _Value, anything: _Value) -> None:
    """Let vLLM find the process groups of a server of this size."""
    state = importlib.import_module("vllm.distributed.parallel_state")

    def size(name: str) -> int:
        return int(getattr(parallel, f"{name}_size", 1))

    tensor, data = size("tensor_parallel"), size("data_parallel")
    sizes = {
        "_TP": tensor,
        "_PP": 1,  # of several stages the first one is built
        "_DP": data,
        "_EP": tensor * data,
        "_EPLB": 1,
        "_DCP": size("decode_context_parallel"),
        "_PCP": size("prefill_context_parallel"),
        "_WORLD": parallel.world_size,
    }
    for name, number in sizes.items():
        setattr(state, name, _group(number, anything))
    # Modules have imported the function by its name.
    state.in_the_same_node_as.__code__ = _in_one_node.__code__


def _in_one_node(pg: _Value, source_rank: int = 0) -> list[bool]:
    del source_rank
    return [True] * int(pg.world_size)


def begin_workspaces() -> None:
    """Let layers ask for buffers that they share, as the runner does before it builds them."""
    with contextlib.suppress(ImportError):  # releases before 0.12 have none
        module: _Value = importlib.import_module("vllm.v1.worker.workspace")
        module.init_workspace_manager(importlib.import_module("torch").device("meta"))


def _group(size: int, anything: _Value) -> _Value:
    """Make a group of so many processes, of which this one is the first."""
    group = anything("group")
    group.world_size, group.ranks = size, list(range(size))
    group.rank = group.rank_in_group = group.local_rank = group.first_rank = 0
    group.last_rank = size - 1
    group.is_first_rank = group.is_last_rank = True
    group.device_group = group.cpu_group = group
    group.size = lambda: size
    return group


@contextlib.contextmanager
def current(config: _Value) -> Iterator[None]:
    """Set the configuration that vLLM's functions ask for."""
    with importlib.import_module("vllm.config").set_current_vllm_config(config):
        yield


@contextlib.contextmanager
def without_memory(config: _Value) -> Iterator[None]:
    """Make tensors in a `with` block that have a shape, and no memory."""
    torch = importlib.import_module("torch")
    base = importlib.import_module("torch.overrides").TorchFunctionMode

    class OnMeta(base):  # type: ignore[misc, valid-type] # imported here
        """Puts a tensor on `meta` that is asked for on a GPU."""

        def __torch_function__(
            self, function: _Value, _types: object, args: _Value = (), named: _Value = None
        ) -> _Value:
            named = dict(named or {})
            device = named.get("device")
            if isinstance(device, int) or "cuda" in str(device):
                named["device"] = "meta"
            return function(*args, **named)

    before = torch.get_default_dtype()
    torch.set_default_dtype(config.model_config.dtype)
    try:
        with current(config), torch.device("meta"), OnMeta():
            yield
    finally:
        torch.set_default_dtype(before)


def uses_second_runner(config: _Value) -> bool:
    """Return whether vLLM's second model runner runs; until 0.18 the environment says so."""
    name = query_values.SECOND_RUNNER
    if hasattr(config, name):
        return bool(getattr(config, name))
    variables = importlib.import_module("vllm.envs").environment_variables
    return bool(variables.get(f"VLLM_{name.upper()}", bool)())


class _BuiltError(Exception):
    """The model of a draft is built, and what loads it need not go on."""


def load_draft(config: _Value, drafter: _Value, initialize: _Value) -> None:
    """Load a draft's model as the runner does, up to the reading of weights.

    Args:
        config: the server's, whose layers come to hold the draft's.
        drafter: the class that loads it.
        initialize: builds a model.
    """

    def build(*, load_config: object = None, **named: _Value) -> None:
        del load_config
        initialize(**named)
        raise _BuiltError

    load = importlib.import_module("vllm.model_executor.model_loader").get_model
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("get_model") is load:  # `getattr` may import
            vars(module)["get_model"] = build
    made = drafter.__new__(drafter)
    made.vllm_config = config
    made.speculative_config = config.speculative_config
    made.draft_model_config = made.speculative_config.draft_model_config
    loader = next(name for name in query_values.LOADERS if hasattr(drafter, name))
    others = [] if loader == query_values.LOADERS[-1] else [set[str]()]
    with contextlib.suppress(_BuiltError):
        getattr(made, loader)(None, *others)


class Words(logging.Handler):
    """Keeps the engine's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning's text."""
        self.found.append(record.getMessage())

    @contextlib.contextmanager
    def heard(self, name: str) -> Iterator[None]:
        """Listen to a logger in a `with` block."""
        logger = logging.getLogger(name)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
