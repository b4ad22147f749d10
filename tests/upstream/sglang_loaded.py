"""backend-caps-sglang in SGLang itself, in the environment that `make upstream` builds.

    python -m tests.upstream.sglang_loaded

loads SGLang's plugins as its launcher does, and prints as JSON what came of it.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from importlib import import_module

from backend_caps_sglang.kit.engine_modules import load_sglang

NAME = "torch_padded"


def loaded() -> dict[str, object]:
    """Load the plugins, and look at what SGLang's own modules have then."""
    load_sglang()  # stands in for what a CPU has none of
    decide = import_module("sglang.srt.managers.overlap_utils").decide_needs_cpu_seq_lens
    scheduler = import_module("sglang.srt.managers.scheduler")
    was_same = scheduler.decide_needs_cpu_seq_lens is decide
    import_module("sglang.srt.plugins").load_plugins()
    backends = import_module("sglang.srt.layers.attention.attention_registry").ATTENTION_BACKENDS
    parser = ArgumentParser()
    import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    words = ["--model-path", "none", "--attention-backend", NAME]
    return {
        "scheduler_had_sglangs": was_same,
        "scheduler_has_ours": scheduler.decide_needs_cpu_seq_lens([_Inherits()]),
        "adapter": str(backends[NAME]),
        "flag": parser.parse_args(words).attention_backend,
    }


class _OptsOut:
    needs_cpu_seq_lens = False
    max_context_len = 8192


class _Inherits(_OptsOut):
    """SGLang takes what it inherits for its own, and we do not."""


if __name__ == "__main__":
    json.dump(loaded(), sys.stdout)
