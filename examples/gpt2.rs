//! GPT-2 with the names of Hugging Face: loads a file or a folder of the hub, strictly, and goes on
//! with a text given as tokens.
//!
//! `cargo run --release --example gpt2 -- FOLDER 15496 11 995` loads `FOLDER/model.safetensors` of
//! the 124M model. Without arguments it makes up a small model of the same names, saves it as
//! Hugging Face would, loads it, and generates.

use std::path::Path;
use tracecast::checkpoint::{Load, Loaded, Save, load_model, save_model_as};
use tracecast::generate::{Generator, Sampling};
use tracecast::nn::{Context, Embedding, KvCache, LayerNorm, Linear, Module};
use tracecast::prelude::*;

/// The sizes of a model.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) width: usize,
    pub(crate) tokens: usize,
    pub(crate) positions: usize,
}

/// GPT-2 of 124 million numbers.
pub(crate) const SMALL: Sizes =
    Sizes { layers: 12, heads: 12, width: 768, tokens: 50257, positions: 1024 };
/// One that is made up.
pub(crate) const TINY: Sizes = Sizes { layers: 2, heads: 2, width: 16, tokens: 64, positions: 32 };

/// Scores of the next token at each position; of new tokens alone, where others came before them.
pub(crate) struct Gpt2(pub(crate) Sizes, pub(crate) Option<Size>);

impl Module for Gpt2 {
    fn forward<'t>(&self, cx: &Context<'t>, tokens: Var<'t>) -> Var<'t> {
        let head = Linear::new(self.0.width, self.0.tokens).without_bias();
        let y = cx.call("transformer", &Transformer(self.0, self.1), tokens);
        cx.call("lm_head", &head.tied_to("transformer.wte.weight"), y)
    }
}

struct Transformer(Sizes, Option<Size>);

impl Module for Transformer {
    fn forward<'t>(&self, cx: &Context<'t>, tokens: Var<'t>) -> Var<'t> {
        let Sizes { layers, width, tokens: count, positions, .. } = self.0;
        let t = cx.trace().tracer();
        let before = self.1.unwrap_or(Size::from(0));
        let places = t.iota(DType::I64, [tokens.size(1)], 0).add(before);
        let x = cx.call("wte", &Embedding::new(count, width), tokens)
            + cx.call("wpe", &Embedding::new(positions, width), places);
        let block = |x, i: usize| cx.call(&format!("h.{i}"), &Block(self.0, self.1), x);
        cx.call("ln_f", &LayerNorm::new(width), (0..layers).fold(x, block))
    }
}

struct Block(Sizes, Option<Size>);

impl Module for Block {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let norm = LayerNorm::new(self.0.width);
        let y = cx.call("attn", &Attention(self.0, self.1), cx.call("ln_1", &norm, x));
        let x = x + y;
        x + cx.call("mlp", &Mlp(self.0.width), cx.call("ln_2", &norm, x))
    }
}

struct Attention(Sizes, Option<Size>);

impl Module for Attention {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let Sizes { heads, width, positions, .. } = self.0;
        let parts = cx.call("c_attn", &Linear::new(width, 3 * width), x).chunk(3, -1);
        let heads_of = |i: usize| {
            let part = parts[i].reshape(sizes![x.size(0), x.size(1), heads, width / heads]);
            part.permute([0, 2, 1, 3])
        };
        let (q, k, v) = (heads_of(0), heads_of(1), heads_of(2));
        let cache = KvCache::new(1, heads, positions, width / heads);
        let [k, v] = self.1.map_or([k, v], |filled| cache.extend(cx, [k, v], filled));
        let (none, causal) = (None::<Var<'t>>, self.1.is_none());
        let y = q.scaled_dot_product_attention(k, v, none, none, 0.0, causal, None, false, 0);
        cx.call("c_proj", &Linear::new(width, width), y.permute([0, 2, 1, 3]).flatten(2, 3))
    }
}

struct Mlp(usize);

impl Module for Mlp {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let y = cx.call("c_fc", &Linear::new(self.0, 4 * self.0), x);
        cx.call("c_proj", &Linear::new(4 * self.0, self.0), y.gelu(Some("tanh")))
    }
}

/// How files of Hugging Face differ: its `Conv1D` has matrices input by output, and files of the
/// hub leave the outer module out and keep masks as buffers.
pub(crate) fn hugging_face(file_of_the_hub: bool) -> Load {
    let load = Load::strict().transpose(&["transformer.h.*.*.c_*.weight"]);
    match file_of_the_hub {
        true => {
            load.ignore(&["h.*.attn.bias", "h.*.attn.masked_bias"]).rename("**", "transformer.**")
        }
        false => load.ignore(&["transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"]),
    }
}

/// Loads a model under the names of Hugging Face.
pub(crate) fn load(sizes: Sizes, store: &mut Store, path: &Path) -> tracecast::Result<Loaded> {
    let model = Gpt2(sizes, None);
    // What `save_pretrained` has written holds the outer module's name, as the model here does.
    load_model(&model, store, path, &hugging_face(false))
        .or_else(|_| load_model(&model, store, path, &hugging_face(true)))
}

/// Goes on with tokens, the likeliest first.
pub(crate) fn generate(
    sizes: Sizes,
    store: &mut Store,
    prompt: &[i64],
    count: usize,
) -> tracecast::Result<Vec<i64>> {
    let generator = Generator::new(&Options::new(), sizes.positions, move |t, token, filled| {
        Gpt2(sizes, Some(filled)).forward(&Context::evaluation(t), token)
    })?;
    generator.run(store, prompt, count, &Sampling::greedy())
}

fn main() -> tracecast::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut store = Store::new();
    let (sizes, prompt) = match arguments.split_first() {
        Some((path, tokens)) => {
            load(SMALL, &mut store, Path::new(path))?;
            let tokens = tokens.iter().map(|token| token.parse::<i64>());
            (SMALL, tokens.collect::<Result<_, _>>().expect("tokens are whole numbers"))
        }
        None => {
            let path =
                std::env::temp_dir().join(format!("gpt2-{}.safetensors", std::process::id()));
            let mut first = Store::new();
            Gpt2(TINY, None).init(&mut first, 0)?;
            let save = Save::new().like(&hugging_face(false)).with_tied_names();
            save_model_as(&Gpt2(TINY, None), &first, &path, &save)?;
            load(TINY, &mut store, &path)?;
            drop(std::fs::remove_file(&path));
            (TINY, vec![3, 1, 4])
        }
    };
    let said = generate(sizes, &mut store, &prompt, 16)?;
    let said: Vec<String> = said.iter().map(ToString::to_string).collect();
    use std::io::Write;
    writeln!(std::io::stdout(), "{}", said.join(" ")).expect("standard output is open");
    Ok(())
}
