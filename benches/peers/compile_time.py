"""How long PyTorch's compiler and JAX take for the training steps of `benches/depth.rs`: from the model to the end of the first step, nothing
kept from an earlier process.

    python compile_time.py --layers 16 --threads 2
    python compile_time.py --gpt2
    python compile_time.py --peer jax --gpt2

A process measures one model, in a folder for caches of its own. What it prints as `first_call_s` has one step in it, which
`step_s` tells; compiling is the difference.

Output: {"peer","model","threads","first_call_s","step_s","compile_s"}
"""
import argparse, json, math, os, sys, tempfile, time

CHARACTERS = dict(width=64, heads=4, symbols=28, batch=(4, 32))
GPT2 = dict(layers=12, width=768, heads=12, symbols=50257, batch=(1, 256))


def torch_step(c):
    import torch
    import torch.nn.functional as F

    w, h, (b, n) = c["width"], c["heads"], c["batch"]
    torch.manual_seed(0)

    def p(*shape):
        return torch.nn.Parameter(torch.randn(*shape) / math.sqrt(shape[-1]))

    def block():
        return dict(ln1=(p(w), p(w)), qkv=(p(3 * w, w), p(3 * w)), mix=(p(w, w), p(w)), ln2=(p(w), p(w)),
                    up=(p(4 * w, w), p(4 * w)), down=(p(w, 4 * w), p(w)))

    tokens, positions, norm = p(c["symbols"], w), p(n, w), (p(w), p(w))
    blocks = [block() for _ in range(c["layers"])]
    params = [tokens, positions, *norm, *(x for k in blocks for pair in k.values() for x in pair)]
    x = (torch.arange(b * n) * 7 % c["symbols"]).reshape(b, n)
    seen = torch.ones(n, n, dtype=torch.bool).tril()

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            y = F.embedding(x, tokens) + positions
            for k in blocks:
                qkv = F.linear(F.layer_norm(y, (w,), *k["ln1"]), *k["qkv"])
                q, key, v = (t.reshape(b, n, h, w // h).transpose(1, 2) for t in qkv.split(w, -1))
                a = q @ key.transpose(-1, -2) / math.sqrt(w // h)
                a = a.masked_fill(~seen, float("-inf")).softmax(-1) @ v
                y = y + F.linear(a.transpose(1, 2).reshape(b, n, w), *k["mix"])
                up = F.gelu(F.linear(F.layer_norm(y, (w,), *k["ln2"]), *k["up"]), approximate="tanh")
                y = y + F.linear(up, *k["down"])
            logits = F.linear(F.layer_norm(y, (w,), *norm), tokens).reshape(-1, c["symbols"])
            return F.cross_entropy(logits.float(), x.reshape(-1))

    optimizer = torch.optim.AdamW(params, lr=1e-3)
    compiled = torch.compile(loss)
    update = torch.compile(optimizer.step)

    def step():
        optimizer.zero_grad(set_to_none=True)
        compiled().backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        update()

    return step


def jax_step(c):
    import jax
    import jax.numpy as jnp
    import numpy as np

    w, h, (b, n) = c["width"], c["heads"], c["batch"]
    random = np.random.default_rng(0)

    def p(*shape):
        return jnp.asarray(random.standard_normal(shape) / math.sqrt(shape[-1]), jnp.float32)

    def block():
        return dict(ln1=(p(w), p(w)), qkv=(p(3 * w, w), p(3 * w)), mix=(p(w, w), p(w)), ln2=(p(w), p(w)),
                    up=(p(4 * w, w), p(4 * w)), down=(p(w, 4 * w), p(w)))

    params = dict(tokens=p(c["symbols"], w), positions=p(n, w), norm=(p(w), p(w)), blocks=[block() for _ in range(c["layers"])])
    x = (jnp.arange(b * n) * 7 % c["symbols"]).reshape(b, n)
    seen = jnp.tril(jnp.ones((n, n), bool))
    low = jnp.bfloat16

    def linear(y, weight, bias=None):
        y = y.astype(low) @ weight.astype(low).T
        return y if bias is None else y + bias.astype(low)

    def norm(y, scale, shift):
        y = y.astype(jnp.float32)
        d = y - y.mean(-1, keepdims=True)
        return d * jax.lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-5) * scale + shift

    def loss(params):
        y = params["tokens"][x] + params["positions"]
        for k in params["blocks"]:
            qkv = linear(norm(y, *k["ln1"]), *k["qkv"])
            q, key, v = (t.reshape(b, n, h, w // h).swapaxes(1, 2) for t in jnp.split(qkv, 3, -1))
            a = q @ key.swapaxes(-1, -2) / math.sqrt(w // h)
            a = jax.nn.softmax(jnp.where(seen, a, -jnp.inf).astype(jnp.float32), -1).astype(low) @ v
            y = y + linear(a.swapaxes(1, 2).reshape(b, n, w), *k["mix"])
            y = y + linear(jax.nn.gelu(linear(norm(y, *k["ln2"]), *k["up"])), *k["down"])
        logits = linear(norm(y, *params["norm"]), params["tokens"]).reshape(-1, c["symbols"]).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), x.reshape(-1, 1), 1).mean()

    @jax.jit
    def update(params, first, second, t):
        value, grads = jax.value_and_grad(loss)(params)
        length = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (length + 1e-6)), grads)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g * g, second, grads)

        def moved(p, m, v):
            return p * (1 - 1e-5) - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)

        return value, jax.tree.map(moved, params, first, second), first, second

    zeros = jax.tree.map(jnp.zeros_like, params)
    state = [params, zeros, zeros, 1.0]

    def step():
        value, *new = jax.block_until_ready(update(*state))
        state[:] = [*new, state[3] + 1.0]

    return step


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--peer", choices=["torch", "jax"], default="torch")
    a.add_argument("--layers", type=int, default=2)
    a.add_argument("--gpt2", action="store_true")
    a.add_argument("--threads", type=int, default=2)
    args = a.parse_args()
    caches = tempfile.mkdtemp(prefix="compile-time-")
    os.environ.update(TORCHINDUCTOR_CACHE_DIR=caches, TORCHINDUCTOR_FX_GRAPH_CACHE="0", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
                      OMP_NUM_THREADS=str(args.threads), TORCHINDUCTOR_COMPILE_THREADS=str(args.threads))
    try:
        if args.peer == "torch":
            import torch

            torch.set_num_threads(args.threads)
        else:
            import jax
    except ImportError:
        sys.exit(f"{args.peer}: skipped, it is not installed")
    model = GPT2 if args.gpt2 else dict(CHARACTERS, layers=args.layers)
    step = (torch_step if args.peer == "torch" else jax_step)(model)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    first, later = times[0], min(times[1:])
    print(json.dumps(dict(peer=args.peer, model="gpt2" if args.gpt2 else f"{args.layers} layers", threads=args.threads,
                          first_call_s=round(first, 3), step_s=round(later, 4), compile_s=round(first - later, 3))))


if __name__ == "__main__":
    main()
