"""What a caller can get wrong about the backend."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps import BackendCapsError


@dataclass(eq=False, kw_only=True)
class NoCompilerError(BackendCapsError):
    """Raised where the KV cache is on the host, for which Triton has no compiler."""

    backend: str
    device: str

    @property
    def message(self) -> str:
        """Where the cache is, where it should be, and how to run there all the same."""
        return (
            f"backend {self.backend!r} got a KV cache on device {self.device!r}, for which Triton "
            f"compiles nothing; 'cuda' was expected. Use 'torch_padded' there, or set "
            f"TRITON_INTERPRET=1 to have the kernels interpreted, some thousand times slower."
        )
