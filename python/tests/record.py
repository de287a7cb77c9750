"""Records graphs of AOTAutograd as `tests/data/fx/NAME.json` and `NAME.npz`, which `cargo test` replays without Python.

    python record.py FOLDER

A file of JSON is what the wheel hands to its native part. The arrays are the inputs, and what eager PyTorch gives for each output.
"""

import contextlib
import json
import sys
import zipfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

import tracecast
from tracecast._capture import Calls, Layout, is_call, memory, numbers_of, symbols_of
from tracecast._compiled import inputs_of
from tracecast._save import npy


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(7, 3, mode=mode, padding_idx=padding, include_last_offset=last)
            for mode, padding, last in [("sum", None, False), ("sum", 2, True), ("mean", 2, False), ("max", 2, True), ("max", None, False)]
        )
        self.weights = nn.Parameter(torch.rand(6))

    def forward(self, at, starts, ends):
        given = [(bag, ends if bag.include_last_offset else starts) for bag in self.bags]
        results = [bag(at, begin, self.weights if bag.mode == "sum" else None) for bag, begin in given]
        return torch.cat(results, 1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, stride=2, groups=2)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return F.adaptive_avg_pool2d(self.b(F.relu(self.norm(self.a(x)))), 1).flatten(1)


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up, self.out = nn.Conv2d(1, 4, 3, padding=1), nn.ConvTranspose2d(4, 2, 2, stride=2), nn.Conv2d(3, 1, 1)

    def forward(self, x):
        y = F.max_pool2d(F.leaky_relu(self.down(x)), 2)
        return self.out(torch.cat([self.up(y), F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="bilinear")], 1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, at, classes):
        logits = self.out(F.silu(self.table(at))).log_softmax(-1)
        return F.nll_loss(logits.flatten(0, 1), classes.flatten(), ignore_index=0)


class Mask(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x, at):
        best, order = x.topk(3, 1)
        y = x.masked_fill(x > 1, -1.0).cumsum(1) * self.scale
        return y.gather(1, order) + best + y.index_select(1, at)


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.group, self.layer, self.fc = nn.GroupNorm(2, 4), nn.LayerNorm([4, 5]), nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(F.gelu(self.layer(self.group(x)))).std(1)


def scattered(layer):
    """The layer with parameters that are not all one or zero."""
    for p in layer.parameters():
        nn.init.normal_(p, 0.5)
    return layer


def models():
    """Each model with its inputs."""
    at, classes = torch.tensor([[1, 4, 2], [0, 8, 4]]), torch.tensor([[4, 2, 0], [8, 4, 3]])
    mlp = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    return {
        "mlp": (mlp, [torch.randn(5, 6)]),
        "autocast": (mlp, [torch.randn(5, 6)]),
        "bags": (Bags(), [torch.tensor([1, 2, 4, 4, 2, 6]), torch.tensor([0, 2, 2, 5]), torch.tensor([0, 2, 2, 5, 6])]),
        "attention": (Attention(), [torch.randn(2, 5, 8)]),
        "residual": (Residual(), [torch.randn(2, 3, 7, 7)]),
        "unet": (Unet(), [torch.randn(2, 1, 8, 8)]),
        "words": (Words(), [at, classes]),
        "mask": (Mask(), [torch.randn(3, 4), torch.tensor([3, 0, 0])]),
        "norms": (Norms(), [torch.randn(3, 4, 5)]),
        "strides": (nn.Conv2d(3, 4, 3), [torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)]),
        "norm_bf16": (scattered(nn.BatchNorm2d(4)).bfloat16(), [torch.randn(3, 4, 5, 6).bfloat16()]),
    }


def record(graph, name, folder, arguments):
    """Writes the program of a graph for these arguments, and what it gives."""
    expected = graph(*[x.clone() if torch.is_tensor(x) else x for x in arguments])
    nodes, constants, values = inputs_of(graph, tuple(arguments))
    calls = Calls(numbers_of(symbols_of(values)))
    arrays = {}
    for node in nodes:
        value = values[node]
        if torch.is_tensor(value):
            order = Layout(tuple(value.shape), tuple(value.stride())).order()
            calls.add_input(node, value.dtype, value.shape, order)
            key, array = memory(node.name, value, order)
            arrays[f"in.{key}"] = array
    for node in filter(is_call, graph.graph.nodes):
        calls.add_node(node)
    outputs = []
    for node, value in zip(graph.graph.output_node().args[0], expected):
        if isinstance(node, torch.fx.Node) and torch.is_tensor(value):
            arrays[f"out.{len(outputs)}"] = value
            outputs.append(calls.add_output(node, None))
    # Lines of the files of PyTorch say nothing about the program.
    calls.calls = [(*call[:4], Path(call[4]).name, call[5]) for call in calls.calls]
    text = json.dumps(json.loads(calls.program(name, outputs)), separators=(",", ":"))
    (folder / f"{name}.json").write_text(text + "\n")
    with zipfile.ZipFile(folder / f"{name}.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), npy(array), zipfile.ZIP_DEFLATED)
    return expected


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (model, inputs) in models().items():
        torch._dynamo.reset()

        def compiler(kind):
            run = lambda graph: lambda *arguments: record(graph, f"{name}.{kind}", folder, arguments)
            return lambda graph, _: make_boxed_func(run(graph))

        backend = aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            decompositions=tracecast._decompositions(),
            partition_fn=min_cut_rematerialization_partition,
        )
        cast = torch.autocast("cpu", torch.bfloat16) if name == "autocast" else contextlib.nullcontext()
        with cast:
            result = torch.compile(model, backend=backend, dynamic=False)(*inputs)
        result.float().square().sum().backward()


if __name__ == "__main__":
    torch.manual_seed(0)
    main(Path(sys.argv[1]))
