"""What can go wrong with the backend."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps import BackendCapsError


@dataclass(eq=False, kw_only=True)
class MissingFlashInferError(BackendCapsError):
    """Raised where the backend is built, and FlashInfer cannot be imported."""

    problem: str

    @property
    def message(self) -> str:
        """What the import said, what was expected, and what to install."""
        return (
            f"backend 'flashinfer' cannot import flashinfer: {self.problem}; flashinfer-python "
            f"0.7.2 or newer was expected, on a machine with a CUDA device and with nvcc, CUDA's "
            f"compiler. Install it: pip install 'backend-caps-flashinfer[cuda]'."
        )


@dataclass(eq=False, kw_only=True)
class MissingMirrorError(BackendCapsError):
    """Raised where a batch comes without the host lengths that this backend declares to read."""

    field: str

    @property
    def message(self) -> str:
        """What is missing, and who should have supplied it."""
        return (
            f"backend 'flashinfer' got a batch whose {self.field} is None; it declares "
            f"host_seq_lens=EXACT. Configure the FutureMap by a plan that names this backend."
        )


@dataclass(eq=False, kw_only=True)
class CacheDtypeError(BackendCapsError):
    """Raised where queries and the KV cache have different dtypes."""

    dtype: str
    cache_dtype: str

    @property
    def message(self) -> str:
        """Both dtypes, and what to do."""
        return (
            f"backend 'flashinfer' got queries of {self.dtype} and a KV cache of "
            f"{self.cache_dtype}; one dtype for both was expected. Set --kv-cache-dtype to auto."
        )
