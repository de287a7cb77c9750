"""Random small programs of `torch.nn`: a seed gives a module and its inputs."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

ELEMENTWISE = [
    F.relu,
    F.gelu,
    torch.tanh,
    torch.sigmoid,
    F.silu,
    F.leaky_relu,
    F.softplus,
    F.hardswish,
    F.hardsigmoid,
    F.elu,
    F.selu,
    F.mish,
    F.logsigmoid,
    torch.abs,
    torch.sin,
    torch.atan,
    torch.erf,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x * x - 0.5,
    lambda x: torch.exp(-x.abs()),
    lambda x: x.clamp(-0.7, 0.8),
    lambda x: 1.5 - x,
    lambda x: (x.square() + 1).log(),
    lambda x: (x.abs() + 1).rsqrt(),
    lambda x: x.masked_fill(x > 0.5, 0.25),
    lambda x: torch.where(x > 0, x, 0.1 * x),
    lambda x: torch.lerp(x, x.tanh(), 0.3),
    lambda x: x / (1 + x.square()),
    lambda x: torch.maximum(x, 0.2 * x - 0.1),
    lambda x: x.double().mul(0.5).to(x.dtype),
    lambda x: F.dropout(x, 0.0, True),
    lambda x: x.detach() * 0.3 + x,
]

ALONG = [
    lambda x, d: x.softmax(d),
    lambda x, d: x.log_softmax(d),
    lambda x, d: x - x.mean(d, keepdim=True),
    lambda x, d: x / (1 + x.abs().amax(d, keepdim=True)),
    lambda x, d: x - x.logsumexp(d, keepdim=True),
    lambda x, d: x * (x.var(d, keepdim=True, unbiased=False) + 1).rsqrt(),
    lambda x, d: x.cumsum(d) * 0.3,
    lambda x, d: F.normalize(x, dim=d, eps=0.1),
    lambda x, d: x.sort(d).values,
    lambda x, d: x.flip(d),
    lambda x, d: x.roll(1, d),
    lambda x, d: torch.cat([x.narrow(d, 0, 1), x], d),
    lambda x, d: torch.cat([c * s for s, c in enumerate(x.chunk(2, d), 1)], d),
    lambda x, d: torch.stack([x, -0.5 * x.tanh()], d).sum(d),
    lambda x, d: x.index_select(d, torch.arange(x.shape[d]).flip(0)),
    lambda x, d: x.narrow(d, 1, x.shape[d] - 1) if x.shape[d] > 3 else x,
    lambda x, d: x + x.select(d, 0).unsqueeze(d),
    lambda x, d: x.gather(d, x.argsort(d)),
    lambda x, d: x.topk(min(3, x.shape[d]), d).values,
    lambda x, d: x.diff(dim=d) if x.shape[d] > 3 else x,
]


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Of(nn.Module):
    """A function as a layer."""

    def __init__(self, f, *args):
        super().__init__()
        self.f, self.args = f, args

    def forward(self, x):
        return self.f(x, *self.args)


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.qkv, self.heads, self.causal = nn.Linear(width, 3 * width), heads, causal

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return y.transpose(1, 2).reshape(n, length, width)


def step(dice, shape):
    """A layer for tensors of this shape, of which the first size is the batch."""
    rank = len(shape)
    axis = dice.randrange(1, rank)
    width = shape[-1]
    any_rank = [
        lambda: Of(dice.choice(ELEMENTWISE)),
        lambda: Of(dice.choice(ELEMENTWISE)),
        lambda: Of(dice.choice(ALONG), axis),
        lambda: Of(dice.choice(ALONG), axis),
        lambda: nn.Linear(width, dice.choice([3, 4, 8])),
        lambda: nn.LayerNorm(width, elementwise_affine=dice.random() < 0.7),
        lambda: Residual(Of(dice.choice(ELEMENTWISE))),
        lambda: Residual(nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, width, bias=False))),
        lambda: Of(lambda x: F.pad(x, (1, 2), value=0.5)),
        lambda: Of(lambda x: x.transpose(-1, axis)),
        lambda: Of(lambda x: x @ x.transpose(-1, -2) * 0.2) if rank > 2 else nn.Identity(),
    ]
    rows = [
        lambda: nn.BatchNorm1d(width),
        lambda: nn.Linear(width, 4, bias=False),
        lambda: Of(lambda x: x.unsqueeze(1).expand(-1, 3, -1)),
        lambda: nn.Sequential(nn.Linear(width, 12), nn.Unflatten(1, (3, 2, 2))),
        lambda: nn.PReLU(),
    ]
    lines = [
        lambda: nn.Conv1d(shape[1], 4, dice.choice([1, 3]), padding=1, stride=dice.choice([1, 2])),
        lambda: nn.BatchNorm1d(shape[1]),
        lambda: Of(lambda x: x.flatten(1)),
        lambda: Of(lambda x: x.mean(1)),
        lambda: Of(lambda x: F.avg_pool1d(x, 2, ceil_mode=True)),
        lambda: Of(lambda x: torch.einsum("bij,bkj->bik", x, x.tanh()) * 0.2),
        lambda: Attention(width, dice.choice([n for n in (1, 2) if width % n == 0]), dice.random() < 0.5),
        lambda: Of(lambda x: x.unsqueeze(2)),
    ]
    groups = dice.choice([n for n in (1, 2, 4) if shape[1] % n == 0])
    images = [
        lambda: nn.Conv2d(shape[1], 4, 3, padding=1, stride=dice.choice([1, 2]), bias=dice.random() < 0.5),
        lambda: nn.Conv2d(shape[1], 2 * groups, dice.choice([1, 3]), padding=1, groups=groups, padding_mode=dice.choice(["zeros", "zeros", "reflect"]) if min(shape[2:]) > 2 else "zeros"),
        lambda: nn.ConvTranspose2d(shape[1], 3, 2, stride=2),
        lambda: nn.BatchNorm2d(shape[1]),
        lambda: nn.GroupNorm(groups, shape[1]),
        lambda: nn.InstanceNorm2d(shape[1]) if shape[2] * shape[3] > 1 else nn.Identity(),
        lambda: nn.MaxPool2d(2, ceil_mode=True),
        lambda: nn.MaxPool2d(3, stride=1, padding=1),
        lambda: nn.AvgPool2d(2, ceil_mode=True, count_include_pad=dice.random() < 0.5),
        lambda: nn.AdaptiveAvgPool2d(2),
        lambda: nn.Upsample(scale_factor=2, mode=dice.choice(["nearest", "bilinear"])),
        lambda: Of(lambda x: x.flatten(2)),
        lambda: Of(lambda x: x.flatten(1)),
        lambda: Of(lambda x: x.mean((2, 3))),
        lambda: Of(lambda x: x.to(memory_format=torch.channels_last) * 2),
        lambda: nn.PixelShuffle(2) if shape[1] % 4 == 0 else nn.PixelUnshuffle(2) if shape[2] % 2 == shape[3] % 2 == 0 else nn.Identity(),
    ]
    special = {2: rows, 3: lines, 4: images}.get(rank, [])
    return dice.choice(special if special and dice.random() < 0.55 else any_rank)()


LOSSES = [
    lambda y: y.square().mean(),
    lambda y: y.tanh().sum(),
    lambda y: F.cross_entropy(y.flatten(1), torch.zeros(y.shape[0], dtype=torch.long), label_smoothing=0.1),
    lambda y: F.mse_loss(y, torch.ones_like(y)),
    lambda y: F.smooth_l1_loss(y, torch.zeros_like(y)),
    lambda y: F.binary_cross_entropy_with_logits(y, torch.full_like(y, 0.3)),
]


class Net(nn.Module):
    """Layers, and the loss of what they give."""

    def __init__(self, layers, loss):
        super().__init__()
        self.layers, self.loss = nn.ModuleList(layers), loss

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x, self.loss(x.float() if x.dtype.is_floating_point and x.dtype != torch.float64 else x)


def program(seed):
    """The module, and a function from a batch size, and the number of a draw, to its input."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    kind = dice.choice(["rows", "lines", "images", "tokens"])
    sizes = {"rows": [6], "lines": [4, 6], "images": [4, 6, 5], "tokens": [5]}[kind]
    nans = dice.random() < 0.05

    def make(batch, draw=0):
        generator = torch.Generator().manual_seed(seed + 1_000_003 * draw)
        if kind == "tokens":
            return torch.randint(0, 7, (batch, *sizes), generator=generator)
        x = torch.randn(batch, *sizes, generator=generator)
        if nans:
            x.view(-1)[3] = float("nan")
        return x.transpose(1, -1).contiguous().transpose(1, -1) if seed % 3 == 0 else x

    layers, x = [], make(3)
    if kind == "tokens":
        layers.append(nn.Embedding(7, 4, padding_idx=dice.choice([None, 2])))
        x = layers[0](x)
    with torch.no_grad():
        for _ in range(dice.randrange(2, 8)):
            layer = step(dice, x.shape)
            y = layer(x)
            if y.numel() in range(1, 4000) and y.dim() > 1 and min(y.shape) > 0 and y.shape[0] == 3:
                layers.append(layer)
                x = y
    return Net(layers, dice.choice(LOSSES)), make
