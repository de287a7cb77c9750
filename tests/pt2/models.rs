//! Whole models: results in both modes, loss and gradients in f32, results under bf16 autocast.

use crate::answers::{Answers, apart, distance, models, named};
use std::collections::BTreeMap;
use tracecast::amp::Autocast;
use tracecast::nn::Context;
use tracecast::prelude::*;
use tracecast::runtime::Outputs;
use tracecast::{Result, pt2};

/// The tolerance of `torch.testing.assert_close` for f32, which OpInfo takes.
const CLOSE: (f64, f64) = (1.3e-6, 1e-5);

fn open(name: &str) -> pt2::Model {
    pt2::open(crate::answers::folder().join(name)).unwrap_or_else(|error| panic!("{error}"))
}

fn run(model: &pt2::Model, program: &Jit, inputs: &[Tensor]) -> Result<Outputs> {
    let mut store = model.store()?;
    let named = named(model, inputs);
    let inputs: Vec<(&str, &Tensor)> = named.iter().map(|(name, x)| (name.as_str(), *x)).collect();
    program.run(&mut store, &inputs)
}

#[test]
fn every_archive_opens_and_gives_pytorchs_results() {
    let mut wrong = Vec::new();
    for name in models() {
        let answers = Answers::of(&name);
        let inputs = answers.numbered("in");
        for (mode, file) in
            [("eval.", format!("{name}.eval.pt2")), ("train.", format!("{name}.pt2"))]
        {
            let path = crate::answers::folder().join(&file);
            let model = match pt2::open(&path) {
                Ok(model) => model,
                Err(error) => {
                    wrong.push(error.to_string());
                    continue;
                }
            };
            let out = match run(&model, &model.jit(Options::new()), &inputs) {
                Ok(out) => out,
                Err(error) => {
                    wrong.push(format!("{file}: {error}"));
                    continue;
                }
            };
            let wanted = answers.numbered(mode);
            assert!(!wanted.is_empty());
            let far = wanted.iter().enumerate().map(|(at, wanted)| {
                distance(&out[&format!("output.{at}")], wanted, CLOSE.0, CLOSE.1)
            });
            let far = far.fold(0.0, f64::max);
            println!("{file}: {far:.2} tolerances");
            if far > 1.0 {
                wrong.push(format!("{file}: {far} tolerances away"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn losses_and_gradients_are_pytorchs() {
    let mut wrong = Vec::new();
    for name in models() {
        let answers = Answers::of(&name);
        let model = open(&format!("{name}.loss.pt2"));
        let recorded = model.clone();
        let program = jit(Options::new(), move |t| {
            let loss = recorded.call_on_inputs(&Context::training(t))[0];
            let params = t.params();
            for (param, grad) in params.iter().zip(t.grad(loss, &params)) {
                let norm = grad.square().sum(()).sqrt();
                t.output(&format!("grad/{}", t.name_of(*param).unwrap()), norm);
            }
            t.output("loss", loss);
        });
        let out = match run(&model, &program, &answers.numbered("in")) {
            Ok(out) => out,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let (loss, wanted) = (out["loss"].to_f64s()[0], answers.get("loss").to_f64s()[0]);
        let relative = (loss - wanted).abs() / wanted.abs();
        if relative > 1e-5 {
            wrong.push(format!("{name}: the loss is {loss}, PyTorch's {wanted}"));
        }
        let norms: BTreeMap<String, f64> = answers.under("grad/").into_iter().collect();
        let largest = norms.values().fold(0.0, |a, b| f64::max(a, *b));
        let mut far: f64 = 0.0;
        for (param, wanted) in &norms {
            let inner = param.strip_prefix("model.").unwrap_or(param);
            let names = [param.clone(), format!("model.{param}"), inner.to_owned()];
            let found = names.iter().find_map(|name| out.get(&format!("grad/{name}")).ok());
            let found = found.map_or(0.0, |norm| norm.to_f64s()[0]);
            let own = (found - wanted).abs() / f64::max(*wanted, 1e-3 * largest);
            far = far.max(own);
            if own > 1e-3 {
                wrong.push(format!(
                    "{name}: the gradient of {param} has the norm {found}, PyTorch's {wanted}"
                ));
            }
        }
        println!("{name}: loss {relative:.1e}, gradients {far:.1e} of {}", norms.len());
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn results_under_bf16_are_as_near_as_pytorchs() {
    let mut wrong = Vec::new();
    for name in models() {
        let answers = Answers::of(&name);
        let model = open(&format!("{name}.eval.pt2"));
        let region = Autocast::new("cpu").dtype(DType::BF16);
        let out = match run(&model, &model.jit_in(Options::new(), region), &answers.numbered("in"))
        {
            Ok(out) => out,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let (low, full) = (answers.numbered("bf16."), answers.numbered("eval."));
        for (at, (low, full)) in low.iter().zip(&full).enumerate() {
            let found = out[&format!("output.{at}")].cast(DType::F32).unwrap();
            let (ours, theirs) = (apart(&found, low), apart(low, full));
            println!("{name} {at}: {ours:.2e} from PyTorch's, which is {theirs:.2e} from f32");
            if ours > 1.5 * theirs + 2e-3 {
                wrong.push(format!(
                    "{name} {at}: {ours} from PyTorch's, which is {theirs} from f32"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn changes_of_a_shared_model_stay() {
    let model = open("net_vae.eval.pt2").renamed("args_0", "x").unwrap();
    let names = |model: &pt2::Model| -> Vec<String> {
        model.exported().inputs().iter().map(|input| input.name.clone()).collect()
    };
    let trained = |model: &pt2::Model| {
        model.exported().states().iter().filter(|state| state.is_trained).count()
    };
    let all = trained(&model);
    // A program keeps a copy of the model that it records.
    let program = model.jit(Options::new());
    let frozen = model.clone().frozen("**.weight").unwrap();
    assert_eq!((names(&frozen), names(&model)), (vec!["x".to_owned()], vec!["x".to_owned()]));
    assert!(trained(&frozen) < all && trained(&model) == all);
    let still = frozen.without_regions();
    assert!(trained(&still) < all && names(&still) == ["x"]);
    let x = Tensor::rand([2, 64], 0).unwrap();
    let mut store = still.store().unwrap();
    assert!(program.run(&mut store, &[("x", &x)]).is_ok());
    let error = still.frozen("*.nowhere").unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
}

/// A module with an exported model inside.
struct Around(pt2::Model);

impl Module for Around {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.call("inner", &self.0, x)
    }
}

#[test]
fn weights_that_cannot_be_read_are_an_error_of_the_module_around() {
    let whole = std::fs::read(crate::answers::folder().join("net_vae.eval.pt2")).unwrap();
    let path = std::env::temp_dir().join(format!("around-{}.pt2", std::process::id()));
    std::fs::write(&path, whole).unwrap();
    let around = Around(pt2::open(&path).unwrap());
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    let error = around.init(&mut Store::new(), 0).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.contains("around-"), "{error}");
}
