//! Prints a small mixed-precision training step after every pass, and what became of it.
//!
//! `cargo run --example inspect`

use tracecast::compile_reported;
use tracecast::prelude::*;

fn main() -> tracecast::Result<()> {
    let graph = trace("step", |t| {
        let x = t.input_of("x", TensorType::new(DType::F32, [8, 4]));
        let w = t.param_of("w", TensorType::new(DType::F32, [4, 2]));
        let loss = autocast(t, "cpu", DType::BF16, || x.matmul(w).relu().sum(()));
        let dw = t.grad(loss, &[w])[0];
        t.update(w, w - dw * 0.1);
        t.output("loss", loss);
    })?;
    let (_, report) = compile_reported(graph, &Options::new().keep_history(true))?;
    let mut text = String::new();
    for (pass, program) in &report.history {
        text += &format!("; after {pass}\n{program}\n");
    }
    text +=
        &format!("; {} kernels, {} casts of their own, ", report.kernels, report.standalone_casts);
    text += &format!(
        "{} bytes saved for the backward pass, {:?}\n",
        report.saved_bytes,
        report.total()
    );
    std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes())
        .expect("standard output is open");
    Ok(())
}
