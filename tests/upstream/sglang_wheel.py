"""SGLang's own relay, read out of its wheel and run without SGLang.

`overlap_utils.py` is executed with an import function of its own: every `sglang.*` it asks for
comes from a private table of stubs, so nothing named sglang is imported, and nothing has to be
installed. The tests and the benchmark use this one file.
"""

from __future__ import annotations

import builtins
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor

WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
OVERLAP_UTILS = "sglang/srt/managers/overlap_utils.py"
GATHER = "sglang/srt/speculative/triton_ops/gather_spec_extras.py"

Extras = tuple[Tensor, Tensor, Tensor, Tensor | None]
Gather = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Extras]


def find_wheel(version: str, package: str = "sglang") -> Path:
    """Return the path of a fetched wheel, of SGLang or of another engine.

    Raises:
        FileNotFoundError: it is not there; the message has the command that fetches it.
    """
    found = sorted(WHEELS.glob(f"{package}-{version}-*.whl"))
    if not found:
        raise FileNotFoundError(
            f"no wheel of {package} {version} in .cache/wheels. Fetch it: "
            f"python -m pip download --no-deps {package}=={version} -d .cache/wheels"
        )
    return found[0]


def gather_by_index(
    indices: Tensor, topk_p: Tensor, topk_index: Tensor, tokens: Tensor, hidden: Tensor | None
) -> Extras:
    """Stand in for the fused Triton kernel, which a CPU cannot run, by what it replaced."""
    states = None if hidden is None else hidden[indices]
    return topk_p[indices], topk_index[indices], tokens[indices], states


@dataclass
class RuntimeContext:
    """Stand in for SGLang 0.5.23's runtime context, by the accessors that it is asked for."""

    enable_two_batch_overlap: bool = False
    speculative_algorithm: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    speculative_adaptive: bool = False
    enable_multi_layer_eagle: bool = False
    enable_mixed_chunk: bool = False

    def get_exec(self) -> SimpleNamespace:
        """Return what is published of execution."""
        overlap = SimpleNamespace(enable_two_batch_overlap=self.enable_two_batch_overlap)
        return SimpleNamespace(overlap=overlap)

    def get_spec(self) -> SimpleNamespace:
        """Return what is published of speculation."""
        own = {name: value for name, value in vars(self).items() if "speculative_" in name}
        return SimpleNamespace(**own, enable_multi_layer_eagle=self.enable_multi_layer_eagle)

    def get_schedule(self) -> SimpleNamespace:
        """Return what is published of scheduling."""
        return SimpleNamespace(enable_mixed_chunk=self.enable_mixed_chunk)


class SpeculativeAlgorithm:
    """Stand in for SGLang's algorithms, as far as the decision asks."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    @classmethod
    def from_string(cls, name: str | None) -> SpeculativeAlgorithm:
        """Read a name in any case."""
        return cls(None if name is None else name.upper())

    def is_ngram(self) -> bool:
        """Tell whether it is the one whose verify reads the mirror."""
        return self._name == "NGRAM"


def load_overlap_utils(
    version: str = "0.5.13",
    *,
    hidden_states: bool = True,
    gather: Gather = gather_by_index,
    context: RuntimeContext | None = None,
    is_cuda: bool = False,
) -> ModuleType:
    """Run a wheel's `overlap_utils.py` on stubs, and return its names as a module.

    Args:
        version: the wheel's version.
        hidden_states: what SGLang's server arguments say about the draft's hidden state.
        gather: what stands in for the Triton kernel.
        context: the flags as 0.5.23 publishes them; 0.5.13 asks for none.
        is_cuda: whether it takes its device for CUDA, and so has a pinned column and a private
            stream of its own. The streams are those of the device that its map is on.
    """
    with zipfile.ZipFile(find_wheel(version)) as wheel:
        source = wheel.read(OVERLAP_UTILS).decode()
    module = ModuleType(f"overlap_utils_of_sglang_{version}")
    stubs = {
        **_stubs(hidden_states=hidden_states, gather=gather, is_cuda=is_cuda),
        "sglang.srt.runtime_context": context or RuntimeContext(),
    }
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importer(stubs)}
    code = compile(source, f"sglang-{version}/{OVERLAP_UTILS}", "exec", dont_inherit=True)
    sys.modules[module.__name__] = module  # a dataclass looks itself up there
    try:
        exec(code, module.__dict__)  # noqa: S102 - a wheel that we pin, run as its package would
    finally:
        del sys.modules[module.__name__]
    module.__dict__["torch"] = torch
    return module


def load_gather(folder: Path, version: str = "0.5.13") -> Gather:
    """Run a wheel's fused gather, which is a Triton kernel: it needs Triton and a GPU.

    Args:
        folder: where its file is put, and stays: Triton reads a kernel's source from there.
        version: the wheel's version.
    """
    path = folder / Path(GATHER).name
    with zipfile.ZipFile(find_wheel(version)) as wheel:
        path.write_bytes(wheel.read(GATHER))
    spec = spec_from_file_location(f"gather_of_sglang_{version}", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    gather: Gather = module.gather_spec_extras
    return gather


@contextmanager
def cpu_record_stream() -> Iterator[None]:
    """Let CPU tensors take `record_stream`, which SGLang 0.5.13 calls and torch refuses."""
    with patch.object(torch.Tensor, "record_stream", lambda _tensor, _stream: None):
        yield


def make_future_map(
    module: ModuleType,
    *,
    pool_size: int,
    speculative: bool,
    needs_cpu_seq_lens: bool,
    device: torch.device | str = "cpu",
) -> SimpleNamespace:
    """Make SGLang's FutureMap for a pool of `pool_size` rows on a device."""
    algorithm = SimpleNamespace(is_none=lambda: not speculative, is_some=lambda: speculative)
    pool = SimpleNamespace(req_to_token=torch.empty(pool_size, 1))
    made: SimpleNamespace = module.FutureMap(
        torch.device(device), algorithm, pool, needs_cpu_seq_lens=needs_cpu_seq_lens
    )
    return made


def _stubs(*, hidden_states: bool, gather: Gather, is_cuda: bool) -> Mapping[str, object]:
    def no() -> bool:
        return False

    is_in_ci, gathers = SimpleNamespace(get=no), SimpleNamespace(gather_spec_extras=gather)
    return {
        "msgspec": SimpleNamespace(Struct=object),
        "sglang.kernels.ops.speculative.gather_spec_extras": gathers,
        "sglang.srt.environ": SimpleNamespace(envs=SimpleNamespace(SGLANG_IS_IN_CI=is_in_ci)),
        "sglang.srt.speculative.spec_info": SimpleNamespace(
            SpeculativeAlgorithm=SpeculativeAlgorithm
        ),
        "sglang.srt.speculative.spec_utils": SimpleNamespace(
            spec_need_hidden_states=lambda: hidden_states
        ),
        "sglang.srt.speculative.triton_ops.gather_spec_extras": gathers,
        "sglang.srt.utils": SimpleNamespace(is_cuda=lambda: is_cuda, is_hip=no, is_npu=no),
        "torch": _TorchWithoutCompiler("torch"),
    }


class _TorchWithoutCompiler(ModuleType):
    """Torch while the file is executed: its debug helper is decorated, and never called."""

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    @staticmethod
    def compile(**_options: object) -> Callable[[object], object]:
        return lambda function: function


def _importer(stubs: Mapping[str, object]) -> Callable[..., object]:
    def import_stub(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - the protocol's names
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        if name in stubs:
            return stubs[name]
        assert not name.startswith("sglang"), f"overlap_utils.py imports {name}: it needs a stub"
        return __import__(name, globals, locals, fromlist or (), level)

    return import_stub
