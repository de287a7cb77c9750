//! Trains a network that Python defined, as `torch.export.save` wrote it, in f32 and under bf16
//! autocast, and saves it for PyTorch.
//!
//! `cargo run --release --example train_exported`. `docs/pytorch.md` says how to export a model.

#![allow(clippy::print_stdout, reason = "an example says what it does")]

use tracecast::prelude::*;
use tracecast::{Result, pt2};

fn main() -> Result<()> {
    let path = std::env::args().nth(1);
    let path = path.unwrap_or_else(|| "tests/data/pt2/net_gru.pt2".to_owned());
    for low in [None, Some(DType::BF16)] {
        let model = pt2::open(&path)?;
        println!("{path}, written by PyTorch {}", model.exported().written_by());
        let input = model.exported().inputs()[0].clone();

        let step =
            TrainStep::from_exported(model, |t, outputs| outputs[0].cross_entropy(t.input("y")))
                .optimizer(AdamW::new(1e-2));
        let step = match low {
            Some(dtype) => step.autocast("cpu", dtype),
            None => step,
        }
        .build()?;
        let mut store = Store::new();
        step.init(&mut store, 0)?;

        // Two sequences of tokens, each with its class.
        let tokens = Tensor::from_fn(input.ty.clone(), |i| (i % 7) as f64)?;
        let classes = Tensor::new([2], &[0i64, 1])?;
        for epoch in 0..5 {
            let result = step.run(&mut store, &[(&input.name, &tokens), ("y", &classes)])?;
            println!("{}: step {epoch}, loss {:.4}", low.unwrap_or(DType::F32), result.loss);
        }

        // PyTorch reads this with `safetensors.torch.load_file`, under the names of `state_dict`.
        let file = std::env::temp_dir().join("trained.safetensors");
        step.save_model(&store, &file)?;
        println!("saved to {}", file.display());
    }
    Ok(())
}
