//! [`Generator`]: a model that says one token after another, compiled once.

use crate::compile::{SizedProgram, compile_sized};
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::setters::setters;
use crate::trace::{Trace, Types};
use std::cmp::Ordering;
use tracecast_ir::kernel::philox;
use tracecast_ir::{DType, Size, TensorType, Var};
use tracecast_runtime::{Store, Tensor};

/// How the next token is chosen from the scores of all: the likeliest, or at random with PyTorch's
/// usual settings.
///
/// Seeds and the number of the token decide what is random, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    seed: u64,
}

impl Sampling {
    /// The likeliest, the first of equal ones.
    pub fn greedy() -> Self {
        Sampling { temperature: 0.0, top_k: usize::MAX, top_p: 1.0, seed: 0 }
    }

    /// At random: scores are divided by the temperature; at 0 it is [`greedy`](Sampling::greedy).
    pub fn at(temperature: f64, seed: u64) -> Self {
        Sampling { temperature, seed, ..Sampling::greedy() }
    }

    setters! {
        /// Draws among the `k` likeliest tokens.
        top_k(k: usize) => top_k = k;
        /// Among the fewest of the likeliest whose probabilities sum up to `p`.
        top_p(p: f64) => top_p = p;
    }

    /// The token that these scores give as number `number`; scores that are no number are never
    /// chosen, and the first token is where none is one.
    ///
    /// ```
    /// use tracecast::generate::Sampling;
    /// assert_eq!(Sampling::greedy().pick(&[0.5, 2.0, 2.0], 0), 1);
    /// assert_eq!(Sampling::at(1.0, 7).top_k(1).pick(&[0.5, 2.0, 1.0], 0), 1);
    /// ```
    pub fn pick(&self, scores: &[f32], number: u64) -> usize {
        let mut order: Vec<usize> = (0..scores.len()).filter(|i| !scores[*i].is_nan()).collect();
        // Zeros of both signs are equal.
        order.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).unwrap_or(Ordering::Equal));
        let Some(first) = order.first().copied() else { return 0 };
        if self.temperature <= 0.0 {
            return first;
        }
        order.truncate(self.top_k.max(1));
        let peak = f64::from(scores[first]);
        let weight = |i: &usize| ((f64::from(scores[*i]) - peak) / self.temperature).exp();
        let weights: Vec<f64> = order.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let (mut among, mut sum) = (0, 0.0);
        while among < order.len() && (among == 0 || sum < self.top_p * total) {
            sum += weights[among];
            among += 1;
        }
        let word = philox::random_bits(self.seed as i64, number as i64, 0, 0);
        let mut left = f64::from(philox::uniform_f32(word)) * sum;
        for (token, weight) in order.iter().zip(&weights).take(among) {
            left -= weight;
            if left < 0.0 {
                return *token;
            }
        }
        order[among - 1]
    }
}

/// A model that is given one token at a time and says the scores of the next one, with what it has
/// seen in caches: traced once and compiled once, for any number of tokens that fits.
pub struct Generator {
    program: SizedProgram,
    /// State that is put into a store that does not have it.
    starts: Vec<Entry>,
    capacity: usize,
}

/// What the number of tokens before the given one is called.
const FILLED: &str = "filled";

impl Generator {
    /// Traces and compiles the model: from a token `i64[1, 1]` and how many tokens came before it,
    /// which [`KvCache::extend`](crate::nn::KvCache::extend) takes, to the scores of all tokens for
    /// the next one, whatever their shape. At most `capacity` tokens come in all.
    ///
    /// # Errors
    /// A program that is wrong.
    pub fn new(
        options: &Options,
        capacity: usize,
        model: impl for<'t> FnOnce(&'t Trace, Var<'t>, Size) -> Var<'t>,
    ) -> Result<Self> {
        let trace = Trace::new("generate", options, Types::default())?;
        trace.run(|t| {
            let filled = t.size_in(FILLED, 0..capacity.max(1) as i64);
            let token = t.input_of("token", TensorType::new(DType::I64, [1, 1]));
            t.output("scores", model(t, token, filled).to(DType::F32));
        })?;
        let traced = trace.finish()?;
        let program = compile_sized(traced.graph, options)?;
        Ok(Generator { program, starts: traced.starts, capacity })
    }

    /// The program that is run for each token.
    pub fn program(&self) -> &SizedProgram {
        &self.program
    }

    /// Reads a prompt and says a number of tokens more. Caches that the store does not have are put
    /// there, as zeros.
    ///
    /// # Errors
    /// An empty prompt, one that does not fit into the cache, more tokens than there is room for
    /// behind it, and what a run is refused for: weights that the store does not have, say. The
    /// last token that is said is not read, and needs no room.
    pub fn run(
        &self,
        store: &mut Store,
        prompt: &[i64],
        count: usize,
        sampling: &Sampling,
    ) -> Result<Vec<i64>> {
        if prompt.is_empty() {
            return Err(refused("the prompt has no token".to_owned()));
        }
        let (given, capacity) = (prompt.len(), self.capacity);
        if given > capacity {
            let why =
                format!("the prompt has {given} tokens, and the cache has room for {capacity}");
            return Err(refused(why));
        }
        let read = given.saturating_add(count.saturating_sub(1));
        if read > capacity {
            let why = format!(
                "the cache is full: {given} tokens and {count} more do not fit in {capacity}"
            );
            return Err(refused(why));
        }
        for entry in &self.starts {
            if !store.contains(&entry.name) {
                entry.put(store, 0)?;
            }
        }
        let mut said = Vec::with_capacity(count);
        for at in 0..read {
            let token = prompt.get(at).copied().unwrap_or_else(|| said[at - prompt.len()]);
            let token = Tensor::new([1, 1], &[token])?;
            let sizes = [(FILLED, at as i64)];
            let out = self.program.run_at(store, &[("token", &token)], &sizes)?;
            if at + 1 >= prompt.len() && said.len() < count {
                let scores = out["scores"].to_vec::<f32>()?;
                if scores.iter().all(|score| score.is_nan()) {
                    let why = format!("behind {} tokens no score is a number", at + 1);
                    return Err(refused(why));
                }
                said.push(sampling.pick(&scores, said.len() as u64) as i64);
            }
        }
        Ok(said)
    }
}

fn refused(message: String) -> Error {
    Error::Option { option: "prompt", message }
}
