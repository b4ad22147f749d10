from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

from backend_caps import HostSeqLens, Origin
from backend_caps.capability.backend import Backend, Reading
from tests.unit.engines.tables import table
from tests.unit.engines.vllm.building import IMPORTS, ROOTS, as_json, class_of, files_of, read, said

BATCH = """

class CommonAttentionMetadata:
    seq_lens: torch.Tensor
    max_seq_len: int
"""
AROUND = """
from vllm.helpers import copied

class Kept:
    pass

class Part:
    def build(self, batch: CommonAttentionMetadata):
        return batch.seq_lens_cpu_upper_bound

class Base(AttentionMetadataBuilder):
    def build(self, prefix, common_attn_metadata):
        return copied(3, lengths=common_attn_metadata.seq_lens)

    @staticmethod
    def copies(lengths, again):
        return copied(again, lengths)

class Builder(Base):
    def __init__(self):
        self.part = Part()
        self.size = 3

    def own(self, number, batch):
        return self.copies(3, number), self.build(0, batch)

    def build(self, prefix, common_attn_metadata):
"""
BACKEND = """

class One(AttentionBackend):
    def get_builder_cls():
        return Builder
"""
HELPERS = """
def copied(number, lengths):
    return lengths.tolist()
"""


def _read(folder: Path, text: str) -> Backend:
    files = files_of({"one": text})
    files |= {"vllm/v1/attention/backend.py": ROOTS + BATCH, "vllm/helpers.py": HELPERS}
    return read(folder, files).registry["One"]


@table("vllm_host_lengths", "level_of_reads")
def test_level_of_reads(
    tmp_path: Path, body: str, level: str | None, words: str, line: str | None
) -> None:
    """The worst read counts; a builder that hands the batch to what is not found is not known."""
    text = f"{AROUND}{indent(dedent(body).strip(), ' ' * 8)}\n{BACKEND}"

    backend = _read(tmp_path, text)

    verb = "" if level is None else "build() reads "
    assert said(backend, "host_seq_lens") == Reading(
        origin=Origin.NOT_KNOWN if level is None else Origin.DECLARED,
        words=f"Builder: {verb}{words}",
        value=None if level is None else HostSeqLens(level),
        declared_at=_place(line or "class Builder(", one=IMPORTS + text, helpers=HELPERS),
    )
    assert as_json(backend)["host_seq_lens"] == (level or "undeclared")


def _place(line: str, **modules: str) -> str:
    """Return where a line of a module is; of several, the last."""
    places = [
        f"vllm/{name}.py:{number}"
        for name, text in modules.items()
        for number, own in enumerate(text.splitlines(), 1)
        if line in own
    ]
    return places[-1]


def test_batch_bounds_its_longest_length(tmp_path: Path) -> None:
    """The bound that a batch has is a statement of its own, where it has one."""
    text = f"{AROUND}        pass\n{BACKEND}"

    bounded = _read(tmp_path / "bounded", text)
    files = files_of({"one": text})
    without = {
        "vllm/v1/attention/backend.py": f"{ROOTS}\nclass CommonAttentionMetadata:\n    other: int\n"
    }
    lost = read(tmp_path / "lost", files).registry["One"]
    open_ = read(tmp_path / "open", {**files, **without}).registry["One"]

    assert said(bounded, "max_context_len_known") == Reading(
        origin=Origin.DECLARED,
        words="CommonAttentionMetadata has max_seq_len",
        value=True,
        declared_at=f"vllm/v1/attention/backend.py:{len((ROOTS + BATCH).splitlines())}",
    )
    assert "max_context_len_known" not in {**class_of(open_).readings, **class_of(lost).readings}


def test_builder_without_build_is_not_read(tmp_path: Path) -> None:
    """A builder that leaves `build` to the root reads nothing that is known."""
    text = f"class Builder(AttentionMetadataBuilder):\n    pass\n{BACKEND}"

    backend = read(tmp_path, files_of({"one": text})).registry["One"]

    assert "host_seq_lens" not in class_of(backend).readings


def test_one_of_two_builders(tmp_path: Path) -> None:
    """The levels of builders of which a condition chooses one are joined."""
    text = f"""{AROUND}        return common_attn_metadata.seq_lens.cpu()

class Other(Builder):
    def build(self, prefix, common_attn_metadata):
        return common_attn_metadata.seq_lens_cpu_upper_bound

class One(AttentionBackend):
    def get_builder_cls():
        return Builder if here else Other
"""

    backend = _read(tmp_path, text)

    assert said(backend, "host_seq_lens").words == (
        "Builder: build() reads common_attn_metadata.seq_lens.cpu(); "
        "Other: build() reads common_attn_metadata.seq_lens_cpu_upper_bound"
    )
