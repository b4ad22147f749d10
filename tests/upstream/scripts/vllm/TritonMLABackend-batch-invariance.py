"""batch-invariance of TritonMLABackend in vLLM 0.33.0: a request alone, and behind a verify."""
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

VERIFIED = 3  # tokens of a request in a verify, on a server with 2 drafts
builder = TritonMLABackend.get_builder_cls()
assert TritonMLABackend.supports_batch_invariance()


def num_decodes(*counts):
    """Count the requests that the builder gives to the kernel of decodes."""
    starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    none = torch.zeros(len(counts), dtype=torch.int32)
    batch = CommonAttentionMetadata(
        query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=none, num_reqs=len(counts),
        num_actual_tokens=sum(counts), max_query_len=max(counts), max_seq_len=64,
        block_table_tensor=none[:, None], slot_mapping=none)
    is_uniform = builder.query_len_support.name == "UNIFORM"
    return split_decodes_and_prefills(batch, VERIFIED, require_uniform=is_uniform)[0]


# The kernel of prefills rounds differently, so the request's bits depend on the batch.
alone, behind = num_decodes(1), num_decodes(VERIFIED, 1) - num_decodes(VERIFIED)
assert alone == behind, f"a request of one token: {alone} decode alone, {behind} behind a verify"
