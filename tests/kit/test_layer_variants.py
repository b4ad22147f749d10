"""What layers have beside plain attention, by its definition."""

from __future__ import annotations

import pytest
import torch

from backend_caps.kit import Forward, Scenario, draw
from backend_caps.kit.layer_variants import LayerVariant, latent_scenario
from backend_caps.kit.scenes import DECODE, PREFILL, PREFIXED, Requests, reference_attention, scene


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(LayerVariant(), id="plain"),
        pytest.param(LayerVariant(num_before=99), id="wide-window"),
        pytest.param(LayerVariant(logit_cap=1e6), id="high-cap"),
    ],
)
@pytest.mark.parametrize("requests", [DECODE, PREFIXED])
def test_variant_of_no_effect_is_plain_attention(variant: LayerVariant, requests: Requests) -> None:
    """A wide window and a high bound change nothing."""
    drawn = scene(requests)

    assert torch.allclose(variant.expected(drawn), reference_attention(drawn), atol=1e-9)


def test_sinks_take_weight() -> None:
    """Outputs are smaller with sinks, and go nowhere else."""
    drawn = scene([(0, 1)])

    share = LayerVariant(has_sinks=True).expected(drawn) / LayerVariant().expected(drawn)

    assert ((share > 0) & (share < 1)).all()


def test_window_hides_what_is_further_back() -> None:
    """With a window of none before itself, a token gives its own value."""
    drawn = scene([(4, 2)])
    _, values = drawn.contexts[0]
    group = drawn.layer.tp_q_head_num // drawn.layer.tp_k_head_num

    output = LayerVariant(num_before=0).expected(drawn)

    assert torch.allclose(output, values[-2:].double().repeat_interleave(group, dim=1))


def test_tokens_of_an_encoder_see_those_behind_them() -> None:
    """The last token of a prompt sees what it saw before, and others see more."""
    drawn = scene(PREFILL[:1])

    plain, both = (LayerVariant(is_encoder=own).expected(drawn) for own in (False, True))

    assert torch.allclose(plain[-1], both[-1])
    assert not torch.allclose(plain[0], both[0])


def test_values_of_a_latent_are_the_first_features_of_its_keys() -> None:
    """Cached tokens, new ones and contexts agree, in a scene of the sizes that models have."""
    scenario = latent_scenario(Scenario(forward=Forward.DECODE, layer_ids=(0, 1)))
    drawn = LayerVariant(is_latent=True).prepared(draw(scenario, 1))

    assert drawn.v.shape[-1] == 512
    assert torch.equal(drawn.v, drawn.k[..., :512])
    pools = drawn.pools
    cached = (pools.value_buffers, pools.key_buffers[..., :512])
    assert torch.equal(*(own.nan_to_num() for own in cached))  # poison is no number
    assert all(torch.equal(values, keys[..., :512]) for keys, values in drawn.contexts)
