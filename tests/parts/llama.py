"""A real llama.cpp server on a free port, with a tiny model of random weights that the test itself writes.

    with Llama(embeddings=True) as llama:
        llama.url

One layer of 32 numbers and a vocabulary of letters and bytes: it answers in milliseconds, and nothing of sense. An
embedding is that of the last token: the mean over all of them would depend on what else llama.cpp computes meanwhile,
as it would, by 2e-3, with flash attention.

Invariants
    It ends when the test lets go of it, also when the tests are killed: it reads its standard input until that ends.
    Equal seeds make equal models.

Looks for a virtual environment with `xllamacpp` in $FOREBAY_SERVERS_VENV, else in `.venv-servers` beside
`pyproject.toml`; where there is none the test is given up loudly by name.
"""

from __future__ import annotations

import math
import random
import shutil
import string
import struct
import subprocess
import tempfile
from array import array
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.parts.server_process import python_with

ROOT = Path(__file__).parents[2]
MODEL: Final = "tiny"
WIDTH: Final = 32
SLOTS: Final = 4
SLOT_TOKENS: Final = 256
"""Of tokens that one slot takes, prompt and answer together; a letter is one."""

_GRACE = 5.0  # seconds that it may take to end

_SERVE = """
import os, sys
import xllamacpp

path, alias, slots, tokens, embeddings = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path, params.model_alias, params.port = path, {alias}, 0
params.n_parallel, params.n_ctx = int(slots), int(slots) * int(tokens)
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup = params.fit_params = False
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
if embeddings == "yes":
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)
"""


class Llama:
    """embeddings: it serves those, and nothing else; without, it generates."""

    def __init__(self, *, embeddings: bool = False, seed: int = 1) -> None:
        self._embeddings = embeddings
        self._seed = seed
        self._folder = Path()
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        python = python_with("xllamacpp", "llama.cpp")
        self._folder = Path(tempfile.mkdtemp(prefix="forebay-llama-"))
        try:
            self._start(python)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, python: str) -> None:
        path = self._folder / f"{MODEL}.gguf"
        path.write_bytes(gguf(self._seed))
        arguments = [str(path), MODEL, str(SLOTS), str(SLOT_TOKENS), "yes" if self._embeddings else "no"]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-c", _SERVE, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"llama.cpp did not start:\n{self.log()}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            try:
                self._process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        state = "stopped" if self._process is None else f"pid={self._process.pid}"
        return f"<Llama {self.url} {state} {'embeddings' if self._embeddings else 'generation'}>"

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")


_LAYER: Final = 2 * WIDTH  # numbers inside the feed-forward layer
_SPACE: Final = "\u2581"  # how the vocabulary writes a space
_LETTERS: Final = [_SPACE, *(_SPACE + letter for letter in string.ascii_lowercase), *string.ascii_lowercase]
_TOKENS: Final = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_LETTERS]
_TOKEN_TYPES: Final = [2, 3, 3, *[6] * 256, *[1] * len(_LETTERS)]  # unknown, control, byte, normal
_SCORES: Final = [*[0.0] * 259, *(-1.0 - place for place in range(len(_LETTERS)))]
_FACTS: Final[dict[str, str | int | float | list[str] | list[int] | list[float]]] = {
    "general.architecture": "llama",
    "general.name": MODEL,
    "llama.block_count": 1,
    "llama.context_length": SLOTS * SLOT_TOKENS,
    "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": _LAYER,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": WIDTH // 2,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": _TOKENS,
    "tokenizer.ggml.token_type": _TOKEN_TYPES,
    "tokenizer.ggml.scores": _SCORES,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
_SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "token_embd.weight": (WIDTH, len(_TOKENS)),
    "output_norm.weight": (WIDTH,),
    "output.weight": (WIDTH, len(_TOKENS)),
    "blk.0.attn_norm.weight": (WIDTH,),
    "blk.0.attn_q.weight": (WIDTH, WIDTH),
    "blk.0.attn_k.weight": (WIDTH, WIDTH),
    "blk.0.attn_v.weight": (WIDTH, WIDTH),
    "blk.0.attn_output.weight": (WIDTH, WIDTH),
    "blk.0.ffn_norm.weight": (WIDTH,),
    "blk.0.ffn_gate.weight": (WIDTH, _LAYER),
    "blk.0.ffn_up.weight": (WIDTH, _LAYER),
    "blk.0.ffn_down.weight": (_LAYER, WIDTH),
}


def gguf(seed: int) -> bytes:
    """A Llama in the GGUF format, version 3: facts, the shapes of the tensors, then their numbers."""
    chance = random.Random(seed)
    head = [b"GGUF", struct.pack("<IQQ", 3, len(_SHAPES), len(_FACTS))]
    head += [_text(name) + _fact(value) for name, value in _FACTS.items()]
    numbers, at = [], 0
    for name, shape in _SHAPES.items():
        count = math.prod(shape)
        values = array("f", [1.0 if len(shape) == 1 else chance.gauss(0, 0.3) for _ in range(count)])
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head.append(_text(name) + dimensions + struct.pack("<IQ", 0, at))  # 0: FP32
        numbers.append(values.tobytes())
        at += len(numbers[-1])
    before = b"".join(head)
    return before + bytes(-len(before) % 32) + b"".join(numbers)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _fact(value: object) -> bytes:
    """A value with the number of its type before it."""
    kinds = {int: (4, "I"), float: (6, "f"), str: (8, "")}
    if isinstance(value, list):
        number, packed = kinds[type(value[0])]
        if packed == "I":
            number, packed = 5, "i"  # the types of tokens are signed
        texts = b"".join(map(_text, value)) if not packed else struct.pack(f"<{len(value)}{packed}", *value)
        return struct.pack("<IIQ", 9, number, len(value)) + texts
    number, packed = kinds[type(value)]
    return struct.pack("<I", number) + (_text(str(value)) if not packed else struct.pack(f"<{packed}", value))
