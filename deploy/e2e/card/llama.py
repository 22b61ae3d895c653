"""Loads a model with llama.cpp's library on a real card, and prints what nvidia-smi says that this process holds, step by step.

  llama.py make FILE                             a GGUF file with the shapes of Llama-3.1-8B in 16 bits; all zeros, so that it is sparse
  llama.py load LIBRARIES FILE CONTEXT UBATCH    LIBRARIES is the folder with libllama and libggml
"""

import ctypes
import glob
import json
import os
import struct
import subprocess
import sys

LAYERS, HIDDEN, FEED, HEADS, KV_HEADS, WORDS, CONTEXT = 32, 4096, 14336, 32, 8, 128256, 131072
F32, F16 = 0, 1


def make(file):
    head, kv = HIDDEN // HEADS, HIDDEN // HEADS * KV_HEADS
    tensors = [("token_embd", (HIDDEN, WORDS), F16), ("output_norm", (HIDDEN,), F32), ("output", (HIDDEN, WORDS), F16)]
    for i in range(LAYERS):
        tensors += [
            (f"blk.{i}.{name}", shape, F32 if len(shape) == 1 else F16)
            for name, shape in (
                ("attn_norm", (HIDDEN,)), ("attn_q", (HIDDEN, HIDDEN)), ("attn_k", (HIDDEN, kv)), ("attn_v", (HIDDEN, kv)),
                ("attn_output", (HIDDEN, HIDDEN)), ("ffn_norm", (HIDDEN,)), ("ffn_gate", (HIDDEN, FEED)), ("ffn_up", (HIDDEN, FEED)),
                ("ffn_down", (FEED, HIDDEN)),
            )
        ]

    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    def value(key, v):
        if isinstance(v, str):
            return text(key) + struct.pack("<I", 8) + text(v)
        return text(key) + (struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<II", 4, v))

    values = [
        value(key, v)
        for key, v in {
            "general.architecture": "llama", "general.file_type": 1, "llama.block_count": LAYERS, "llama.context_length": CONTEXT,
            "llama.embedding_length": HIDDEN, "llama.feed_forward_length": FEED, "llama.attention.head_count": HEADS,
            "llama.attention.head_count_kv": KV_HEADS, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 500000.0,
            "llama.rope.dimension_count": head, "llama.vocab_size": WORDS, "tokenizer.ggml.model": "none",
        }.items()
    ]
    infos, offset = b"", 0
    for name, shape, kind in tensors:
        infos += text(name + ".weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        size = 2 if kind == F16 else 4
        for n in shape:
            size *= n
        offset += -(-size // 32) * 32
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values) + infos
    header += b"\0" * (-len(header) % 32)
    with open(file, "wb") as f:
        f.write(header)
        f.truncate(len(header) + offset)


def held():
    question = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    rows = [line.split(", ") for line in subprocess.run(question, capture_output=True, text=True, check=True).stdout.splitlines()]
    return sum(int(mib) for pid, mib in rows if int(pid) == os.getpid())


class Params(ctypes.Structure):
    """llama_model_params or llama_context_params: passed in memory, where words beyond the library's own do no harm."""

    _fields_ = [("words", ctypes.c_int32 * 128)]


class Batch(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int32), ("rest", ctypes.c_void_p * 6)]


def load(libraries, file, context, ubatch):
    for part in ("libggml-base.*", "libggml.*", "libllama.*"):
        lib = ctypes.CDLL(sorted(glob.glob(f"{libraries}/{part}"))[0], mode=ctypes.RTLD_GLOBAL)
        if part == "libggml.*":
            lib.ggml_backend_load_all_from_path(libraries.encode())
    lib.llama_model_default_params.restype = lib.llama_context_default_params.restype = Params
    lib.llama_model_load_from_file.argtypes, lib.llama_model_load_from_file.restype = [ctypes.c_char_p, Params], ctypes.c_void_p
    lib.llama_init_from_model.argtypes, lib.llama_init_from_model.restype = [ctypes.c_void_p, Params], ctypes.c_void_p
    lib.llama_batch_get_one.argtypes, lib.llama_batch_get_one.restype = [ctypes.c_void_p, ctypes.c_int32], Batch
    lib.llama_decode.argtypes = [ctypes.c_void_p, Batch]
    lib.llama_backend_init()
    model_params, params = lib.llama_model_default_params(), lib.llama_context_default_params()
    model_params.words[4] = 999  # n_gpu_layers, after two pointers
    params.words[0], params.words[1], params.words[2] = context, 2048, ubatch  # n_ctx, n_batch, n_ubatch
    model = lib.llama_model_load_from_file(file.encode(), model_params)
    steps = {"weights": held()}
    run = model and lib.llama_init_from_model(model, params)
    if not run:
        sys.exit("llama.cpp loads nothing")
    steps["context"] = held()
    for count in (ubatch, 1):
        tokens = (ctypes.c_int32 * count)(*[7] * count)
        if lib.llama_decode(run, lib.llama_batch_get_one(tokens, count)):
            sys.exit("llama.cpp computes nothing")
    steps["tokens"] = held()
    print(json.dumps({"context": context, "ubatch": ubatch, "held_mib": steps}))


if sys.argv[1] == "make":
    make(sys.argv[2])
else:
    load(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
