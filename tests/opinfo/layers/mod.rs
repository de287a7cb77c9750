//! Recorded layers: what they were made with, the names and types of their state, and what they
//! answer.

mod channels;
mod plain;
mod settings;
mod several;

use crate::arguments::Arguments;
use crate::calls::Called;
use crate::cases::{Case, Layer as Recorded};
use crate::run::{Ran, record_outputs};
use settings::Settings;
use std::collections::BTreeSet;
use tracecast::nn::{Context, Entry, Layer, Module, Start};
use tracecast::{Trace, trace};
use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::{Graph, TensorType, Var};

/// A layer of ours, and how a recorded call of it is made.
pub(crate) trait Played {
    fn entries(&self) -> Vec<Entry>;

    fn play<'t>(&self, cx: &Context<'t>, a: &Arguments<'_, 't>) -> Called<'t>;
}

/// A layer, if there is one of that name.
type Made = Option<Result<Box<dyn Played>, String>>;

/// The program of a call and of its gradients, and the number of results.
pub(crate) fn recorded(case: &Case, layer: &Recorded) -> Result<(Graph, usize), Ran> {
    let settings = Settings::new(case, layer);
    let made = plain::made(&case.op, &settings)
        .or_else(|| channels::made(&case.op, &settings))
        .or_else(|| several::made(&case.op, &settings));
    let made = made.unwrap_or_else(|| Err(format!("no layer `{}`", case.op)));
    let made = made.and_then(|made| settings.left().map_or(Ok(made), Err));
    let made = made.map_err(Ran::NoCall)?;
    if let Some(wrong) = wrong_state(&made.entries(), layer) {
        return Err(Ran::Broken(wrong));
    }
    let mut count = Err(String::new());
    let graph = trace("case", |t| count = record(t, case, layer, made.as_ref()));
    let count = count.map_err(Ran::NoCall)?;
    let graph = graph.map_err(|error| Ran::Refused(error.to_string()))?;
    Ok((graph, count))
}

/// In what the names and types that a layer keeps differ from those of PyTorch's `state_dict`. A
/// generator is ours alone.
fn wrong_state(entries: &[Entry], layer: &Recorded) -> Option<String> {
    let kept = entries.iter().filter(|entry| entry.start != Start::Seed);
    let text = |name: &str, ty: &TensorType| format!("{name}: {ty}");
    let found: BTreeSet<String> = kept.map(|entry| text(&entry.name, &entry.ty)).collect();
    let state = layer.state.iter().map(|(name, value)| text(name, &value.ty));
    let wanted: BTreeSet<String> = state.collect();
    let odd: Vec<&str> = found.symmetric_difference(&wanted).map(String::as_str).collect();
    (!odd.is_empty()).then(|| format!("its state differs in {}", odd.join(", ")))
}

/// Records the call; returns the number of results.
fn record(t: &Trace, case: &Case, layer: &Recorded, made: &dyn Played) -> Result<usize, String> {
    let tracer = t.tracer();
    let arguments = Arguments::new(tracer, case);
    let cx = if layer.training { Context::training(t) } else { Context::evaluation(t) };
    let mut results = match case.autocast {
        None => made.play(&cx, &arguments)?,
        Some(low) => {
            let region = Region::default().with_device(DeviceType::Cpu, true, low);
            tracer.in_region(&region, || made.play(&cx, &arguments))?
        }
    };
    if let Some(left) = arguments.left() {
        return Err(format!("`{}` takes no {left}", case.op));
    }
    for name in &case.written {
        let (_, value) = layer.state.iter().find(|(known, _)| known == name).ok_or("no state")?;
        results.push(tracer.last(t.state_of(name, value.ty.clone())));
    }
    let params = t.params().into_iter();
    let named = params.filter_map(|v| Some((format!("state/{}", t.name_of(v)?), v)));
    let leaves: Vec<(String, Var<'_>)> = arguments.leaves.iter().cloned().chain(named).collect();
    record_outputs(tracer, case, &results, &leaves)
}

/// A module: a tensor in, a tensor out.
struct One<M>(M);

impl<M: Module> Played for One<M> {
    fn entries(&self) -> Vec<Entry> {
        self.0.entries().unwrap()
    }

    fn play<'t>(&self, cx: &Context<'t>, a: &Arguments<'_, 't>) -> Called<'t> {
        Ok(vec![self.0.forward(cx, a.tensor(0, "input")?)])
    }
}

/// A layer of two tensors.
struct Two<L>(L);

impl<L> Played for Two<L>
where
    L: for<'t> Layer<Input<'t> = (Var<'t>, Var<'t>), Output<'t> = Var<'t>>,
{
    fn entries(&self) -> Vec<Entry> {
        self.0.entries().unwrap()
    }

    fn play<'t>(&self, cx: &Context<'t>, a: &Arguments<'_, 't>) -> Called<'t> {
        Ok(vec![self.0.forward(cx, (a.tensor(0, "input")?, a.tensor(1, "target")?))])
    }
}

/// A layer of three tensors.
struct Three<L>(L);

impl<L> Played for Three<L>
where
    L: for<'t> Layer<Input<'t> = (Var<'t>, Var<'t>, Var<'t>), Output<'t> = Var<'t>>,
{
    fn entries(&self) -> Vec<Entry> {
        self.0.entries().unwrap()
    }

    fn play<'t>(&self, cx: &Context<'t>, a: &Arguments<'_, 't>) -> Called<'t> {
        let [x, y, z] = [a.tensor(0, "input")?, a.tensor(1, "")?, a.tensor(2, "")?];
        Ok(vec![self.0.forward(cx, (x, y, z))])
    }
}

fn one(module: impl Module + 'static) -> Result<Box<dyn Played>, String> {
    Ok(Box::new(One(module)))
}

fn two<L>(layer: L) -> Result<Box<dyn Played>, String>
where
    L: for<'t> Layer<Input<'t> = (Var<'t>, Var<'t>), Output<'t> = Var<'t>> + 'static,
{
    Ok(Box::new(Two(layer)))
}

fn three<L>(layer: L) -> Result<Box<dyn Played>, String>
where
    L: for<'t> Layer<Input<'t> = (Var<'t>, Var<'t>, Var<'t>), Output<'t> = Var<'t>> + 'static,
{
    Ok(Box::new(Three(layer)))
}
