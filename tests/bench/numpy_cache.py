#!/usr/bin/env python3
"""numpy_cache.py LIBRARY [--tokens N] [--repetitions N] [--filter TEXT]: the library's
quantized caches beside the same caches in vectorised numpy.

A layer's keys and values, [S, 8, 128] of f32, in u8 and u4 with a scale and a minimum in f32
per token and head, and as KIVI keeps them: u4, with those of keys per channel for groups of 32
tokens, the last 128 tokens in f32. As docs/dtypes.md says, they are quantized, read back, and
attended to by one query of 32 heads. Each repetition times both, one after the other, and forms the ratio; both
on one thread, in CPU time. Both must come to the same, or the program fails.
"""
import argparse
import ctypes
import os
import sys
import time

for pool in ("OMP", "OPENBLAS", "MKL", "BLIS"):
    os.environ[pool + "_NUM_THREADS"] = "1"
try:
    import numpy as np
except ImportError:
    print("skipped: python3 has no numpy (apt-get install python3-numpy)")
    sys.exit(77)

F32, U8, U4 = 1, 6, 8
HEADS, QUERY_HEADS, DIM = 8, 32, 128
GROUP, RECENT = 32, 128
KEY_RECENT = 5
c_u32, c_i64, c_u64 = ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64
pointer, size_t = ctypes.c_void_p, ctypes.c_size_t


# ---- The library: the structs of kvevict.h that this needs ----


class Plane(ctypes.Structure):
    _fields_ = [
        ("data", c_u64),
        ("token_stride", c_i64),
        ("head_stride", c_i64),
        ("element_stride", c_i64),
        ("block_stride", c_i64),
        ("dtype", ctypes.c_int32),
        ("head_dim", c_u32),
        ("row_bytes", c_u32),
        ("role", ctypes.c_int32),
        ("groups", c_u64 * 3),
        ("group_tokens", c_u64),
        ("rest", c_u64 * 5),
    ]


class View(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_u32),
        ("n_kv_heads", c_u32),
        ("k", Plane),
        ("v", Plane),
        ("companions", ctypes.POINTER(Plane)),
        ("n_companions", c_u32),
        ("rest", c_u32 * 10),
        ("first_recent", c_u32),
    ]


class Move(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_u32),
        ("n_tokens", c_u32),
        ("view", ctypes.POINTER(View)),
        ("keep", pointer),
        ("token_counts", pointer),
        ("merge", ctypes.c_int32),
        ("first_slot", c_u32),
        ("merging", ctypes.c_double * 2),
        ("destination", ctypes.POINTER(View)),
    ]


class AttentionJob(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_u32),
        ("n_tokens", c_u32),
        ("token_counts", pointer),
        ("view", ctypes.POINTER(View)),
        ("queries", ctypes.POINTER(Plane)),
        ("out", ctypes.POINTER(Plane)),
        ("n_q_heads", c_u32),
        ("n_queries", c_u32),
        ("rest", c_u64 * 7),
    ]


class Workspace(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_u32),
        ("alignment", c_u32),
        ("least_bytes", size_t),
        ("best_bytes", size_t),
    ]


class Library:
    """The calls, each of which fails with its message."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.kvevict_last_error_message.restype = ctypes.c_char_p
        self.context = pointer()
        self.call("context_create", None, ctypes.byref(self.context))

    def call(self, name, *args):
        if getattr(self.lib, "kvevict_" + name)(*args) != 0:
            raise RuntimeError(self.lib.kvevict_last_error_message().decode())

    def new(self, kind, **fields):
        """A struct whose INIT macro is its size and zeros."""
        struct = kind(struct_size=ctypes.sizeof(kind))
        for field, value in fields.items():
            setattr(struct, field, value)
        return struct

    def mover(self, source, destination, n_tokens):
        """A function that stores the rows of one view in another."""
        move = self.new(Move, n_tokens=n_tokens)
        move.view, move.destination = ctypes.pointer(source), ctypes.pointer(destination)
        return lambda: self.call(
            "compact", self.context, ctypes.byref(move), size_t(1), None, size_t(0), None
        )

    def attender(self, view, queries, out, n_tokens):
        job = self.new(AttentionJob, n_tokens=n_tokens)
        job.view, job.n_q_heads, job.n_queries = ctypes.pointer(view), QUERY_HEADS, 1
        job.queries = ctypes.pointer(plane(queries, F32))
        job.out = ctypes.pointer(plane(out, F32))
        need = Workspace(ctypes.sizeof(Workspace))
        jobs = ctypes.byref(job)
        self.call("attend_workspace", self.context, jobs, size_t(1), ctypes.byref(need))
        workspace = aligned((need.best_bytes,), np.uint8)
        at, n_bytes = pointer(workspace.ctypes.data), size_t(need.best_bytes)
        # The closure keeps both, and what they point to, alive.
        return lambda: (workspace, out) and self.call(
            "attend", self.context, jobs, size_t(1), at, n_bytes, None
        )


def aligned(shape, dtype):
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(n_bytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + n_bytes].view(dtype).reshape(shape)


def plane(rows, dtype, role=0, head_dim=DIM, group_tokens=0):
    """Of an array [tokens, heads, ...]."""
    return Plane(
        data=rows.ctypes.data,
        token_stride=rows.strides[0],
        head_stride=rows.strides[1],
        dtype=dtype,
        head_dim=head_dim,
        role=role,
        group_tokens=group_tokens,
    )


# ---- The same cache in numpy ----


class NumpyRows:
    """Rows of codes, [S, H, D] or [S, H, D / 2], with a scale and a minimum each, or for each
    element those of some rows."""

    def __init__(self, n_tokens, dtype, group=0):
        self.dtype, self.group = dtype, group
        width = DIM if dtype == U8 else DIM // 2
        self.codes = aligned((n_tokens, HEADS, width), np.uint8)
        shape = (n_tokens // group, HEADS, DIM) if group else (n_tokens, HEADS, 1)
        self.scale = aligned(shape, np.float32)
        self.minimum = aligned(shape, np.float32)

    def planes(self, role):
        """Codes, and their numbers."""
        dim = DIM if self.group else 1
        return plane(self.codes, self.dtype), [
            plane(self.scale, F32, role, dim, self.group),
            plane(self.minimum, F32, role + 1, dim, self.group),
        ]

    def quantize(self, rows):
        steps = np.float32(255 if self.dtype == U8 else 15)
        scale, minimum, shape = self.scale, self.minimum, rows.shape
        if self.group:  # [groups, tokens of a group, H, D]
            rows = rows.reshape(-1, self.group, HEADS, DIM)
            scale, minimum = scale[:, None], minimum[:, None]
        axis = 1 if self.group else -1
        np.min(rows, axis=axis, keepdims=True, out=minimum)
        np.max(rows, axis=axis, keepdims=True, out=scale)
        scale -= minimum
        scale /= steps
        codes = rows - minimum
        codes /= np.where(scale > 0, scale, np.float32(1))
        np.rint(codes, out=codes)
        codes = np.clip(codes, 0, steps, out=codes).astype(np.uint8).reshape(shape)
        if self.dtype == U8:
            self.codes[...] = codes
        else:
            self.codes[...] = codes[..., 0::2] << 4 | codes[..., 1::2]

    def dequantize(self, out):
        scale, minimum, codes = self.scale, self.minimum, self.codes
        if self.group:
            out = out.reshape(-1, self.group, HEADS, DIM)
            codes = codes.reshape(-1, self.group, *codes.shape[1:])
            scale, minimum = scale[:, None], minimum[:, None]
        if self.dtype == U8:
            np.multiply(codes, scale, out=out, dtype=np.float32)
        else:
            even, odd = (scale[..., i::2] if self.group else scale for i in range(2))
            np.multiply(codes >> 4, even, out=out[..., 0::2], dtype=np.float32)
            np.multiply(codes & 15, odd, out=out[..., 1::2], dtype=np.float32)
        out += minimum

    def part(self, first, n):
        """The same of tokens from `first` on."""
        part = NumpyRows.__new__(NumpyRows)
        part.dtype, part.group = self.dtype, self.group
        part.codes = self.codes[first : first + n]
        per = self.group or 1
        span = slice(first // per, (first + n) // per)
        part.scale, part.minimum = self.scale[span], self.minimum[span]
        return part


class NumpyCache:
    """Keys and values, and what attends to them: rows are read as floats a few at a time, so
    that they stay in the processor's caches."""

    def __init__(self, n_tokens, dtype, group=0, n_recent=0):
        self.n_tokens, self.n_coded = n_tokens, n_tokens - n_recent
        self.k = NumpyRows(self.n_coded, dtype, group)
        self.v = NumpyRows(self.n_coded, dtype)
        self.recent = [aligned((n_recent, HEADS, DIM), np.float32) for _ in "kv"]
        self.tile = aligned((1024, HEADS, DIM), np.float32)

    def view(self, library):
        planes = [self.k.planes(1), self.v.planes(3)]
        numbers = planes[0][1] + planes[1][1]
        if len(self.recent[0]):
            numbers += [plane(r, F32, KEY_RECENT + i) for i, r in enumerate(self.recent)]
        view = view_of(library, planes[0][0], planes[1][0], numbers)
        view.first_recent = self.n_coded if len(self.recent[0]) else 0
        return view

    def quantize(self, k, v):
        self.k.quantize(k[: self.n_coded]), self.v.quantize(v[: self.n_coded])
        for recent, rows in zip(self.recent, (k, v)):
            recent[...] = rows[self.n_coded :]

    def dequantize(self, k, v):
        self.k.dequantize(k[: self.n_coded]), self.v.dequantize(v[: self.n_coded])
        for recent, rows in zip(self.recent, (k, v)):
            rows[self.n_coded :] = recent

    def parts(self, rows, recent):
        for first in range(0, self.n_coded, len(self.tile)):
            n = min(len(self.tile), self.n_coded - first)
            rows.part(first, n).dequantize(self.tile[:n])
            yield slice(first, first + n), self.tile[:n].transpose(1, 0, 2)  # [H, S, D]
        if len(recent):
            yield slice(self.n_coded, self.n_tokens), recent.transpose(1, 0, 2)

    def attend(self, queries, out):
        """queries, out [1, QH, D]."""
        q = queries.reshape(HEADS, -1, DIM)
        logits = np.empty((HEADS, q.shape[1], self.n_tokens), np.float32)
        for span, keys in self.parts(self.k, self.recent[0]):
            np.matmul(q, keys.transpose(0, 2, 1), out=logits[..., span])
        logits *= np.float32(DIM**-0.5)
        logits -= logits.max(axis=-1, keepdims=True)
        np.exp(logits, out=logits)
        total = logits.sum(axis=-1, keepdims=True)
        result = np.zeros_like(q)
        for span, values in self.parts(self.v, self.recent[1]):
            result += logits[..., span] @ values
        out[...] = (result / total).reshape(out.shape)


# ---- Both ----


def view_of(library, k, v, numbers=()):
    view = library.new(View, n_kv_heads=HEADS, k=k, v=v, n_companions=len(numbers))
    if numbers:
        view.companions = (Plane * len(numbers))(*numbers)
    return view


def check(name, ours, theirs, at_most):
    worst = float(np.max(np.abs(ours.astype(np.float64) - theirs)))
    if not worst <= at_most:
        raise RuntimeError(f"{name}: off by {worst}, more than {at_most}")


def cpu_time(work):
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def compare(name, repetitions, ours, theirs):
    ours(), theirs()
    times = [(cpu_time(ours), cpu_time(theirs)) for _ in range(repetitions)]
    ratios = sorted(b / a for a, b in times)
    fastest = [min(t) * 1e3 for t in zip(*times)]
    print(
        f"{name:24} {fastest[0]:9.2f} {fastest[1]:9.2f}   {ratios[len(ratios) // 2]:6.1f}"
        f"   {ratios[0]:6.1f} .. {ratios[-1]:.1f}"
    )


def bench(library, label, args, *kind):
    rng = np.random.default_rng(1)
    n = args.tokens
    plain, back = ([aligned((n, HEADS, DIM), np.float32) for _ in "kv"] for _ in range(2))
    for rows in plain:
        rng.standard_normal(out=rows, dtype=np.float32)
    queries = aligned((1, QUERY_HEADS, DIM), np.float32)
    rng.standard_normal(out=queries, dtype=np.float32)
    ours, theirs = NumpyCache(n, *kind), NumpyCache(n, *kind)
    f32 = view_of(library, *(plane(rows, F32) for rows in plain))
    read = view_of(library, *(plane(rows, F32) for rows in back))
    quantized = ours.view(library)
    out, numpy_out = (np.zeros_like(queries) for _ in range(2))
    numpy_back = [np.empty_like(rows) for rows in back]
    steps = (
        ("quantize", library.mover(f32, quantized, n), lambda: theirs.quantize(*plain)),
        ("dequantize", library.mover(quantized, read, n), lambda: theirs.dequantize(*numpy_back)),
        (
            "attend",
            library.attender(quantized, queries, out, n),
            lambda: theirs.attend(queries, numpy_out),
        ),
    )
    for name, our_step, numpy_step in steps:
        compare(f"{name} {label} {n}", args.repetitions, our_step, numpy_step)
    # A code is off by one if numpy's quotient rounds to the other side.
    step = float(theirs.k.scale.max())
    check(label, back[0], plain[0], 0.5001 * step)
    check(label + " in numpy", numpy_back[0], plain[0], 0.5001 * step)
    check(label + " attended to", out, numpy_out, step / 50)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("library")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--filter", default="")
    args = parser.parse_args()
    library = Library(args.library)
    print(f"quantized caches beside numpy {np.__version__}: K and V [S, {HEADS}, {DIM}], one")
    print("thread each, CPU time; the ratio is the median of each repetition's\n")
    print(f"{'':24} {'ms':>9} {'numpy ms':>9}   {'times as fast':>6}")
    kinds = {"int8": (U8,), "int4": (U4,), "kivi": (U4, GROUP, RECENT)}
    for label, kind in kinds.items():
        if args.filter in label:
            bench(library, label, args, *kind)


if __name__ == "__main__":
    main()
