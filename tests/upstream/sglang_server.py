"""A server of SGLang on a CPU, started as its users start it, and asked by the openai client.

It runs in the environment that `make upstream` builds, whose path has the stand-ins for what is
built for CUDA alone. The client runs there too, as

    python -m tests.upstream.sglang_server http://127.0.0.1:PORT/v1 < prompts.json

which sends all prompts at once, and prints the tokens of each answer as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.machine import ROOT, free_port

PYTHON = ROOT / ".cache" / "engines" / "sglang-0.5.23" / "bin" / "python"
READY = "The server is fired up and ready to roll!"
"""What SGLang logs once its own warm-up request has been answered."""
NUM_NEW_TOKENS = 16
_VOCAB_SIZE = 256
_SPECIAL = ("<s>", "</s>", "<unk>")
_START_S, _STOP_S = 240, 60
"""How long a server may take. It is ready after 30 s where nothing else runs."""
_REAP_S = 10
"""For multiprocessing's resource tracker, which ends when it reads that its parent has."""
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Server:
    """A server's process, and what it logs."""

    process: subprocess.Popen[bytes]
    log_file: Path
    port: int
    ready: str = READY
    """What it logs once it serves."""

    @property
    def log(self) -> str:
        """What the server and its children wrote so far."""
        return self.log_file.read_text("utf-8", "replace")

    @property
    def url(self) -> str:
        """Where it listens, once it is ready."""
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> bool:
        """Wait until it serves, and tell whether it does: False where it ended instead.

        Raises:
            TimeoutError: neither has happened; the message has the end of the log.
        """
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self.ready in self.log:
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(_POLL_S)
        raise TimeoutError(f"no answer in {_START_S} s: {self.log[-4000:]}")

    def stop(self) -> int:
        """Send SIGTERM to the one process that was started, and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_S)

    def leaves_processes(self) -> bool:
        """Tell whether a process of it is left some seconds after its end.

        All are in the group that was started; SGLang makes no other.
        """
        deadline = time.monotonic() + _REAP_S
        while time.monotonic() < deadline:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return False
            time.sleep(_POLL_S)
        return True


@contextmanager
def started(model: Path, *flags: str, path: Sequence[Path] = ()) -> Iterator[Server]:
    """Start `python -m sglang.launch_server --device cpu`, and end every process of it.

    Args:
        model: the folder of the model.
        flags: more of its command line.
        path: folders that it imports from, as if what is in them were installed.

    Raises:
        FileNotFoundError: there is no such environment; the message has the command.
    """
    if not PYTHON.exists():
        raise FileNotFoundError(f"no environment at {PYTHON}. Build it: make upstream")
    port = free_port()
    command = [str(PYTHON), "-m", "sglang.launch_server", "--device", "cpu"]
    command += ["--model-path", str(model), "--host", "127.0.0.1", "--port", str(port)]
    environ = {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": os.pathsep.join(map(str, path))}
    with launched([*command, "--dtype", "float32", *flags], environ, port) as server:
        yield server


@contextmanager
def launched(
    command: Sequence[str], environ: Mapping[str, str], port: int, ready: str = READY
) -> Iterator[Server]:
    """Start a server in a folder of its own, and end every process of it.

    Args:
        command: its command line.
        environ: what is added to this process's environment.
        port: where it listens.
        ready: what it logs once it serves.
    """
    # Sockets lie in it, and their names may have 107 characters: pytest's folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="server"))
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)}
    log_file = folder / "log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, **own, **environ},
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield Server(process, log_file, port, ready)
    finally:
        _kill_group(process)
        shutil.rmtree(folder, ignore_errors=True)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and whatever it started and left in its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_STOP_S)


def make_model(folder: Path, head_size: int = 16) -> None:
    """Write a random Llama of two layers in float32, and a tokenizer of one token a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: PLC0415

    words = [*_SPECIAL, *(f"w{own}" for own in range(len(_SPECIAL), _VOCAB_SIZE))]
    vocabulary = {word: own for own, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL[2]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=_SPECIAL[0],
        eos_token=_SPECIAL[1],
        unk_token=_SPECIAL[2],
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=_VOCAB_SIZE,
        hidden_size=4 * head_size,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)


def draw_prompts(count: int) -> list[list[int]]:
    """Draw prompts of 1 to 40 tokens; every other one begins as half of the rest do."""
    dice = torch.Generator().manual_seed(1)

    def draw(size: int) -> list[int]:
        return torch.randint(len(_SPECIAL), _VOCAB_SIZE, (size,), generator=dice).tolist()

    shared = draw(20)
    return [[*(shared if own % 2 else []), *draw(1 + own % 20)] for own in range(count)]


def greedy_tokens(model: Path, prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], float]:
    """Generate with transformers: the tokens, and the smallest lead that one of them had.

    Prompts of one length are a batch, so none is padded.
    """
    from transformers import LlamaForCausalLM  # noqa: PLC0415

    llama: Any = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    found: dict[int, list[int]] = {}
    lead = float("inf")
    for size in sorted({len(prompt) for prompt in prompts}):
        numbers = [own for own, prompt in enumerate(prompts) if len(prompt) == size]
        made = llama.generate(
            torch.tensor([prompts[own] for own in numbers]),
            attention_mask=torch.ones(len(numbers), size, dtype=torch.int64),
            do_sample=False,
            max_new_tokens=NUM_NEW_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        best = torch.stack(made.scores).topk(2).values
        lead = min(lead, (best[..., 0] - best[..., 1]).min().item())
        found.update(zip(numbers, made.sequences[:, size:].tolist(), strict=True))
    return [found[own] for own in range(len(prompts))], lead


def asked(url: str, prompts: Sequence[Sequence[int]], python: Path = PYTHON) -> list[list[int]]:
    """Send all prompts at once by the openai client of a Python: each answer's tokens."""
    done = subprocess.run(
        [python, "-m", "tests.upstream.sglang_server", f"{url}/v1"],
        input=json.dumps(prompts),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        check=True,
        timeout=_START_S,
    )
    answers: list[list[int]] = json.loads(done.stdout)
    return answers


async def _answers(url: str, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    # It is in SGLang's environment alone.
    from openai import AsyncOpenAI  # type: ignore[import-not-found] # noqa: PLC0415

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(
                client.completions.create(
                    model="default",
                    prompt=list(prompt),
                    max_tokens=NUM_NEW_TOKENS,
                    temperature=0,
                    extra_body={"ignore_eos": True, "skip_special_tokens": False},
                )
                for prompt in prompts
            )
        )
    return [_tokens(answer.choices[0].text) for answer in answers]


def _tokens(text: str) -> list[int]:
    """Read tokens off a text: a word has its number as name."""
    found = re.findall(r"w(\d+)|(<[^>]+>)", text)
    return [int(number) if number else _SPECIAL.index(special) for number, special in found]


if __name__ == "__main__":
    json.dump(asyncio.run(_answers(sys.argv[1], json.load(sys.stdin))), sys.stdout)
