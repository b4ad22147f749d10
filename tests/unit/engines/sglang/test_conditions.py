from __future__ import annotations

import ast

import pytest

from backend_caps.engines.sglang.conditions import can_hold, given_of


def _guards(*texts: str) -> list[ast.expr]:
    return [ast.parse(text, mode="eval").body for text in texts]


@pytest.mark.parametrize(
    ("guard", "given"),
    [
        pytest.param("is_npu()", "device = npu", id="a device"),
        pytest.param("_is_npu", "device = npu", id="a device, asked before"),
        pytest.param("not is_npu()", "device in cpu, cuda, hpu, mps, musa, xpu", id="another"),
        pytest.param("is_cuda()", "device = cuda and rocm off", id="CUDA is not ROCm"),
        pytest.param("not is_cuda()", "not is_cuda()", id="no CUDA is open: it may be ROCm"),
        pytest.param("is_hip()", "rocm on", id="ROCm"),
        pytest.param("not is_hip()", "rocm off", id="no ROCm"),
        pytest.param("runner.use_mla_backend", "attention_arch = mla", id="MLA"),
        pytest.param(
            "not runner.use_mla_backend", "attention_arch in mha, sparse, ssm", id="no MLA"
        ),
        pytest.param("args.enable_mixed_chunk", "enable_mixed_chunk on", id="a flag"),
        pytest.param("not args.enable_mixed_chunk", "enable_mixed_chunk off", id="a flag off"),
        pytest.param(
            "get_spec().speculative_algorithm == 'EAGLE'",
            "speculative_algorithm = EAGLE",
            id="an algorithm",
        ),
        pytest.param(
            "draft.speculative_algorithm == 'EAGLE'",
            "draft.speculative_algorithm == 'EAGLE'",
            id="an algorithm of something else",
        ),
        pytest.param(
            "args.speculative_algorithm == other",
            "args.speculative_algorithm == other",
            id="an algorithm that is computed",
        ),
        pytest.param("algorithm.is_ngram()", "speculative_algorithm = NGRAM", id="ngram"),
        pytest.param(
            "self._kv_shard_pool is not None", "enable_kv_cache_sharding on", id="a split cache"
        ),
        pytest.param("decode_backend == 'fa3'", "decode_attention_backend = fa3", id="who decodes"),
        pytest.param(
            "get_exec().overlap.enable_two_batch_overlap",
            "enable_two_batch_overlap on",
            id="a flag of the context",
        ),
        pytest.param(
            "self.model_runner.server_args.disable_cuda_graph",
            "disable_cuda_graph on",
            id="a flag of a runner's arguments",
        ),
        pytest.param("self.enable_mixed_chunk", "self.enable_mixed_chunk", id="another's flag"),
        pytest.param("enable_mixed_chunk", "enable_mixed_chunk", id="a variable"),
        pytest.param("enable_mixed_chunk()", "enable_mixed_chunk()", id="a function"),
        pytest.param("layer.use_mla_backend", "layer.use_mla_backend", id="MLA of another"),
        pytest.param(
            "self.draft_model_runner.use_mla_backend", "attention_arch = mla", id="MLA of a draft"
        ),
        pytest.param("runner.buf.is_cuda", "runner.buf.is_cuda", id="a tensor on a device"),
        pytest.param("is_npu", "is_npu", id="a function that is not called"),
        pytest.param(
            "self.other._kv_shard_pool is not None",
            "self.other._kv_shard_pool is not None",
            id="another's split cache",
        ),
        pytest.param("runner.cpu", "runner.cpu", id="a word that only looks like a device"),
        pytest.param("is_npu(runner)", "is_npu(runner)", id="a question about something else"),
        pytest.param("a or b", "a or b", id="in the source's words"),
        pytest.param("is_npu() and x", "device = npu and x", id="half and half"),
    ],
)
def test_condition_is_written_in_our_vocabulary(guard: str, given: str) -> None:
    """What flags and facts decide is asked of them, the rest keeps the source's words."""
    assert str(given_of(_guards(guard))) == given


def test_no_guard_is_no_condition() -> None:
    """What always runs is under no condition."""
    assert given_of([]) is None


def test_two_conditions_on_one_thing_ask_for_what_is_both() -> None:
    """Guards of one name are joined to what satisfies both."""
    given = given_of(_guards("not is_npu()", "not is_cpu()", "is_xpu()"))

    assert str(given) == "device = xpu"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("is_npu()", "is_xpu()", id="devices"),
        pytest.param("is_hip()", "is_cuda()", id="ROCm and CUDA"),
        pytest.param("args.enable_mixed_chunk", "not args.enable_mixed_chunk", id="flag"),
    ],
)
def test_contradiction_stays_open_in_words(first: str, second: str) -> None:
    """A guard that contradicts the ones before it is never lost: its words stay."""
    given = given_of(_guards(first, second))

    assert given is not None
    assert given.expression == second


@pytest.mark.parametrize(
    ("guards", "answer"),
    [
        pytest.param([], True, id="none"),
        pytest.param(["is_npu()", "x"], True, id="one of ours, one of the source's"),
        pytest.param(["is_npu()", "not is_hip()"], True, id="two that may both hold"),
        pytest.param(["is_npu()", "not is_npu()"], False, id="both ways"),
        pytest.param(["is_hip()", "is_cuda()"], False, id="ROCm and CUDA"),
        pytest.param(["is_npu()", "not _is_npu"], False, id="both ways, by two spellings"),
        pytest.param(
            ["args.enable_mixed_chunk", "not args.enable_mixed_chunk"],
            True,
            id="a flag, which may have changed",
        ),
    ],
)
def test_guards_that_contradict_each_other_cannot_hold(guards: list[str], answer: bool) -> None:
    """Only what the platform, which stays the same, contradicts is ruled out."""
    assert can_hold(_guards(*guards)) is answer
