"""RWKV-7 written out in NumPy float64, one token at a time, straight from the formulas.

It shares no code with the engine, and does nothing for speed: it is what the engine is compared with.
"""

import numpy as np
import torch

HEAD = 64


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer_norm(x, weight, bias, eps=1e-5):
    return (x - x.mean()) / np.sqrt(x.var() + eps) * weight + bias


class ReferenceModel:
    """`step(token)` returns logits [V], and moves the state that the object holds for its only row."""

    def __init__(self, path):
        stored = torch.load(path, weights_only=True)
        self.emb = stored.pop("emb.weight")  # converted row by row: a table in float64 would be big
        self.z = {name: tensor.double().squeeze().numpy() for name, tensor in stored.items()}
        self.layers = 1 + max(int(name.split(".")[1]) for name in self.z if name.startswith("blocks."))
        self.width = self.emb.shape[1]
        self.reset()

    def reset(self):
        self.shift_att = np.zeros((self.layers, self.width))
        self.shift_ffn = np.zeros((self.layers, self.width))
        self.S = np.zeros((self.layers, self.width // HEAD, HEAD, HEAD))
        self.zeros = []  # share of relu(x)^2 that was zero, for each layer of each step

    def run(self, tokens):
        """Logits [T, V] of a fresh row."""
        self.reset()
        return np.stack([self.step(token) for token in tokens])

    def step(self, token):
        z = self.z
        x = layer_norm(self.emb[token].double().numpy(), z["blocks.0.ln0.weight"], z["blocks.0.ln0.bias"])
        v_first = None
        for layer in range(self.layers):
            p = {n.removeprefix(f"blocks.{layer}."): t for n, t in z.items() if n.startswith(f"blocks.{layer}.")}
            u = layer_norm(x, p["ln1.weight"], p["ln1.bias"])
            y, v_first = self.time_mix(layer, p, u, v_first)
            x = x + y
            u = layer_norm(x, p["ln2.weight"], p["ln2.bias"])
            h = u + (self.shift_ffn[layer] - u) * p["ffn.x_k"]
            self.shift_ffn[layer] = u
            neurons = np.maximum(p["ffn.key.weight"] @ h, 0) ** 2
            self.zeros.append((neurons == 0).mean())
            x = x + p["ffn.value.weight"] @ neurons
        return z["head.weight"] @ layer_norm(x, z["ln_out.weight"], z["ln_out.bias"])

    def time_mix(self, layer, p, u, v_first):
        d = self.shift_att[layer] - u
        self.shift_att[layer] = u
        xr, xw, xk, xv, xa, xg = (u + d * p[f"att.x_{name}"] for name in "rwkvag")
        r = p["att.receptance.weight"] @ xr
        k = p["att.key.weight"] @ xk
        v = p["att.value.weight"] @ xv
        w = p["att.w0"] + np.tanh(xw @ p["att.w1"]) @ p["att.w2"]
        decay = np.exp(-np.exp(-0.5) * sigmoid(w))
        a = sigmoid(p["att.a0"] + (xa @ p["att.a1"]) @ p["att.a2"])
        g = sigmoid(xg @ p["att.g1"]) @ p["att.g2"]
        kk = k * p["att.k_k"]
        k = k * (1 + (a - 1) * p["att.k_a"])
        if layer == 0:
            v_first = v
        else:
            v = v + (v_first - v) * sigmoid(p["att.v0"] + (xv @ p["att.v1"]) @ p["att.v2"])
        y = np.empty_like(u)
        for head in range(self.width // HEAD):
            at = slice(head * HEAD, (head + 1) * HEAD)
            unit = kk[at] / max(np.linalg.norm(kk[at]), 1e-12)
            S = self.S[layer, head]
            sa = -S @ unit
            S = S * decay[at] + np.outer(sa, unit * a[at]) + np.outer(v[at], k[at])
            self.S[layer, head] = S
            normed = layer_norm(S @ r[at], p["att.ln_x.weight"][at], p["att.ln_x.bias"][at], eps=64e-5)
            y[at] = normed + (r[at] * k[at] * p["att.r_k"][head]).sum() * v[at]
        return p["att.output.weight"] @ (y * g), v_first


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
