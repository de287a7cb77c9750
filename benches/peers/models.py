"""The networks of benches/models in PyTorch, eager and compiled, measured in turn with Tracecast.

    python benches/peers/models.py --out benches/results/models.json     # the whole table, two threads
    python benches/peers/models.py --networks resnet18 --modes train --dtypes f32
    python benches/peers/models.py --networks resnet18 --peers tracecast,archive   # beside what torch.export writes of PyTorch's network
    python benches/peers/models.py --peers tracecast,stored              # beside the same with every value stored before fusion
    python benches/peers/models.py --worker eager resnet18 train f32     # one network in one process, as the bench does with --turns

Every peer is a process of its own that takes its first five steps alone. Then the peers take steps in turn, five rounds, about a second each.
Weights and data come from `fill`, a closed formula by name, on both sides; dropout is left out; losses of the first steps are compared. bf16 is
autocast. Beside PyTorch's bf16 it is measured only where the processor multiplies pairs of bf16 (AVX512-BF16) and has no tiles (AMX),
which Tracecast does not use; elsewhere beside its f32.

Output: a Markdown table, and with --out the rows of a result file, {"network","mode","dtype","threads","tracecast","eager","compiled","ratio","difference"}, each
peer with {"first_ms","peak_mb","median_ms","rounds_ms","checks"}.
"""
import argparse, contextlib, json, math, os, statistics, subprocess, sys, tempfile, time

NETWORKS = ["conv_stack", "resnet18", "mobilenet_v3_small", "vit_small", "gpt2", "gpt2_checkpointed", "gpt2_50257", "bert_base", "diffusion_unet", "lstm_tagger"]
PEERS = ["tracecast", "eager", "compiled"]
# Tracecast again: on what torch.export writes of PyTorch's network, and with every value stored before fusion.
ARCHIVE, STORED = "archive", "stored"
FIRST_STEPS = 5
RATE = 1e-4

# --------------------------------------------------------------------------- networks


def networks(torch):
    """Each network's constructor, by name."""
    nn, F = torch.nn, torch.nn.functional

    def normed(i, o, k, stride=1, groups=1, act=None):
        conv = nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(o, eps=0.001, momentum=0.01), *([act()] if act else []))

    class ConvStack(nn.Module):
        def __init__(self):
            super().__init__()
            for n in range(8):
                self.add_module(str(n), nn.ModuleDict(dict(conv=nn.Conv2d(64, 64, 3, 1, 1, bias=False), bn=nn.BatchNorm2d(64))))

        def forward(self, x):
            for layer in self.children():
                x = F.relu(layer["bn"](layer["conv"](x)))
            return x

    class Residual(nn.Module):
        def __init__(self, i, o, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
            self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
            self.downsample = None
            if stride != 1 or i != o:
                self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

        def forward(self, x):
            y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
            y += x if self.downsample is None else self.downsample(x)
            return F.relu(y, inplace=True)

    class ResNet18(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1, self.maxpool = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1)
            i = 64
            for n, o in enumerate([64, 128, 256, 512], 1):
                stride = 1 if n == 1 else 2
                self.add_module(f"layer{n}", nn.Sequential(Residual(i, o, stride), Residual(o, o, 1)))
                i = o
            self.fc = nn.Linear(512, 10)

        def forward(self, x):
            x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    class SqueezeExcite(nn.Module):
        def __init__(self, channels):
            super().__init__()
            quarter = channels // 4
            few = max(8, (quarter + 4) // 8 * 8)
            few += 8 if few * 10 < quarter * 9 else 0
            self.fc1, self.fc2 = nn.Conv2d(channels, few, 1), nn.Conv2d(few, channels, 1)

        def forward(self, x):
            return F.hardsigmoid(self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1))))) * x

    class Inverted(nn.Module):
        def __init__(self, i, k, wide, o, squeezed, hard, stride):
            super().__init__()
            act = nn.Hardswish if hard else nn.ReLU
            block = [normed(i, wide, 1, act=act)] if wide != i else []
            block.append(normed(wide, wide, k, stride, wide, act))
            block += [SqueezeExcite(wide)] if squeezed else []
            block.append(normed(wide, o, 1))
            self.block, self.around = nn.Sequential(*block), stride == 1 and i == o

        def forward(self, x):
            y = self.block(x)
            return y + x if self.around else y

    class MobileNetV3Small(nn.Module):
        def __init__(self):
            super().__init__()
            rows = [(16, 3, 16, 16, 1, 0, 2), (16, 3, 72, 24, 0, 0, 2), (24, 3, 88, 24, 0, 0, 1), (24, 5, 96, 40, 1, 1, 2), (40, 5, 240, 40, 1, 1, 1),
                    (40, 5, 240, 40, 1, 1, 1), (40, 5, 120, 48, 1, 1, 1), (48, 5, 144, 48, 1, 1, 1), (48, 5, 288, 96, 1, 1, 2),
                    (96, 5, 576, 96, 1, 1, 1), (96, 5, 576, 96, 1, 1, 1)]
            first, last = normed(3, 16, 3, 2, act=nn.Hardswish), normed(96, 576, 1, act=nn.Hardswish)
            self.features = nn.Sequential(first, *(Inverted(*row) for row in rows), last)
            self.classifier = nn.Sequential(nn.Linear(576, 1024), nn.Hardswish(), nn.Identity(), nn.Linear(1024, 10))

        def forward(self, x):
            return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))

    class VitLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(384, eps=1e-6), nn.LayerNorm(384, eps=1e-6)
            self.self_attention = nn.MultiheadAttention(384, 6, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(384, 1536), nn.GELU(), nn.Identity(), nn.Linear(1536, 384))

        def forward(self, x):
            y = self.ln_1(x)
            x = x + self.self_attention(y, y, y, need_weights=False)[0]
            return x + self.mlp(self.ln_2(x))

    class VitSmall(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv_proj, self.class_token = nn.Conv2d(3, 384, 16, 16), nn.Parameter(torch.zeros(1, 1, 384))
            self.encoder = nn.Module()
            self.encoder.pos_embedding = nn.Parameter(torch.zeros(1, 197, 384))
            self.encoder.layers = nn.Sequential()
            for n in range(12):
                self.encoder.layers.add_module(f"encoder_layer_{n}", VitLayer())
            self.encoder.ln, self.heads = nn.LayerNorm(384, eps=1e-6), nn.ModuleDict(dict(head=nn.Linear(384, 10)))

        def forward(self, x):
            x = self.conv_proj(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.encoder.pos_embedding
            return self.heads["head"](self.encoder.ln(self.encoder.layers(x))[:, 0])

    WIDTH, HEADS = 768, 12

    def attention(q, k, v, causal):
        q, k, v = (x.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)

    class Conv1D(nn.Module):
        """A linear layer whose weight is [inputs, outputs]."""

        def __init__(self, i, o):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.empty(i, o)), nn.Parameter(torch.zeros(o))

        def forward(self, x):
            return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])

    class GptLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attn = nn.ModuleDict(dict(c_attn=Conv1D(WIDTH, 3 * WIDTH), c_proj=Conv1D(WIDTH, WIDTH)))
            self.mlp = nn.ModuleDict(dict(c_fc=Conv1D(WIDTH, 4 * WIDTH), c_proj=Conv1D(4 * WIDTH, WIDTH)))

        def forward(self, x):
            x = x + self.attn["c_proj"](attention(*self.attn["c_attn"](self.ln_1(x)).chunk(3, -1), True))
            return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self, vocabulary, recomputes=False):
            super().__init__()
            self.recomputes = recomputes
            layers = nn.ModuleList(GptLayer() for _ in range(12))
            self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(vocabulary, WIDTH), wpe=nn.Embedding(1024, WIDTH), h=layers, ln_f=nn.LayerNorm(WIDTH)))

        def forward(self, tokens):
            of = self.transformer
            x = of["wte"](tokens) + of["wpe"](torch.arange(tokens.shape[1]))
            for layer in of["h"]:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) if self.recomputes and self.training else layer(x)
            return F.linear(of["ln_f"](x), of["wte"].weight)

    def norm():
        return nn.LayerNorm(WIDTH, eps=1e-12)

    class BertLayer(nn.Module):
        def __init__(self):
            super().__init__()
            qkv = nn.ModuleDict({n: nn.Linear(WIDTH, WIDTH) for n in ("query", "key", "value")})
            out = nn.ModuleDict(dict(dense=nn.Linear(WIDTH, WIDTH), LayerNorm=norm()))
            self.attention = nn.ModuleDict({"self": qkv, "output": out})
            self.intermediate = nn.ModuleDict(dict(dense=nn.Linear(WIDTH, 4 * WIDTH)))
            self.output = nn.ModuleDict(dict(dense=nn.Linear(4 * WIDTH, WIDTH), LayerNorm=norm()))

        def forward(self, x):
            of, out = self.attention["self"], self.attention["output"]
            x = out["LayerNorm"](x + out["dense"](attention(of["query"](x), of["key"](x), of["value"](x), False)))
            return self.output["LayerNorm"](x + self.output["dense"](F.gelu(self.intermediate["dense"](x))))

    class Bert(nn.Module):
        def __init__(self, vocabulary):
            super().__init__()
            words, places, kinds = nn.Embedding(vocabulary, WIDTH, padding_idx=0), nn.Embedding(512, WIDTH), nn.Embedding(2, WIDTH)
            embeddings = dict(word_embeddings=words, position_embeddings=places, token_type_embeddings=kinds, LayerNorm=norm())
            layers = nn.ModuleDict(dict(layer=nn.ModuleList(BertLayer() for _ in range(12))))
            self.bert = nn.ModuleDict(dict(embeddings=nn.ModuleDict(embeddings), encoder=layers))
            transform = nn.ModuleDict(dict(dense=nn.Linear(WIDTH, WIDTH), LayerNorm=norm()))
            self.cls = nn.ModuleDict(dict(predictions=nn.ModuleDict(dict(transform=transform))))
            self.cls["predictions"].register_parameter("bias", nn.Parameter(torch.zeros(vocabulary)))

        def forward(self, tokens):
            of, head = self.bert["embeddings"], self.cls["predictions"]
            x = of["word_embeddings"](tokens) + of["token_type_embeddings"](torch.zeros_like(tokens))
            x = of["LayerNorm"](x + of["position_embeddings"](torch.arange(tokens.shape[1])))
            for layer in self.bert["encoder"]["layer"]:
                x = layer(x)
            y = head["transform"]["LayerNorm"](F.gelu(head["transform"]["dense"](x)))
            return F.linear(y, of["word_embeddings"].weight, head.bias)

    class Block(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.n1, self.c1, self.t = nn.GroupNorm(4, i), nn.Conv2d(i, o, 3, padding=1), nn.Linear(32, o)
            self.n2, self.c2 = nn.GroupNorm(4, o), nn.Conv2d(o, o, 3, padding=1)
            self.sk = nn.Conv2d(i, o, 1) if i != o else None

        def forward(self, x, step):
            y = self.c1(F.silu(self.n1(x))) + self.t(F.silu(step))[:, :, None, None]
            return (x if self.sk is None else self.sk(x)) + self.c2(F.silu(self.n2(y)))

    class Attention(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.n, self.qkv, self.o = nn.GroupNorm(4, channels), nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

        def forward(self, x):
            b, c, h, w = x.shape
            q, k, v = self.qkv(self.n(x)).reshape(b, 3, 4, c // 4, h * w).transpose(-1, -2).unbind(1)
            return x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w))

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.i, self.t = nn.Conv2d(3, 16, 3, padding=1), nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
            self.r1, self.dn, self.r2, self.a = Block(16, 16), nn.Conv2d(16, 16, 3, 2, 1), Block(16, 32), Attention(32)
            self.r3, self.up = Block(48, 16), nn.Conv2d(32, 32, 3, padding=1)
            self.n, self.o = nn.GroupNorm(4, 16), nn.Conv2d(16, 3, 3, padding=1)

        def forward(self, x, t):
            angle = t[:, None].float() * torch.exp(-math.log(10000) * torch.arange(8) / 8)
            step = self.t(torch.cat([angle.sin(), angle.cos()], -1))
            wide = self.r1(self.i(x), step)
            y = self.a(self.r2(self.dn(wide), step))
            y = self.up(F.interpolate(y, scale_factor=2.0, mode="nearest"))
            return self.o(F.silu(self.n(self.r3(torch.cat([y, wide], 1), step))))

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm, self.head = nn.Embedding(8192, 256), nn.LSTM(256, 256, 2, batch_first=True), nn.Linear(256, 17)

        def forward(self, words):
            return self.head(self.lstm(self.embedding(words))[0])

    return dict(conv_stack=ConvStack, resnet18=ResNet18, mobilenet_v3_small=MobileNetV3Small, vit_small=VitSmall, gpt2=lambda: Gpt2(8192),
                gpt2_checkpointed=lambda: Gpt2(8192, recomputes=True),
                gpt2_50257=lambda: Gpt2(50257), bert_base=lambda: Bert(8192), diffusion_unet=UNet, lstm_tagger=Tagger)


# --------------------------------------------------------------------------- data


def seed_of(name):
    """FNV-1a, 32 bits."""
    h = 0x811C9DC5
    for byte in name.encode():
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


def fill_(tensor, name, low, high):
    """Writes a 32-bit mix of index and seed, mapped to [low, high), into an f32 tensor, block by block: no peak of memory."""
    import numpy as np
    import torch

    flat, mask = tensor.detach().view(-1), np.uint64(0xFFFFFFFF)
    for at in range(0, flat.numel(), 1 << 18):
        x = np.arange(at, min(at + (1 << 18), flat.numel()), dtype=np.uint64)
        x = (x * np.uint64(0x9E3779B1) + np.uint64(seed_of(name)) * np.uint64(0x85EBCA77)) & mask
        x ^= x >> np.uint64(16)
        x = (x * np.uint64(0x7FEB352D)) & mask
        x ^= x >> np.uint64(15)
        x = (x * np.uint64(0x846CA68B)) & mask
        x ^= x >> np.uint64(16)
        u = (x >> np.uint64(8)).astype(np.float32) * np.float32(1.0 / (1 << 24))
        low32, high32 = np.float32(low), np.float32(high)
        flat[at:at + len(u)] = torch.from_numpy(low32 + (high32 - low32) * u)
    return tensor


def start(model):
    """The first values of the parameters; buffers keep PyTorch's."""
    for name, p in model.named_parameters():
        if p.dim() > 1:
            bound = math.sqrt(3 / (p.numel() // p.shape[0]))
            fill_(p, name, -bound, bound)
        elif name.endswith("weight"):
            fill_(p, name, 0.9, 1.1)
        else:
            fill_(p, name, -0.02, 0.02)


def batch(torch, network):
    """The inputs of the model and the target of the loss."""
    one = 1.732
    image = lambda *shape, name="x": fill_(torch.empty(shape), name, -one, one)
    indices = lambda below, *shape, name="x": (fill_(torch.empty(shape), name, 0, 1).double() * below).floor().long()
    text = lambda words, classes, *shape: ([indices(words, *shape)], indices(classes, *shape, name="y"))
    if network == "conv_stack":
        return [image(8, 64, 56, 56)], image(8, 64, 56, 56, name="y")
    if network == "diffusion_unet":
        return [image(8, 3, 64, 64), torch.arange(8)], image(8, 3, 64, 64, name="y")
    if network == "lstm_tagger":
        return text(8192, 17, 32, 64)
    if network in ("gpt2", "gpt2_checkpointed", "gpt2_50257", "bert_base"):
        words = 50257 if network == "gpt2_50257" else 8192
        return text(words, words, 2, 128)
    images = 4 if network == "vit_small" else 8
    return [image(images, 3, 224, 224)], indices(10, images, name="y")


# --------------------------------------------------------------------------- a peer in a process of its own


def memory_kb(field):
    return int(next(l for l in open("/proc/self/status") if l.startswith(field)).split()[1])


def worker(peer, network, mode, dtype, threads):
    import torch

    F = torch.nn.functional
    torch.set_num_threads(threads)
    torch.nn.Linear(8, 8)(torch.zeros(8, 8)).sum().backward()
    with contextlib.suppress(OSError):
        open("/proc/self/clear_refs", "w").write("5")
    base = memory_kb("VmRSS")
    model = networks(torch)[network]()
    start(model)
    model.train(mode == "train")
    inputs, target = batch(torch, network)
    cast = (lambda: torch.autocast("cpu", torch.bfloat16)) if dtype == "bf16" else contextlib.nullcontext
    compiled = torch.compile if peer == "compiled" else lambda f: f

    def loss():
        with cast():
            out = model(*inputs)
            if target.is_floating_point():
                return F.mse_loss(out, target)
            return F.cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1))

    def forward():
        with cast():
            return model(*inputs)

    loss, forward = compiled(loss), compiled(forward)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True) if mode == "train" else None

    def step():
        """The time, and the loss or what the network gives."""
        begun = time.perf_counter()
        if mode == "train":
            optimizer.zero_grad(set_to_none=True)
            out = loss()
            out.backward()
            optimizer.step()
        else:
            with torch.inference_mode():
                out = forward()
        return time.perf_counter() - begun, out.detach()

    first, out = step()
    checks, magnitude = [], lambda out: out.double().abs().mean().item()
    for n in range(FIRST_STEPS):
        # A copy of what a network gives would count as its memory.
        checks += [magnitude(out)] if mode == "train" else []
        del out
        out = step()[1] if n + 1 < FIRST_STEPS else None
    peak = round((memory_kb("VmHWM") - base) / 1024, 1)
    checks += [magnitude(step()[1])] if mode == "eval" else []
    print(json.dumps(dict(peer=peer, network=network, mode=mode, dtype=dtype, threads=threads, first_ms=round(first * 1e3, 3), peak_mb=peak, checks=checks)),
          flush=True)
    for line in sys.stdin:
        print(json.dumps([round(step()[0] * 1e3, 3) for _ in range(int(line))]), flush=True)


# --------------------------------------------------------------------------- in turn


def export(network, mode, path):
    """The five lines of docs/pytorch.md."""
    import torch

    model = networks(torch)[network]().train(mode == "train")
    torch.export.save(torch.export.export(model, tuple(batch(torch, network)[0])), path)


def has_fair_bf16():
    """Whether PyTorch multiplies pairs of bf16 on this processor, and no tiles."""
    with contextlib.suppress(OSError):
        flags = next((l for l in open("/proc/cpuinfo") if l.startswith("flags")), "").split()
        return "avx512_bf16" in flags and not any(f.startswith("amx") for f in flags)
    return False


def bench_binary():
    built = subprocess.run(["cargo", "bench", "--bench", "models", "--no-run", "--message-format=json"], check=True, stdout=subprocess.PIPE, text=True)
    lines = [json.loads(l) for l in built.stdout.splitlines() if l.startswith("{")]
    return next(l["executable"] for l in lines if l.get("executable") and l["target"]["name"] == "models")


class Peer:
    """A process that takes steps when it is told to."""

    def __init__(self, name, command):
        self.caches = tempfile.TemporaryDirectory(prefix="models-")
        env = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=self.caches.name, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.result, self.rounds = self.answer(), []
        if self.result is None:
            message = (self.process.communicate()[1].strip().splitlines() or ["no output"])[-1]
            print(f"{name} failed: {message}", file=sys.stderr)

    def answer(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line.strip() else None

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self.answer()

    def turn(self, seconds):
        if not self.rounds:
            self.count = max(1, min(50, round(seconds * 1e3 / statistics.median(self.steps(2)))))
        self.rounds.append(statistics.median(self.steps(self.count)))

    def end(self):
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.close()
        self.process.wait()
        self.caches.cleanup()
        if self.result is None:
            return None
        return dict(self.result, median_ms=round(statistics.median(self.rounds), 3), rounds_ms=self.rounds)


def case(a, binary, network, mode, dtype, folder):
    theirs = dtype if dtype == "f32" or has_fair_bf16() else "f32"
    commands = dict(tracecast=[binary, network, "--mode", mode, "--dtype", dtype, "--threads", str(a.threads), "--turns"])
    if ARCHIVE in a.peers:
        path = os.path.join(folder, f"{network}.{mode}.pt2")
        os.path.exists(path) or export(network, mode, path)
        commands[ARCHIVE] = commands["tracecast"] + ["--archive", path]
    commands[STORED] = commands["tracecast"] + ["--store-all"]
    for peer in PEERS[1:]:
        commands[peer] = [sys.executable, os.path.abspath(__file__), "--threads", str(a.threads), "--worker", peer, network, mode, theirs]
    peers = {name: Peer(name, commands[name]) for name in a.peers}
    alive = [peer for peer in peers.values() if peer.result]
    for _ in range(a.rounds):
        for peer in alive:
            peer.turn(a.seconds)
    row = dict(network=network, mode=mode, dtype=dtype, peers_dtype=theirs, threads=a.threads)
    row.update({name: peer.end() for name, peer in peers.items()})
    ours, eager = row.get("tracecast"), row.get("eager")
    best = min((row[p]["median_ms"] for p in PEERS[1:] if row.get(p)), default=None)
    row["ratio"] = round(ours["median_ms"] / best, 3) if ours and best else None
    if ours and eager and theirs == dtype:
        pairs = zip(ours["checks"], eager["checks"])
        row["difference"] = max(abs(x - y) / max(abs(y), 1e-6) for x, y in pairs)
    return row


def table(rows):
    number = lambda peer, key, of=1: f"{peer[key] / of:,.{1 if peer[key] / of < 100 else 0}f}" if peer and peer[key] is not None else "–"
    columns = "network | mode | dtype | Tracecast, ms | eager | compiled | of the better | first call, s | eager | compiled | peak, MB | eager | losses differ by"
    print(f"| {columns} |\n|{'---|' * 13}")
    for r in rows:
        peers = [r.get(p) for p in PEERS]
        cells = [r["network"], r["mode"], r["dtype"]] + [number(p, "median_ms") for p in peers] + [f"{r['ratio']:.2f}" if r["ratio"] else "–"]
        cells += [number(p, "first_ms", 1e3) for p in peers] + [number(p, "peak_mb") for p in peers[:2]]
        cells.append(f"{r['difference']:.0e}" if "difference" in r else "–")
        print(f"| {' | '.join(cells)} |")
    for r in rows:
        for again, what in {ARCHIVE: "the archive", STORED: "every value stored"}.items():
            if r.get(again) and r.get("tracecast"):
                turns = [x / y for x, y in zip(r[again]["rounds_ms"], r["tracecast"]["rounds_ms"])]
                of_all = r[again]["median_ms"] / r["tracecast"]["median_ms"]
                print(f"\n{r['network']} {r['mode']} {r['dtype']}: {what} takes {of_all:.3f} of Tracecast's time, in turns {' '.join(f'{x:.2f}' for x in turns)}")
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        ratios = [r["ratio"] for r in rows if r["dtype"] == dtype and r["ratio"]]
        if ratios:
            print(f"\n{dtype}: geometric mean {statistics.geometric_mean(ratios):.3f} of the faster PyTorch that was measured, {len(ratios)} rows")


def write(path, rows):
    """Replaces machine, date, commit and rows of a result file."""
    file = {}
    with contextlib.suppress(OSError), open(path) as f:
        file = json.load(f)
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as f:
        file["machine"] = next((l.split(":")[1].strip() for l in f if l.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()
    file.update(date=time.strftime("%Y-%m-%d"), commit=commit, rows=rows)
    with open(path, "w") as f:
        json.dump(file, f, indent=1, ensure_ascii=False)
        f.write("\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda known: lambda text: [x for x in text.split(",") if x in known or p.error(f"expected some of {', '.join(known)}, found {x}")]
    p.add_argument("--networks", type=listed(NETWORKS), default=NETWORKS)
    p.add_argument("--modes", type=listed(["eval", "train"]), default=["eval", "train"])
    p.add_argument("--dtypes", type=listed(["f32", "bf16"]), default=["f32", "bf16"])
    p.add_argument("--peers", type=listed(PEERS + [ARCHIVE, STORED]), default=PEERS)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--bench", help="the bench's binary; built with cargo if it is not given")
    p.add_argument("--out", help="a file of benches/results, written after each row: its title, note and columns stay")
    p.add_argument("--table", help="print the table of such a file, and measure nothing")
    p.add_argument("--worker", nargs=4, metavar=("PEER", "NETWORK", "MODE", "DTYPE"))
    a = p.parse_args()
    if a.table:
        return table(json.load(open(a.table))["rows"])
    if a.worker:
        return worker(*a.worker, a.threads)
    binary = a.bench or bench_binary()
    folder, rows = tempfile.TemporaryDirectory(prefix="archives-"), []
    for network in a.networks:
        for mode in a.modes:
            for dtype in a.dtypes:
                rows.append(case(a, binary, network, mode, dtype, folder.name))
                ours, ratio = rows[-1].get("tracecast"), rows[-1]["ratio"]
                print(f"{network} {mode} {dtype}: {ours and ours['median_ms']} ms, {ratio} of the better", file=sys.stderr, flush=True)
                if a.out:
                    write(a.out, rows)
    table(rows)


if __name__ == "__main__":
    main()
