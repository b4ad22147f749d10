"""GPUs, by the names that people write."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from backend_caps.capability.facts import Facts
from backend_caps.capability.gpu import compute_capability, gpu_named, gpu_of, gpus


@pytest.mark.parametrize(
    ("text", "key"),
    [("H100", "H100"), ("h100", "H100"), ("NVIDIA H100 80GB HBM3", "H100"), ("mi300x", "MI300X")],
)
def test_gpu_is_found_by_its_short_name_and_by_torchs(text: str, key: str) -> None:
    """Case and punctuation do not matter."""
    found = gpu_named(text)

    assert found is not None
    assert found.key == key
    assert gpu_named("H101") is None


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("9.0", (9, 0)),
        ("sm_90", (9, 0)),
        ("sm90a", (9, 0)),
        ("compute_100", (10, 0)),
        ("12_0", (12, 0)),
        (9.0, (9, 0)),
        (90, (9, 0)),
        ("B200", (10, 0)),
        ([9, 0], [9, 0]),
        ("fast", "fast"),
        (True, True),
    ],
)
def test_compute_capability_is_read_as_people_write_it(value: object, read: object) -> None:
    """What is none of the forms stays as it is."""
    assert compute_capability(value) == read


def test_gpu_gives_the_facts_that_follow_from_it() -> None:
    """A device's name fills in its type, compute capability and ROCm; what is given stays."""
    facts = Facts(device_name="MI300X")

    assert (facts.device, facts.compute_capability, facts.rocm) == ("cuda", (9, 4), True)
    assert facts.gpu == gpus()["MI300X"]
    assert Facts(device_name="H100", compute_capability="10.0").compute_capability == (10, 0)


def test_compute_capability_stands_for_a_gpu() -> None:
    """The first GPU of the table that has it; none where none has."""
    assert Facts(compute_capability="sm_90").gpu == gpus()["H100"]
    assert Facts().gpu is None
    assert gpu_of((1, 0), rocm=False) is None


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ({"compute_capability": "fast"}, "9.0, [9, 0], sm_90 or the name of a GPU"),
        ({"device_name": "H101"}, "one of T4"),
        ({"device_name": 3}, "valid string"),
    ],
)
def test_fact_of_no_form_is_answered_with_the_forms(fact: dict[str, object], words: str) -> None:
    """A wrong value is answered with what is right."""
    with pytest.raises(ValidationError) as raised:
        Facts.model_validate(fact)

    assert words in str(raised.value)
