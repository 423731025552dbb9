#!/usr/bin/env python3
"""export.py FOLDER: small decoders as PyTorch's exporter writes them, one for each way to write
attention: NAME.onnx, and in NAME.json the rotated queries and the logits of 20 tokens."""
import json
import math
import sys
import warnings

import torch
from torch import nn

LAYERS, HEADS, KV_HEADS, DIM, VOCABULARY, WIDTH = 2, 4, 2, 16, 256, 64


def turned(x):
    return torch.cat((-x[..., DIM // 2:], x[..., :DIM // 2]), -1)


def repeated(x):
    batch, heads, n, dim = x.shape
    groups = HEADS // KV_HEADS
    return x[:, :, None].expand(batch, heads, groups, n, dim).reshape(batch, HEADS, n, dim)


def divided(q, k):
    return torch.matmul(q, k.transpose(2, 3)) / math.sqrt(DIM)


def scaled_both(q, k):  # by a number that the graph computes
    root = torch.sqrt(1 / torch.sqrt(torch.tensor(1.0) * q.size(-1)))
    return torch.matmul(q * root, k.transpose(-2, -1) * root)


def scaled_before(q, k):
    return torch.matmul(q * DIM**-0.5, k.transpose(2, 3))


def capped(q, k):
    return torch.tanh(torch.matmul(q, k.transpose(2, 3)) * DIM**-0.5 / 30) * 30


class Layer(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = logits
        self.q = nn.Linear(WIDTH, HEADS * DIM, bias=False)
        self.k = nn.Linear(WIDTH, KV_HEADS * DIM, bias=False)
        self.v = nn.Linear(WIDTH, KV_HEADS * DIM, bias=False)
        self.o = nn.Linear(HEADS * DIM, WIDTH, bias=False)

    def forward(self, x, cos, sin, mask, past_k, past_v):
        batch, n, _ = x.shape

        def heads(rows):
            return rows.view(batch, n, -1, DIM).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        self.queries = q = q * cos + turned(q) * sin
        k = torch.cat((past_k, k * cos + turned(k) * sin), 2)
        v = torch.cat((past_v, v), 2)
        weights = torch.softmax(self.logits(q, repeated(k)) + mask, -1, dtype=torch.float32)
        mixed = torch.matmul(weights.to(q.dtype), repeated(v))
        return self.o(mixed.transpose(1, 2).contiguous().reshape(batch, n, HEADS * DIM)), k, v


class Decoder(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer(logits) for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("frequencies", 10000.0**(-torch.arange(0, DIM, 2) / DIM))

    def forward(self, ids, mask, positions, *past):
        angles = positions[..., None].float() * self.frequencies
        angles = torch.cat((angles, angles), -1)[:, None]
        n, total = ids.shape[1], mask.shape[1]
        own = torch.arange(total - n, total)[:, None]
        seen = (torch.arange(total)[None] <= own)[None, None] & (mask[:, None, None] > 0)
        bias = torch.where(seen, torch.tensor(0.0), torch.tensor(-1e9))
        x, present = self.embedding(ids), []
        for i, layer in enumerate(self.layers):
            y, k, v = layer(x, angles.cos(), angles.sin(), bias, past[2 * i], past[2 * i + 1])
            x, present = x + y, present + [k, v]
        return (self.head(x), *present)


def main(folder):
    names = [f"{i}.{kind}" for i in range(LAYERS) for kind in ("key", "value")]
    inputs = ["input_ids", "attention_mask", "position_ids"]
    axes = {name: {0: "batch_size", 1: name} for name in inputs}
    axes.update({f"past_key_values.{name}": {0: "batch_size", 2: "past"} for name in names})
    axes.update({f"present.{name}": {0: "batch_size", 2: "all"} for name in names})

    def arguments(n, n_past):
        past = [torch.zeros(1, KV_HEADS, n_past, DIM) for _ in names]
        return (torch.arange(n)[None] * 37 % VOCABULARY,
                torch.ones(1, n_past + n, dtype=torch.long), torch.arange(n)[None], *past)

    for logits in (divided, scaled_both, scaled_before, capped):
        torch.manual_seed(1)
        decoder = Decoder(logits).eval()
        torch.onnx.export(decoder, arguments(2, 3), f"{folder}/{logits.__name__}.onnx",
                          input_names=inputs + [f"past_key_values.{name}" for name in names],
                          output_names=["logits"] + [f"present.{name}" for name in names],
                          dynamic_axes=axes, opset_version=14)
        out = decoder(*arguments(20, 0))[0]
        queries = [layer.queries[0].tolist() for layer in decoder.layers]
        with open(f"{folder}/{logits.__name__}.json", "w", encoding="utf-8") as file:
            json.dump({"queries": queries, "logits": out[0, -1].tolist()}, file)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
