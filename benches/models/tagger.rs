//! A tagger of words: two recurrent layers and a class for each word.

use tracecast::nn::{Context, Embedding, Linear, Lstm};
use tracecast::prelude::*;

/// Words `[N, L]` to logits `[N, L, TAGS]`, by two LSTM layers of 256.
pub(crate) struct Tagger;

impl Tagger {
    pub(crate) const WORDS: usize = 8192;
    pub(crate) const TAGS: usize = 17;
}

impl Module for Tagger {
    fn forward<'t>(&self, cx: &Context<'t>, words: Var<'t>) -> Var<'t> {
        let x = cx.call("embedding", &Embedding::new(Self::WORDS, 256), words);
        let (x, _) = cx.apply("lstm", &Lstm::new(256, 256).layers(2).batch_first(), x);
        cx.call("head", &Linear::new(256, Self::TAGS), x)
    }
}
