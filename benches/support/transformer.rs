//! Training steps of transformers as GPT-2 has them: blocks of causal attention and of two layers
//! with GELU, each behind a norm and beside a path around it.

use tracecast::Start;
use tracecast::nn::{Context, Embedding, LayerNorm, Linear};
use tracecast::prelude::*;

/// What a transformer consists of, and what it is trained on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    pub(crate) layers: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    /// Characters or tokens that there are.
    pub(crate) symbols: usize,
    /// Sequences in a batch, and how long they are.
    pub(crate) batch: [usize; 2],
}

impl Shapes {
    /// A model of characters with a number of layers: names of people, say.
    pub(crate) fn characters(layers: usize) -> Self {
        Shapes { layers, width: 64, heads: 4, symbols: 28, batch: [4, 32] }
    }

    /// The smallest GPT-2 on one sequence of 256 tokens.
    pub(crate) fn gpt2() -> Self {
        Shapes { layers: 12, width: 768, heads: 12, symbols: 50_257, batch: [1, 256] }
    }

    /// One step of its training under autocast to bf16, with AdamW and clipped gradients.
    pub(crate) fn step(self, options: Options) -> TrainStep {
        let step = TrainStep::new(Transformer(self), |t, model| {
            let logits = model.forward(t.input("x"));
            logits.cross_entropy(t.input("y").reshape([-1]))
        });
        let step = step.optimizer(AdamW::new(1e-3)).clip(Clip::norm(1.0));
        step.autocast("cpu", DType::BF16).options(options).build().expect("there is an optimizer")
    }

    /// Tokens to read, or to foretell.
    pub(crate) fn tokens(self) -> Tensor {
        let count = self.batch[0] * self.batch[1];
        let tokens: Vec<i64> = (0..count).map(|i| (i * 7 % self.symbols) as i64).collect();
        Tensor::new(self.batch, &tokens).expect("as many tokens")
    }
}

/// Logits of every position, from tokens.
pub(crate) struct Transformer(pub(crate) Shapes);

impl Transformer {
    fn parts(&self) -> Vec<(String, Box<dyn Module>)> {
        let Shapes { layers, width, symbols, .. } = self.0;
        let mut parts: Vec<(String, Box<dyn Module>)> = vec![
            ("tokens".to_owned(), Box::new(Embedding::new(symbols, width))),
            ("positions".to_owned(), Box::new(Positions(self.0))),
        ];
        for layer in 0..layers {
            parts.push((format!("block{layer}"), Box::new(Block::of(self.0))));
        }
        let head = Linear::new(width, symbols).without_bias().tied_to("tokens.weight");
        parts.push(("norm".to_owned(), Box::new(LayerNorm::new(width))));
        parts.push(("head".to_owned(), Box::new(head)));
        parts
    }
}

impl Module for Transformer {
    fn forward<'t>(&self, cx: &Context<'t>, tokens: Var<'t>) -> Var<'t> {
        let parts = self.parts();
        let x = parts.iter().fold(tokens, |x, (name, part)| cx.call(name, part.as_ref(), x));
        x.reshape([-1, self.0.symbols as i64])
    }
}

/// A vector for each position, added to what stands there.
struct Positions(Shapes);

impl Module for Positions {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let ty = TensorType::new(DType::F32, [self.0.batch[1], self.0.width]);
        x + cx.parameter("weight", ty, Start::Normal(0.0, 1.0))
    }
}

/// Attention, and two layers.
struct Block {
    shapes: Shapes,
    norms: [LayerNorm; 2],
    qkv: Linear,
    mix: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn of(shapes: Shapes) -> Self {
        let width = shapes.width;
        Block {
            shapes,
            norms: [0; 2].map(|_| LayerNorm::new(width)),
            qkv: Linear::new(width, 3 * width),
            mix: Linear::new(width, width),
            up: Linear::new(width, 4 * width),
            down: Linear::new(4 * width, width),
        }
    }

    fn attention<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let Shapes { width, heads, batch: [batch, length], .. } = self.shapes;
        let qkv = cx.call("qkv", &self.qkv, x);
        let [q, k, v] = [0, 1, 2].map(|i| {
            let part = qkv.slice(-1, (i * width) as i64, ((i + 1) * width) as i64, 1);
            part.reshape([batch, length, heads, width / heads]).permute([0, 2, 1, 3])
        });
        let none = None::<Var<'t>>;
        let mixed = q.scaled_dot_product_attention(k, v, none, none, 0.0, true, None, false, 0);
        let mixed = mixed.permute([0, 2, 1, 3]).reshape([batch, length, width]);
        cx.call("mix", &self.mix, mixed)
    }
}

impl Module for Block {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let x = x + self.attention(cx, cx.call("norm0", &self.norms[0], x));
        let up = cx.call("up", &self.up, cx.call("norm1", &self.norms[1], x));
        x + cx.call("down", &self.down, up.gelu(Some("tanh")))
    }
}
