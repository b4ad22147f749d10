import sys
from pathlib import Path

import pytest

from tests.upstream import sglang_wheel

pytestmark = pytest.mark.upstream


def test_wheel_load_imports_nothing_named_sglang() -> None:
    """SGLang's module runs on stubs, and no SGLang module is imported."""
    module = sglang_wheel.load_overlap_utils("0.5.13")

    assert callable(module.decide_needs_cpu_seq_lens)
    assert [name for name in sys.modules if name.split(".")[0] == "sglang"] == []


def test_wheel_missing_is_an_error_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wheel a comparison fails and says how to fetch it."""
    monkeypatch.setattr(sglang_wheel, "WHEELS", tmp_path)

    with pytest.raises(FileNotFoundError, match=r"pip download --no-deps sglang==0\.5\.13"):
        sglang_wheel.load_overlap_utils("0.5.13")
