from __future__ import annotations

from triton_caps import TRITON

from backend_caps import AttentionArch, Facts


def test_declaration_refuses_what_is_not_computed() -> None:
    """A CPU, an old GPU, a wide head, an FP8 cache and latent attention have a reason each."""
    facts = Facts(
        device="cpu",
        compute_capability=(7, 5),
        head_size=512,
        kv_cache_dtype="fp8_e4m3",
        attention_arch=AttentionArch.MLA,
    )

    codes = {reason.code for reason in TRITON.unsupported_reasons(facts)}

    assert codes == {
        "device-unsupported",
        "compute-capability-unsupported",
        "head-size-unsupported",
        "kv-cache-dtype-unsupported",
        "attention-arch-unsupported",
    }
