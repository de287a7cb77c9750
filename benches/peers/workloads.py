"""The peer side of the side-by-side benchmarks: one workload, one peer, one JSON line.

    python workloads.py --peer torch --workload mlp-train --dtype f16
    python workloads.py --list

The data and the initial weights come from `fill`, a closed formula, so that every peer and tracecast compute the
same numbers and `check` (losses, norms or sums) can be compared across them.

Output: {"peer","workload","dtype","threads","first_call_s","median_ms","min_ms","runs","peak_mb","check":[...]}
"""
import argparse, json, math, os, sys, time

import numpy as np


def fill(shape, seed, lo=-1.0, hi=1.0):
    """A deterministic array: a 32-bit mix of (index, seed) mapped to [lo, hi)."""
    n = int(np.prod(shape))
    i = np.arange(n, dtype=np.uint64)
    x = (i * np.uint64(0x9E3779B1) + np.uint64(seed) * np.uint64(0x85EBCA77)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(16)
    x = (x * np.uint64(0x7FEB352D)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(0x846CA68B)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(16)
    u = (x >> np.uint64(8)).astype(np.float32) * np.float32(1.0 / (1 << 24))
    return (np.float32(lo) + np.float32(hi - lo) * u).reshape(shape)


def weight(shape, seed, fan_in):
    k = 1.0 / math.sqrt(fan_in)
    return fill(shape, seed, -k, k)


def labels(n, classes, seed):
    return (np.floor((fill((n,), seed, 0.0, 1.0)).astype(np.float64) * classes)).astype(np.int64)


BUDGET_S = 12.0


def memory_kb(field):
    return int(next(l for l in open("/proc/self/status") if l.startswith(field)).split()[1])


def reset_peak():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    return memory_kb("VmRSS")


BASE_KB = 0


def measure(step, sync, min_runs=7):
    """first call, then the median over runs until the budget is spent (at least min_runs)."""
    budget_s = BUDGET_S
    t0 = time.perf_counter(); out = step(); sync(out); first = time.perf_counter() - t0
    checks = [out]
    for _ in range(2):
        out = step(); sync(out); checks.append(out)
    times, t_end = [], time.perf_counter() + budget_s
    while len(times) < min_runs or (time.perf_counter() < t_end and len(times) < 200):
        t = time.perf_counter(); out = step(); sync(out); times.append(time.perf_counter() - t)
        if len(times) >= 3 and time.perf_counter() > t_end + budget_s:
            break
    times.sort()
    return first, times, checks


# --------------------------------------------------------------------------- models (numpy)

def mlp_params(dims=(784, 1024, 1024, 10)):
    ps = []
    for l in range(3):
        ps.append(weight((dims[l + 1], dims[l]), 10 + 2 * l, dims[l]))
        ps.append(weight((dims[l + 1],), 11 + 2 * l, dims[l]))
    return ps


GPT = dict(vocab=512, d=256, heads=4, layers=4, seq=128, batch=8)


def gpt_params():
    c = GPT; d = c["d"]; ps = {"wte": fill((c["vocab"], d), 100, -0.05, 0.05),
                               "wpe": fill((c["seq"], d), 101, -0.05, 0.05)}
    for l in range(c["layers"]):
        s = 200 + 20 * l
        ps[f"h{l}.ln1.w"] = np.ones(d, np.float32); ps[f"h{l}.ln1.b"] = np.zeros(d, np.float32)
        ps[f"h{l}.qkv.w"] = weight((3 * d, d), s, d); ps[f"h{l}.qkv.b"] = weight((3 * d,), s + 1, d)
        ps[f"h{l}.proj.w"] = weight((d, d), s + 2, d); ps[f"h{l}.proj.b"] = weight((d,), s + 3, d)
        ps[f"h{l}.ln2.w"] = np.ones(d, np.float32); ps[f"h{l}.ln2.b"] = np.zeros(d, np.float32)
        ps[f"h{l}.fc.w"] = weight((4 * d, d), s + 4, d); ps[f"h{l}.fc.b"] = weight((4 * d,), s + 5, d)
        ps[f"h{l}.out.w"] = weight((d, 4 * d), s + 6, 4 * d); ps[f"h{l}.out.b"] = weight((d,), s + 7, 4 * d)
    ps["lnf.w"] = np.ones(d, np.float32); ps["lnf.b"] = np.zeros(d, np.float32)
    return ps


def gpt_tokens():
    c = GPT
    t = labels(c["batch"] * (c["seq"] + 1), c["vocab"], 900).reshape(c["batch"], c["seq"] + 1)
    return t[:, :-1].copy(), t[:, 1:].copy()


CNN = dict(batch=32, hw=32, chans=[3, 32, 64, 128])


def cnn_params():
    ch = CNN["chans"]; ps = []
    for l in range(3):
        ps.append(weight((ch[l + 1], ch[l], 3, 3), 400 + 2 * l, ch[l] * 9))
        ps.append(weight((ch[l + 1],), 401 + 2 * l, ch[l] * 9))
    ps.append(weight((10, ch[3] * 16), 410, ch[3] * 16)); ps.append(weight((10,), 411, ch[3] * 16))
    return ps


UNSCALE = [(256, 1024)] * 64


# --------------------------------------------------------------------------- torch

def run_torch(args, compiled):
    import torch, torch.nn.functional as F
    global BASE_KB
    torch.set_num_threads(args.threads); torch.ones(8) @ torch.ones(8); BASE_KB = reset_peak()
    DT = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    dt = DT[args.dtype]
    T = lambda a: torch.from_numpy(np.ascontiguousarray(a))
    wrap = (lambda f: torch.compile(f, fullgraph=False)) if compiled else (lambda f: f)
    sync = lambda o: None
    w = args.workload

    if w in ("cumsum", "sort", "topk", "index-add", "embedding-bag", "var-rows", "var-columns"):
        with torch.no_grad():
            x = T(fill((4096, 1024), 1)).to(dt)
            if w == "cumsum":
                f = wrap(lambda: torch.cumsum(x, 1))
            elif w == "sort":
                f = wrap(lambda: torch.sort(x, 1)[0])
            elif w == "topk":
                f = wrap(lambda: torch.topk(x, 16, 1)[0])
            elif w.startswith("var-"):
                f = wrap(lambda: torch.var(x, 1 if w == "var-rows" else 0))
            elif w == "index-add":
                x, y = T(fill((4096, 64), 1)).to(dt), T(fill((65536, 64), 2)).to(dt)
                i = torch.from_numpy(labels(65536, 4096, 3))
                f = wrap(lambda: torch.index_add(x, 0, i, y))
            else:
                t, i = T(fill((100000, 64), 1)).to(dt), torch.from_numpy(labels(4096 * 32, 100000, 2)).reshape(4096, 32)
                f = wrap(lambda: F.embedding_bag(i, t, mode="sum"))
            first, times, outs = measure(f, sync)
        return first, times, [float(outs[0].double().abs().sum())]

    if w in IMAGES:
        name, back = w.removesuffix("-backward"), w.endswith("-backward")
        forward = {"batch-norm": lambda x: F.batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
                   "max-pool-3": lambda x: F.max_pool2d(x, 3, 2, 1), "max-pool-2": lambda x: F.max_pool2d(x, 2),
                   "avg-pool-3": lambda x: F.avg_pool2d(x, 3, 2, 1), "avg-pool-2": lambda x: F.avg_pool2d(x, 2),
                   "adaptive-avg": lambda x: F.adaptive_avg_pool2d(x, 7),
                   "bilinear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear")}[name]
        x = T(fill((32 if name == "batch-norm" else 16, 64, 56, 56), 1)).to(dt).requires_grad_(back)
        if back:
            dy = T(fill(tuple(forward(x).shape), 2)).to(dt)
            f = wrap(lambda: torch.autograd.grad(forward(x), x, dy)[0])
        else:
            f = wrap(lambda: forward(x))
        first, times, outs = measure(f, sync)
        return first, times, [float(outs[0].double().abs().sum())]

    if w in ("chain", "softmax", "layernorm", "matmul", "unscale", "adamw"):
        with torch.no_grad():
            if w == "chain":
                x, r, b = (T(fill(s, k)).to(dt) for s, k in (((4096, 1024), 1), ((4096, 1024), 2), ((1024,), 3)))
                f = wrap(lambda: F.gelu(x + b, approximate="tanh") * 0.5 + r)
            elif w == "softmax":
                x = T(fill((4096, 1024), 1, -4, 4)).to(dt); f = wrap(lambda: torch.softmax(x, -1))
            elif w == "layernorm":
                x, g, b = T(fill((4096, 1024), 1)).to(dt), T(fill((1024,), 2)).to(dt), T(fill((1024,), 3)).to(dt)
                f = wrap(lambda: F.layer_norm(x, (1024,), g, b, 1e-5))
            elif w == "matmul":
                x, y = T(fill((1024, 1024), 1)).to(dt), T(fill((1024, 1024), 2)).to(dt)
                f = wrap(lambda: x @ y)
            elif w == "unscale":
                gs = [T(fill(s, 50 + i)) for i, s in enumerate(UNSCALE)]
                found, invs, n = torch.zeros(1), [torch.full((1,), 2.0), torch.full((1,), 0.5)], [0]

                def f():  # 1/scale alternates between 2 and 0.5, so that the gradients stay what they are
                    torch._amp_foreach_non_finite_check_and_unscale_(gs, found, invs[n[0] % 2]); n[0] += 1
                    return found if n[0] > 1 else found + sum(float(g.double().abs().sum()) for g in gs)
            else:
                ps = [torch.nn.Parameter(T(fill((1024, 1024), i))) for i in range(10)]
                for i, p in enumerate(ps): p.grad = T(fill((1024, 1024), 100 + i))
                opt = torch.optim.AdamW(ps, lr=1e-3, weight_decay=0.01, fused=True)

                n = [0]

                def f():
                    opt.step(); n[0] += 1
                    return float(ps[0].detach().double().abs().sum()) if n[0] <= 3 else 0.0
                first, times, outs = measure(f, sync)
                return first, times, outs
            first, times, outs = measure(f, sync)
            return first, times, [float(outs[0].double().abs().sum())]

    if w.startswith("mlp-infer-"):
        ps = [T(p) for p in mlp_params((784, 3072, 768, 10))]
        x = T(fill((int(w.rsplit("-", 1)[1]), 784), 1, 0, 1))

        def infer():
            with torch.autocast("cpu", dtype=dt, enabled=args.dtype != "f32"):
                return F.linear(F.relu(F.linear(F.relu(F.linear(x, ps[0], ps[1])), ps[2], ps[3])), ps[4], ps[5])
        infer = wrap(infer)
        with torch.inference_mode():
            first, times, outs = measure(infer, sync)
        return first, times, [float(outs[0].double().abs().sum())]

    if w == "lstm":  # the order of parameters is that of PyTorch, and the weights that of `fill`
        m = torch.nn.LSTM(128, 128, 2)
        with torch.no_grad():
            for i, p in enumerate(m.parameters()): p.copy_(T(weight(tuple(p.shape), 600 + i, 128)))
        x = T(fill((64, 32, 128), 599)); f = wrap(lambda: m(x)[0].square().mean())

        def lstm_step():
            m.zero_grad(set_to_none=True); loss = f(); loss.backward()
            return loss.detach(), m.weight_hh_l0.grad
        first, times, outs = measure(lstm_step, sync)
        return first, times, [float(outs[0][0]) + float(outs[0][1].double().abs().sum())]

    if w == "mlp-train":
        ps = [torch.nn.Parameter(T(p)) for p in mlp_params()]
        x, y = T(fill((256, 784), 1, 0, 1)), torch.from_numpy(labels(256, 10, 2))
        fwd = lambda x: F.linear(F.relu(F.linear(F.relu(F.linear(x, ps[0], ps[1])), ps[2], ps[3])), ps[4], ps[5])
        opt = torch.optim.SGD(ps, lr=0.1, momentum=0.9)
    elif w == "cnn-train":
        ps = [torch.nn.Parameter(T(p)) for p in cnn_params()]
        x = T(fill((CNN["batch"], 3, CNN["hw"], CNN["hw"]), 1)); y = torch.from_numpy(labels(CNN["batch"], 10, 2))

        def fwd(x):
            for l in range(3):
                x = F.max_pool2d(F.relu(F.conv2d(x, ps[2 * l], ps[2 * l + 1], padding=1)), 2)
            return F.linear(x.flatten(1), ps[6], ps[7])
        opt = torch.optim.SGD(ps, lr=0.05, momentum=0.9)
    elif w == "gpt-train":
        c = GPT; np_ps = gpt_params(); P = {k: torch.nn.Parameter(T(v)) for k, v in np_ps.items()}
        ti, to = gpt_tokens(); x = torch.from_numpy(ti); y = torch.from_numpy(to).reshape(-1)

        def fwd(x):
            B, S = x.shape; d = c["d"]; hd = d // c["heads"]
            h = F.embedding(x, P["wte"]) + P["wpe"]
            for l in range(c["layers"]):
                n = F.layer_norm(h, (d,), P[f"h{l}.ln1.w"], P[f"h{l}.ln1.b"])
                q, k, v = F.linear(n, P[f"h{l}.qkv.w"], P[f"h{l}.qkv.b"]).split(d, -1)
                q, k, v = (t.view(B, S, c["heads"], hd).transpose(1, 2) for t in (q, k, v))
                a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                h = h + F.linear(a.transpose(1, 2).reshape(B, S, d), P[f"h{l}.proj.w"], P[f"h{l}.proj.b"])
                n = F.layer_norm(h, (d,), P[f"h{l}.ln2.w"], P[f"h{l}.ln2.b"])
                h = h + F.linear(F.gelu(F.linear(n, P[f"h{l}.fc.w"], P[f"h{l}.fc.b"]), approximate="tanh"),
                                 P[f"h{l}.out.w"], P[f"h{l}.out.b"])
            return F.linear(F.layer_norm(h, (d,), P["lnf.w"], P["lnf.b"]), P["wte"]).reshape(-1, c["vocab"])
        opt = torch.optim.AdamW(list(P.values()), lr=1e-3, weight_decay=0.01, fused=True)
    else:
        sys.exit(f"unknown workload {w}")

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12, enabled=args.dtype == "f16")

    def loss_fn(x, y):
        with torch.autocast("cpu", dtype=dt, enabled=args.dtype != "f32"):
            return F.cross_entropy(fwd(x), y)
    loss_fn = wrap(loss_fn)

    def step():
        opt.zero_grad(set_to_none=True)
        loss = loss_fn(x, y)
        scaler.scale(loss).backward()
        scaler.step(opt); scaler.update()
        return float(loss.detach())
    return (lambda r: (r[0], r[1], r[2]))(measure(step, sync))


# --------------------------------------------------------------------------- jax

def run_jax(args):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
    import jax, jax.numpy as jnp
    global BASE_KB
    jnp.ones(8).block_until_ready(); BASE_KB = reset_peak()
    DT = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}
    dt = DT[args.dtype]; w = args.workload
    if w.startswith("mlp-infer-") or w == "lstm":
        sys.exit(f"{w}: not in the jax peer")
    if w in ("cumsum", "sort", "topk", "index-add", "embedding-bag", "var-rows", "var-columns") or w in IMAGES:
        sys.exit(f"{w}: not in the jax peer")
    J = jnp.asarray
    sync = lambda o: jax.block_until_ready(o)
    if w in ("chain", "softmax", "layernorm", "matmul", "unscale", "adamw"):
        if w == "chain":
            a = tuple(J(fill(s, k)).astype(dt) for s, k in (((4096, 1024), 1), ((4096, 1024), 2), ((1024,), 3)))
            g = jax.jit(lambda x, r, b: jax.nn.gelu(x + b, approximate=True) * jnp.asarray(0.5, dt) + r)
        elif w == "softmax":
            a = (J(fill((4096, 1024), 1, -4, 4)).astype(dt),); g = jax.jit(lambda x: jax.nn.softmax(x, -1))
        elif w == "layernorm":
            a = tuple(J(fill(s, k)).astype(dt) for s, k in (((4096, 1024), 1), ((1024,), 2), ((1024,), 3)))

            def ln(x, gm, b):
                xf = x.astype(jnp.float32); m = xf.mean(-1, keepdims=True); v = ((xf - m) ** 2).mean(-1, keepdims=True)
                return ((xf - m) * jax.lax.rsqrt(v + 1e-5) * gm + b).astype(dt)
            g = jax.jit(ln)
        elif w == "matmul":
            a = tuple(J(fill((1024, 1024), k)).astype(dt) for k in (1, 2)); g = jax.jit(lambda x, y: x @ y)
        elif w == "unscale":
            box, invs, n = [[J(fill(s, 50 + i)) for i, s in enumerate(UNSCALE)]], [jnp.float32(2.0), jnp.float32(0.5)], [0]

            def un(gs, inv):
                bad = jnp.zeros((), bool); out = []
                for t in gs:
                    bad = bad | ~jnp.all(jnp.isfinite(t)); out.append(t * inv)
                return out, bad.astype(jnp.float32).reshape(1)
            ju = jax.jit(un, donate_argnums=0)

            def step():
                box[0], found = ju(box[0], invs[n[0] % 2]); n[0] += 1
                return found if n[0] > 1 else found + sum(float(np.abs(np.asarray(t, np.float64)).sum()) for t in box[0])
            first, times, outs = measure(step, sync)
            return first, times, [float(outs[0][0])]
        else:
            sys.exit("adamw: not in the jax peer")
        first, times, outs = measure(lambda: g(*a), sync)
        return first, times, [float(np.abs(np.asarray(outs[0].astype(jnp.float32), np.float64)).sum())]

    lowp = lambda t: t.astype(dt)
    lin = lambda x, W, b: lowp(x) @ lowp(W).T + lowp(b)

    def xent(z, y):
        z = z.astype(jnp.float32); z = z - jax.scipy.special.logsumexp(z, -1, keepdims=True)
        return -jnp.take_along_axis(z, y[:, None], 1).mean()

    if w == "mlp-train":
        ps = [J(p) for p in mlp_params()]; x = J(fill((256, 784), 1, 0, 1)); y = J(labels(256, 10, 2)); lr, mom = 0.1, 0.9
        fwd = lambda ps, x: lin(jax.nn.relu(lin(jax.nn.relu(lin(x, ps[0], ps[1])), ps[2], ps[3])), ps[4], ps[5])
        adam = False
    elif w == "gpt-train":
        c = GPT; ps = {k: J(v) for k, v in gpt_params().items()}; ti, to = gpt_tokens(); x = J(ti); y = J(to.reshape(-1)); adam = True

        def lnorm(x, gm, b):
            xf = x.astype(jnp.float32); m = xf.mean(-1, keepdims=True); v = ((xf - m) ** 2).mean(-1, keepdims=True)
            return (xf - m) * jax.lax.rsqrt(v + 1e-5) * gm + b

        def fwd(P, x):
            B, S = x.shape; d = c["d"]; hd = d // c["heads"]; h = P["wte"][x] + P["wpe"]
            mask = jnp.tril(jnp.ones((S, S), bool))
            for l in range(c["layers"]):
                n = lnorm(h, P[f"h{l}.ln1.w"], P[f"h{l}.ln1.b"])
                qkv = lin(n, P[f"h{l}.qkv.w"], P[f"h{l}.qkv.b"]); q, k, v = jnp.split(qkv, 3, -1)
                q, k, v = (t.reshape(B, S, c["heads"], hd).transpose(0, 2, 1, 3) for t in (q, k, v))
                s = (q @ k.transpose(0, 1, 3, 2)).astype(jnp.float32) / math.sqrt(hd)
                s = jax.nn.softmax(jnp.where(mask, s, -jnp.inf), -1).astype(dt)
                h = h + lin((s @ v).transpose(0, 2, 1, 3).reshape(B, S, d), P[f"h{l}.proj.w"], P[f"h{l}.proj.b"])
                n = lnorm(h, P[f"h{l}.ln2.w"], P[f"h{l}.ln2.b"])
                h = h + lin(jax.nn.gelu(lin(n, P[f"h{l}.fc.w"], P[f"h{l}.fc.b"]), approximate=True), P[f"h{l}.out.w"], P[f"h{l}.out.b"])
            return (lowp(lnorm(h, P["lnf.w"], P["lnf.b"])) @ lowp(P["wte"]).T).reshape(-1, c["vocab"])
    elif w == "cnn-train":
        ps = [J(p) for p in cnn_params()]; x = J(fill((CNN["batch"], 3, CNN["hw"], CNN["hw"]), 1)); y = J(labels(CNN["batch"], 10, 2)); lr, mom = 0.05, 0.9; adam = False

        def fwd(ps, x):
            for l in range(3):
                x = jax.lax.conv_general_dilated(lowp(x), lowp(ps[2 * l]), (1, 1), "SAME") + lowp(ps[2 * l + 1])[None, :, None, None]
                x = jax.lax.reduce_window(jax.nn.relu(x), np.asarray(-np.inf, x.dtype), jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
            return lin(x.reshape(x.shape[0], -1), ps[6], ps[7])
    else:
        sys.exit(f"unknown workload {w}")
    f16 = args.dtype == "f16"
    tm = jax.tree_util.tree_map

    def train(state, x, y):
        ps, m, v, scale, tracker, t = state
        loss, g = jax.value_and_grad(lambda p: xent(fwd(p, x), y) * scale)(ps)
        loss = loss / scale
        g = tm(lambda a: a / scale, g)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in jax.tree_util.tree_leaves(g)])) if f16 else jnp.asarray(True)
        if adam:
            t1 = t + 1; b1, b2 = 0.9, 0.999
            m1 = tm(lambda a, b: b1 * a + (1 - b1) * b, m, g); v1 = tm(lambda a, b: b2 * a + (1 - b2) * b * b, v, g)
            p1 = tm(lambda p, a, b: p * (1 - 1e-3 * 0.01) - 1e-3 * (a / (1 - b1 ** t1)) / (jnp.sqrt(b / (1 - b2 ** t1)) + 1e-8), ps, m1, v1)
        else:
            t1, v1 = t + 1, v; m1 = tm(lambda a, b: mom * a + b, m, g); p1 = tm(lambda p, a: p - lr * a, ps, m1)
        sel = lambda a, b: tm(lambda u, w_: jnp.where(finite, u, w_), a, b)
        tr = jnp.where(finite, tracker + 1, 0)
        sc = jnp.where(finite, jnp.where(tr == 2000, scale * 2, scale), scale * 0.5) if f16 else scale
        return (sel(p1, ps), sel(m1, m), sel(v1, v), sc, tr, jnp.where(finite, t1, t)), loss
    jt = jax.jit(train, donate_argnums=0)
    z = tm(jnp.zeros_like, ps)
    box = [(ps, z, tm(jnp.zeros_like, ps) if adam else 0.0, jnp.float32(2.0 ** 12 if f16 else 1.0), jnp.int32(0), jnp.float32(0))]

    def step():
        box[0], loss = jt(box[0], x, y); return float(loss)
    return measure(step, lambda o: None)


IMAGES = [name + way for name in ["batch-norm", "max-pool-3", "max-pool-2", "avg-pool-3", "avg-pool-2", "adaptive-avg", "bilinear"] for way in ["", "-backward"]]
WORKLOADS = ["chain", "softmax", "layernorm", "matmul", "unscale", "adamw", "mlp-train", "mlp-infer-1", "mlp-infer-8", "mlp-infer-32",
             "lstm", "cnn-train", "gpt-train", "cumsum", "sort", "topk", "index-add", "embedding-bag", "var-rows", "var-columns"] + IMAGES

if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--peer", choices=["torch", "torch-compile", "jax"], default="torch")
    ap.add_argument("--workload", choices=WORKLOADS)
    ap.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32")
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--budget", type=float, default=12.0, help="seconds of timed runs")
    ap.add_argument("--list", action="store_true")
    args = ap.parse_args()
    if args.list:
        print("\n".join(WORKLOADS)); sys.exit(0)
    BUDGET_S = args.budget
    if args.peer == "jax":
        first, times, checks = run_jax(args)
    else:
        first, times, checks = run_torch(args, args.peer == "torch-compile")
    print(json.dumps(dict(peer=args.peer, workload=args.workload, dtype=args.dtype, threads=args.threads,
                          first_call_s=round(first, 4), median_ms=round(times[len(times) // 2] * 1e3, 4),
                          min_ms=round(times[0] * 1e3, 4), runs=len(times),
                          peak_mb=round((memory_kb("VmHWM") - BASE_KB) / 1024, 1), check=[round(float(c), 6) for c in checks])))
