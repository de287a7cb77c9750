//! Transformers: ViT (Dosovitskiy et al., 2020), GPT-2 (Radford et al., 2019) and BERT (Devlin et
//! al., 2018), without dropout, with the names of parameters that torchvision and transformers give
//! them.

use tracecast::Start;
use tracecast::nn::{
    Attend, Checkpoint, Context, Conv2d, Embedding, LayerNorm, Linear, MultiheadAttention,
};
use tracecast::prelude::*;

/// A vision transformer of 12 layers of 384 in six heads on patches of 16 × 16, for ten classes:
/// images `[N, 3, 224, 224]` to logits `[N, 10]`.
pub(crate) struct VitSmall;

impl Module for VitSmall {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let patches = Conv2d::new(3, 384, [16, 16]).stride([16, 16]);
        let x = cx.call("conv_proj", &patches, x).flatten(2, -1).transpose(1, 2);
        let start = Start::Normal(0.0, 0.02);
        let class = cx.parameter("class_token", f32s([1, 1, 384]), start.clone());
        let positions = cx.parameter("encoder.pos_embedding", f32s([1, 197, 384]), start);
        let class = class.expand_to(&Shape::new(&[x.size(0), 1.into(), 384.into()]));
        let x = cat(&[class, x], 1) + positions;
        let layer = |x, at| cx.call(&format!("encoder.layers.encoder_layer_{at}"), &VitLayer, x);
        let x = (0..12).fold(x, layer);
        let x = cx.call("encoder.ln", &LayerNorm::new(384).eps(1e-6), x);
        cx.call("heads.head", &Linear::new(384, 10), x.select(1, 0))
    }
}

struct VitLayer;

impl Module for VitLayer {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let attention = MultiheadAttention::new(384, 6).batch_first().without_weights();
        let y = cx.call("ln_1", &LayerNorm::new(384).eps(1e-6), x);
        let (y, _) = cx.apply("self_attention", &attention, Attend::from(y));
        let x = x + y;
        let y = cx.call("ln_2", &LayerNorm::new(384).eps(1e-6), x);
        let y = cx.call("mlp.0", &Linear::new(384, 1536), y).gelu(None);
        x + cx.call("mlp.3", &Linear::new(1536, 384), y)
    }
}

/// The smallest GPT-2: tokens `[N, L]` to logits `[N, L, vocabulary]`.
pub(crate) struct Gpt2 {
    pub(crate) vocabulary: usize,
    /// Backward recomputes what each layer makes.
    pub(crate) recomputes: bool,
}

/// Width and heads of GPT-2 and of BERT-base.
const WIDTH: usize = 768;
const HEADS: usize = 12;

impl Module for Gpt2 {
    fn forward<'t>(&self, cx: &Context<'t>, tokens: Var<'t>) -> Var<'t> {
        let words = Embedding::new(self.vocabulary, WIDTH);
        let x = cx.call("transformer.wte", &words, tokens);
        let x = x + cx.call("transformer.wpe", &Embedding::new(1024, WIDTH), positions(cx, tokens));
        let layer = |x, at| match (format!("transformer.h.{at}"), self.recomputes) {
            (name, true) => cx.call(&name, &Checkpoint(GptLayer), x),
            (name, false) => cx.call(&name, &GptLayer, x),
        };
        let x = (0..12).fold(x, layer);
        let x = cx.call("transformer.ln_f", &LayerNorm::new(WIDTH), x);
        let head = Linear::new(WIDTH, self.vocabulary).without_bias();
        cx.call("lm_head", &head.tied_to("transformer.wte.weight"), x)
    }
}

struct GptLayer;

impl Module for GptLayer {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let y = cx.call("ln_1", &LayerNorm::new(WIDTH), x);
        let qkv = cx.call("attn.c_attn", &Conv1D(WIDTH, 3 * WIDTH), y);
        let part = |at: i64| qkv.narrow(-1, at * WIDTH as i64, WIDTH as i64);
        let y = attention([0, 1, 2].map(part), true);
        let x = x + cx.call("attn.c_proj", &Conv1D(WIDTH, WIDTH), y);
        let y = cx.call("ln_2", &LayerNorm::new(WIDTH), x);
        let y = cx.call("mlp.c_fc", &Conv1D(WIDTH, 4 * WIDTH), y).gelu(Some("tanh"));
        x + cx.call("mlp.c_proj", &Conv1D(4 * WIDTH, WIDTH), y)
    }
}

/// A linear layer whose weight is `[inputs, outputs]`.
struct Conv1D(usize, usize);

impl Module for Conv1D {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let weight = cx.parameter("weight", f32s([self.0, self.1]), Start::Normal(0.0, 0.02));
        let bias = cx.parameter("bias", f32s([self.1]), Start::Constant(0.0));
        cx.here(|| x.matmul(weight) + bias)
    }
}

/// BERT-base with the head that fills in masked words: tokens `[N, L]` to logits
/// `[N, L, vocabulary]`.
pub(crate) struct Bert {
    pub(crate) vocabulary: usize,
}

/// The norms of BERT.
fn bert_norm() -> LayerNorm {
    LayerNorm::new(WIDTH).eps(1e-12)
}

impl Module for Bert {
    fn forward<'t>(&self, cx: &Context<'t>, tokens: Var<'t>) -> Var<'t> {
        let part = |name: &str| format!("bert.embeddings.{name}");
        let words = Embedding::new(self.vocabulary, WIDTH).padding(0);
        let x = cx.call(&part("word_embeddings"), &words, tokens);
        let kinds = Embedding::new(2, WIDTH);
        let kind = cx.call(&part("token_type_embeddings"), &kinds, cx.trace().zeros_like(tokens));
        let places = Embedding::new(512, WIDTH);
        let place = cx.call(&part("position_embeddings"), &places, positions(cx, tokens));
        let x = cx.call(&part("LayerNorm"), &bert_norm(), x + kind + place);
        let x =
            (0..12).fold(x, |x, at| cx.call(&format!("bert.encoder.layer.{at}"), &BertLayer, x));
        let y = cx.call("cls.predictions.transform.dense", &Linear::new(WIDTH, WIDTH), x);
        let y = cx.call("cls.predictions.transform.LayerNorm", &bert_norm(), y.gelu(None));
        let head = Linear::new(WIDTH, self.vocabulary).without_bias();
        let head = head.tied_to("bert.embeddings.word_embeddings.weight");
        let bias = f32s([self.vocabulary]);
        let bias = cx.parameter("cls.predictions.bias", bias, Start::Constant(0.0));
        cx.call("cls.predictions.decoder", &head, y) + bias
    }
}

struct BertLayer;

impl Module for BertLayer {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let square = Linear::new(WIDTH, WIDTH);
        let qkv = ["query", "key", "value"];
        let qkv = qkv.map(|name| cx.call(&format!("attention.self.{name}"), &square, x));
        let y = cx.call("attention.output.dense", &square, attention(qkv, false));
        let x = cx.call("attention.output.LayerNorm", &bert_norm(), x + y);
        let y = cx.call("intermediate.dense", &Linear::new(WIDTH, 4 * WIDTH), x).gelu(None);
        let y = cx.call("output.dense", &Linear::new(4 * WIDTH, WIDTH), y);
        cx.call("output.LayerNorm", &bert_norm(), x + y)
    }
}

/// Attention in heads from `[N, L, WIDTH]` each to the same.
fn attention<'t>(qkv: [Var<'t>; 3], causal: bool) -> Var<'t> {
    let heads = (WIDTH / HEADS) as i64;
    let [q, k, v] = qkv.map(|x| x.unflatten(-1, &[HEADS as i64, heads]).transpose(1, 2));
    let none = None::<Var<'t>>;
    let mixed = q.scaled_dot_product_attention(k, v, none, none, 0.0, causal, None, false, 0);
    mixed.transpose(1, 2).flatten(2, -1)
}

/// 0, 1 and so on, one for each place of the tokens `[N, L]`.
fn positions<'t>(cx: &Context<'t>, tokens: Var<'t>) -> Var<'t> {
    let length = tokens.size(1).number().unwrap_or(0);
    cx.trace().arange(0.0, length as f64, 1.0, DType::I64)
}

fn f32s<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}
