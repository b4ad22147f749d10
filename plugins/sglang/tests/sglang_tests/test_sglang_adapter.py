"""The adapter of SGLang's backends, over an SGLang made small."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from backend_caps_sglang.kit import subjects
from backend_caps_sglang.kit.adapter import Adapted, batch_of
from backend_caps_sglang.kit.checks import VARIANT_CHECKS
from backend_caps_sglang.kit.classes import ADAPTED as CLASSES

from backend_caps.capability.declaration import Declaration
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import (
    Effort,
    Finding,
    Forward,
    Scenario,
    Subject,
    difference,
    draw,
    run_checks,
)
from backend_caps.kit.rig import supplied
from backend_caps.kit.scenes import Pools, reference_attention
from backend_caps.runtime.forward_batch import ForwardBatch

from .small_sglang import KVIndexTranslator, PlainTorch, small_sglang

SGLANG = small_sglang()
BY_CODE = {check.code: check for check in VARIANT_CHECKS}
ADAPTED = [own for own in Forward if own is not Forward.DRAFT]


class Narrow(PlainTorch):
    """Sees one token fewer in a decode than its layer's window has."""

    window_in_decode = -1


class Sinkless(PlainTorch):
    """Takes sinks, and leaves them out."""

    left_out = frozenset({"sinks"})


class Uncapped(PlainTorch):
    """Leaves a layer's cap of scores out."""

    left_out = frozenset({"logit_cap"})


class Unscaled(PlainTorch):
    """Takes what a float8 cache holds as it is."""

    left_out = frozenset({"kv_scales"})


class Unmapped(PlainTorch):
    """Reads the memory of layers with a window by the numbers of others."""

    left_out = frozenset({"window_pool"})


class LatentsEnd(PlainTorch):
    """Takes the last features of keys for the values."""

    left_out = frozenset({"latent"})


class Causal(PlainTorch):
    """Takes encoders for decoders."""

    left_out = frozenset({"encoder"})


class Stale(PlainTorch):
    """Leaves the metadata of the capture as it was."""

    def init_forward_metadata_out_graph(self, batch: object, *, in_capture: bool) -> None:
        """Fill the buffers for a capture alone."""
        if in_capture:
            super().init_forward_metadata_out_graph(batch, in_capture=True)  # type: ignore[arg-type]


def _adapted(implementation: type[PlainTorch], pools: object) -> Adapted:
    assert isinstance(pools, Pools), "scenes bring the kit's own pools"
    return Adapted(SGLANG, implementation, pools)  # type: ignore[arg-type] # theirs has no types


def _subject(implementation: type[PlainTorch]) -> Subject:
    capabilities = CLASSES["TritonAttnBackend"].tried.model_copy(update={"roles": {"target"}})
    declaration = Declaration(
        capabilities=capabilities,
        implementation=f"{implementation.__module__}:{implementation.__qualname__}",
    )

    return Subject(
        name="TritonAttnBackend",
        declaration=declaration,
        builder=partial(_adapted, implementation),
        words=("--engine", "x"),
    )


def _findings(
    code: str, implementation: type[PlainTorch], monkeypatch: pytest.MonkeyPatch
) -> list[Finding]:
    monkeypatch.setattr(subjects, "load_sglang", lambda: SGLANG)
    check = BY_CODE[code]
    results = run_checks(_subject(implementation), [check], effort=Effort(seeds=range(2)))
    assert results.checks[0].cases or check.excuse(_subject(implementation)) is not None
    return list(results.findings)


@pytest.mark.parametrize("forward", ADAPTED, ids=lambda own: own.value)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_adapted_backend_attends(forward: Forward, seed: int) -> None:
    """Each forward comes to SGLang's form so that attention's definition comes out."""
    scene = draw(Scenario(forward=forward, page_size=16 if seed else 1), seed)

    with torch.no_grad():
        found = scene.run(partial(_adapted, PlainTorch))

    assert difference(found, reference_attention(scene), 2e-5) is None


@pytest.mark.parametrize("code", BY_CODE)
def test_checks_of_variants_hold_of_a_right_one(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of SGLang's layers alone is no fault of a class that does it right."""
    assert _findings(code, PlainTorch, monkeypatch) == []


def test_window_that_is_too_narrow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode that sees one token fewer than its window has is reported as such."""
    findings = _findings("sliding-window", Narrow, monkeypatch)

    assert findings
    assert all("it is that of itself and the 4 before it" in own.fault.what for own in findings)
    assert all("decode" in own.case.name for own in findings)
    assert findings[0].replay.startswith("backend-caps check --engine x TritonAttnBackend --case")


@pytest.mark.parametrize(
    ("code", "implementation"),
    [
        pytest.param("soft-cap", Uncapped, id="cap"),
        pytest.param("sinks", Sinkless, id="sinks"),
        pytest.param("windowed-sinks", Sinkless, id="sinks-with-window"),
        pytest.param("kv-scales", Unscaled, id="scales"),
        pytest.param("window-pools", Unmapped, id="window-pools"),
        pytest.param("latent-attention", LatentsEnd, id="latents"),
        pytest.param("encoder", Causal, id="encoder"),
        pytest.param("sliding-window-graphs", Stale, id="window-of-a-graph"),
        pytest.param("sinks-graphs", Stale, id="sinks-of-a-graph"),
    ],
)
def test_variant_that_a_class_ignores_is_found(
    code: str, implementation: type[PlainTorch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class that leaves out what its layers have beside plain attention fails that check."""
    assert _findings(code, implementation, monkeypatch)


def _told(batch: ForwardBatch, *, fill: int | None = None) -> SimpleNamespace:
    return batch_of(SGLANG, batch, KVIndexTranslator(page_size=1), fill=fill)  # type: ignore[arg-type]


def test_verify_tells_the_lengths_before_it() -> None:
    """SGLang's lengths of a verify leave the verified tokens out, on the device and on the host."""
    scene = supplied(draw(Scenario(forward=Forward.VERIFY), 1), HostSeqLens.EXACT)
    own = vars(_told(scene.batch))["seq_lens"]
    told = _told(scene.batch)

    assert own.tolist() == (scene.batch.seq_lens - 3).tolist()
    assert told.seq_lens_cpu.tolist() == own.tolist()
    assert told.seq_lens_sum == own.sum()


def test_batch_without_a_mirror_tells_none() -> None:
    """Where the kit's batch has no mirror, SGLang's has none."""
    scene = supplied(draw(Scenario(forward=Forward.DECODE), 1), HostSeqLens.NONE)
    told = _told(scene.batch)

    assert told.seq_lens_cpu is None
    assert told.seq_lens_sum is None


def test_host_lengths_of_prompts_are_lists() -> None:
    """What the scheduler cut is reported as SGLang has it: lists of numbers."""
    scene = draw(Scenario(forward=Forward.CHUNK), 1)
    told = _told(scene.batch)

    assert told.extend_seq_lens_cpu == list(scene.counts)
    assert told.extend_prefix_lens_cpu == list(scene.batch.extend_prefix_lens_cpu or ())


def test_padding_of_a_graph_has_the_length_that_sglang_fills_in() -> None:
    """A request of row 0 has the length that the backend asks for, and not none."""
    batch = draw(Scenario(forward=Forward.DECODE), 1).batch
    rows, lengths = batch.req_pool_indices.clone(), batch.seq_lens.clone()
    rows[-1], lengths[-1] = 0, 0
    told = _told(replace(batch, req_pool_indices=rows, seq_lens=lengths), fill=1)

    assert vars(told)["seq_lens"].tolist() == [*lengths[:-1].tolist(), 1]
