"""Faults put into engines' Triton backends, and the check that finds each.

Runs in an environment that `make upstream` builds, which has the engine in it:

    python -m tests.upstream.engine_mutants ENGINE NAME

A fault is an edit of one line, made while the module is imported: the installed engine stays as it
is. It prints what the check finds; with `--plain` behind NAME, on the engine as it is.
"""

from __future__ import annotations

import importlib.util
import linecache
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import click

from backend_caps.engines.read import read_engine
from backend_caps.kit.check import Effort, engine_adapter
from backend_caps.kit.execution import run_checks
from docs.tools.markdown import table

BACKENDS = {"sglang": "TritonAttnBackend", "vllm": "TritonAttentionBackend"}
"""The class that is asked, of each engine."""


class Mutant(NamedTuple):
    """An edit of one line of an engine."""

    check: str
    """The code of the check that finds it."""
    module: str
    """The module whose source is edited."""
    old: str
    """Stands in the source once, or first behind `behind`."""
    new: str
    behind: str = ""
    """Stands in the source once, where `old` does not."""
    effort: Effort = Effort.quick()

    def edited(self, source: str) -> str:
        """Return the source of the module with the fault.

        Raises:
            ValueError: the texts do not stand there, or more than once.
        """
        sought = self.behind or self.old
        if (count := source.count(sought)) != 1:
            raise ValueError(f"{sought!r} stands {count} times in {self.module}")
        place = source.index(self.old, source.index(sought))
        return source[:place] + self.new + source[place + len(self.old) :]


_SGLANG = "sglang.srt.layers.attention.triton_backend"
_DECODE = "sglang.kernels.ops.attention.decode_attention"
_EXTEND = "sglang.kernels.ops.attention.extend_attention"
_VLLM = "vllm.v1.attention.backends.triton_attn"
_UNIFIED = "vllm.v1.attention.ops.triton_unified_attention"
MUTANTS: Mapping[str, Mapping[str, Mutant]] = {
    "sglang": {
        "keys are scaled in place": Mutant("kv-scales", _SGLANG, "k.clone(),  #", "k,  #"),
        "a replay keeps the windows' starts": Mutant(
            "sliding-window-graphs",
            _SGLANG,
            "self.window_kv_indptr,",
            "self.window_kv_indptr.clone(),",
            behind="def _update_decode_kv_buffers(",
        ),
        "a window over cached tokens is one short": Mutant(
            "sliding-window",
            _EXTEND,
            ") <= (start_n + offs_n_prefix",
            ") < (start_n + offs_n_prefix",
        ),
        "a block of tokens is taken to lie together": Mutant(
            "numerics",
            _DECODE,
            "            # Page-aware",
            "            kv_loc = tl.load(kv_indices + cur_batch_kv_start_idx + start_n)"
            " + tl.arange(0, BLOCK_N)\n            # Page-aware",
            behind="def _fwd_grouped_kernel_stage1(",
        ),
        "padding of a block takes weight": Mutant(
            "numerics",
            _DECODE,
            "(offs_n[None, :] < split_kv_end), qk,",
            "(offs_n[None, :] >= 0), qk,",
            behind="def _fwd_grouped_kernel_stage1(",
        ),
        "parts of a context are merged without their scales": Mutant(
            "numerics",
            _DECODE,
            "e_sum = e_sum * old_scale + exp_logic",
            "e_sum = e_sum + exp_logic",
        ),
        "a replay takes the host's lengths": Mutant(
            "replay",
            _SGLANG,
            "seq_lens=seq_lens,",
            "seq_lens=forward_batch.seq_lens_cpu.to(self.device),",
            behind="self.forward_metadata = self._build_cuda_graph_forward_metadata(",
        ),
        "a decode asks the device for the lengths' sum": Mutant(
            "sync-free-prepare",
            _SGLANG,
            "seq_lens_sum, dtype=torch.int64",
            "int(forward_batch.seq_lens.sum()), dtype=torch.int64",
            behind='"""Init auxiliary variables for triton attention backend."""',
        ),
        "every layer of a model has its window": Mutant(
            "mixed-windows",
            _SGLANG,
            "layer.sliding_window_size is not None and layer.sliding_window_size > -1",
            "self.sliding_window_size is not None and self.sliding_window_size > -1",
            behind="    def forward_decode(",
        ),
        "graphs have room for the tokens of the pool": Mutant(
            "replay",
            _SGLANG,
            "(max_num_tokens * self.max_context_len)",
            "(self.token_to_kv_pool.size)",
        ),
    },
    "vllm": {
        "a graph keeps the lengths of its capture": Mutant(
            "replay",
            _VLLM,
            "seq_lens=seq_lens,",
            "seq_lens=seq_lens.clone(),",
            behind="    def build(",
        ),
        "a batch asks the device for its longest context": Mutant(
            "sync-free-prepare",
            _VLLM,
            "max_seq_len = common_attn_metadata.max_seq_len",
            "max_seq_len = int(common_attn_metadata.seq_lens.max())",
        ),
        "a window is one short": Mutant(
            "sliding-window",
            _UNIFIED,
            "SLIDING_WINDOW=(1 + window_size[0]),",
            "SLIDING_WINDOW=(window_size[0]),",
        ),
        "a tile has the block of its first token": Mutant(
            "numerics",
            _UNIFIED,
            "block_table_offset + seq_offset // BLOCK_SIZE",
            "block_table_offset + (j * TILE_SIZE + offs_t * 0) // BLOCK_SIZE",
        ),
        "a tile is read beyond its context": Mutant(
            "numerics",
            _UNIFIED,
            "tile_mask = seq_offset < max_seq_prefix_len",
            "tile_mask = seq_offset < max_seq_prefix_len + TILE_SIZE",
        ),
        "padding is stored": Mutant(
            "padding-harmless",
            "vllm.v1.attention.ops.triton_reshape_and_cache_flash",
            "if slot_idx < 0:",
            "slot_idx = tl.maximum(slot_idx, block_size)\n    if slot_idx < 0:",
            behind="def reshape_and_cache_kernel_flash(",
        ),
        "every layer has the scale of the first": Mutant(
            "kv-scales",
            _VLLM,
            "k_descale = layer._k_scale",
            'k_descale = vars(attn_metadata).setdefault("scale", layer._k_scale)',
        ),
        "scratch has heads of their exact size": Mutant(
            "numerics",
            _VLLM,
            "headdim_padded = next_power_of_2(self.headdim)",
            "headdim_padded = self.headdim",
            # It shows in large batches with this head size, which few cases have.
            effort=Effort(),
        ),
        "lengths are the host's bounds": Mutant(
            "loose-bounds",
            _VLLM,
            "        seq_lens = common_attn_metadata.seq_lens\n",
            """\
        seq_lens = common_attn_metadata.seq_lens
        if (bounds := common_attn_metadata.seq_lens_cpu_upper_bound) is not None:
            seq_lens.copy_(bounds)
""",
        ),
        "the last part of a context is not merged": Mutant(
            "numerics",
            _UNIFIED,
            "act_num_segments = cdiv_fn(seq_len, tiles_per_segment * TILE_SIZE)",
            "act_num_segments = tl.maximum(seq_len // (tiles_per_segment * TILE_SIZE), 1)",
        ),
    },
}
"""By engine, and by what is wrong."""


def mutants_table(engine: str) -> str:
    """Give each mutant a row: the fault, the module, and the check that finds it."""
    rows = [(name, f"`{own.module}`", f"`{own.check}`") for name, own in MUTANTS[engine].items()]
    return table(("fault", "module", "found by"), rows)


class _EditedLoader(Loader):
    """Runs a module from edited source, which is shown in its tracebacks and read by Triton."""

    def __init__(self, path: str, mutant: Mutant) -> None:
        self._path, self._mutant = path, mutant

    def exec_module(self, module: ModuleType) -> None:
        source = self._mutant.edited(Path(self._path).read_text("utf-8"))
        # Entries without a time are not compared with the file.
        linecache.cache[self._path] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            self._path,
        )
        exec(compile(source, self._path, "exec"), module.__dict__)  # noqa: S102 - an engine's module


class _Editor(MetaPathFinder):
    """Finds the module of a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del target
        if name != self._mutant.module:
            return None
        found = PathFinder.find_spec(name, path)
        assert found is not None, "the module is installed"
        assert found.origin is not None, "and has a file"
        loader = _EditedLoader(found.origin, self._mutant)
        return importlib.util.spec_from_file_location(name, found.origin, loader=loader)


def findings(engine: str, mutant: Mutant, *, is_plain: bool) -> set[str]:
    """Run a mutant's check on an engine's class, and return what it finds.

    A process runs it once: modules stay imported.

    Args:
        engine: its name.
        mutant: the fault, with the check and its effort.
        is_plain: whether the class is left as it is.
    """
    if not is_plain:
        sys.meta_path.insert(0, _Editor(mutant))
    adapter = engine_adapter(engine)
    subject = adapter.subject(read_engine(engine).registry, BACKENDS[engine])
    checks = [own for own in adapter.checks if own.code == mutant.check]
    (result,) = run_checks(subject, checks, effort=mutant.effort).checks
    assert mutant.module in sys.modules, "the class imports what is edited"
    return {f"{own.case.name}: {own.fault.what}" for own in result.findings}


def main(words: Sequence[str]) -> None:
    """Run a mutant, or with `--plain` its check on the class as it is."""
    engine, name, *options = words
    found = findings(engine, MUTANTS[engine][name], is_plain="--plain" in options)
    for each in sorted(found):
        click.echo(each)


if __name__ == "__main__":
    main(sys.argv[1:])
