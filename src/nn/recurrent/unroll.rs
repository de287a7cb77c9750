//! Steps one after the other, layer by layer.

use super::cell::{Sizes, Step};
use crate::amp::CustomGrad;
use crate::nn::{Context, Dropout, Module};
use tracecast_ir::functions::{Carried as State, Cell, stack};
use tracecast_ir::ops::view::cat;
use tracecast_ir::{DType, Size, TensorType, Var};

/// The settings that recurrent layers share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) inputs: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) bias: bool,
    pub(super) batch_first: bool,
    pub(super) dropout: f64,
    pub(super) bidirectional: bool,
    pub(super) proj: Option<usize>,
    pub(super) dtype: DType,
}

impl Settings {
    pub(super) fn new(inputs: usize, hidden: usize) -> Self {
        Settings {
            inputs,
            hidden,
            layers: 1,
            bias: true,
            batch_first: false,
            dropout: 0.0,
            bidirectional: false,
            proj: None,
            dtype: DType::F32,
        }
    }

    /// The sizes of the parameters of a layer: all but the first take what both directions of the
    /// one before give.
    fn sizes(&self, layer: usize) -> Sizes {
        let Settings { hidden, proj, bias, dtype, .. } = *self;
        let directions = if self.bidirectional { 2 } else { 1 };
        let inputs = if layer == 0 { self.inputs } else { directions * proj.unwrap_or(hidden) };
        Sizes { inputs, hidden, proj, bias, dtype }
    }
}

/// What a recurrent layer gives.
pub(super) struct Unrolled<'t> {
    /// What the last layer gives at each step.
    pub(super) out: Var<'t>,
    /// The states of all layers and directions behind the last step.
    pub(super) after: (Var<'t>, Option<Var<'t>>),
}

/// Records all steps of all layers.
pub(super) fn unroll<'t>(
    cx: &Context<'t>,
    name: &str,
    kind: Cell,
    settings: &Settings,
    x: Var<'t>,
    given: Option<(Var<'t>, Option<Var<'t>>)>,
) -> Unrolled<'t> {
    let directions: &[&str] = if settings.bidirectional { &["", "_reverse"] } else { &[""] };
    let steps: Vec<Vec<Step<'t>>> = (0..settings.layers)
        .map(|layer| {
            let of = |way| Step::new(cx, kind, settings.sizes(layer), &format!("_l{layer}{way}"));
            directions.iter().map(of).collect()
        })
        .collect();
    let dropout = Dropout::new(settings.dropout);
    if x.is_poison() {
        // The generator is state of the layer.
        if settings.layers > 1 {
            dropout.forward(cx, x);
        }
        return failed(x);
    }
    let checked = || {
        if let Some(proj) = settings.proj.filter(|proj| *proj >= settings.hidden) {
            return Err(format!("projects {} numbers to {proj}, expected fewer", settings.hidden));
        }
        let axis = axis_of_steps(settings, x)?;
        let zeros = steps.first().and_then(|layer| layer.first()).ok_or("has no layers")?;
        let zeros = zeros.zeros(x, &outer(x, axis));
        let states = states(settings, directions.len(), given, zeros)?;
        Ok::<_, String>((axis, states))
    };
    cx.here(|| match checked() {
        Ok((axis, states)) => record(cx, settings, x, axis, &steps, states, dropout),
        Err(why) => failed(x.tracer().fail(name, format!("{why}, of {}", x.ty()))),
    })
}

/// What a failed op stands for.
fn failed(x: Var<'_>) -> Unrolled<'_> {
    Unrolled { out: x, after: (x, Some(x)) }
}

/// The axis of the steps, of which there is at least one.
fn axis_of_steps(settings: &Settings, x: Var<'_>) -> Result<usize, String> {
    let axis = match x.rank() {
        2 => 0,
        3 => usize::from(settings.batch_first),
        _ => return Err("takes two or three axes".to_owned()),
    };
    if x.size(x.rank() - 1) != Size::from(settings.inputs) {
        return Err(format!("takes {} numbers at each step", settings.inputs));
    }
    match x.size(axis).number() {
        Some(0) => Err("takes at least one step".to_owned()),
        Some(_) => Ok(axis),
        None => {
            Err("the number of steps is a name, and has to be a number: pin the size".to_owned())
        }
    }
}

/// The axes but those of the steps and of what an example has.
fn outer(x: Var<'_>, axis: usize) -> Vec<Size> {
    (0..x.rank() - 1).filter(|i| *i != axis).map(|i| x.size(i)).collect()
}

/// The state before the first step of each layer and direction, which has the type of `zeros`.
fn states<'t>(
    settings: &Settings,
    directions: usize,
    given: Option<(Var<'t>, Option<Var<'t>>)>,
    zeros: State<'t>,
) -> Result<Vec<State<'t>>, String> {
    let count = settings.layers * directions;
    let Some((h, c)) = given else { return Ok(vec![zeros; count]) };
    let all = |one: Var<'t>| {
        let TensorType { dtype, shape } = one.ty();
        let shape = [Size::from(count)].into_iter().chain(shape.iter().copied()).collect();
        TensorType { dtype, shape }
    };
    for (given, one) in [(Some(h), Some(zeros.h)), (c, zeros.c)] {
        if let (Some(given), Some(one)) = (given, one)
            && !given.is_poison()
            // Under autocast a state comes back in the low dtype.
            && (given.shape() != all(one).shape || !given.dtype().is_float())
        {
            return Err(format!("the state is {}, expected {}", given.ty(), all(one)));
        }
    }
    let at = |i| State { h: h.select(0, i), c: c.map(|c| c.select(0, i)) }.in_dtype_of(zeros);
    (0..count).map(|i| i64::try_from(i).map(at).map_err(|e| e.to_string())).collect()
}

/// Records layers over steps whose inputs fit.
fn record<'t>(
    cx: &Context<'t>,
    settings: &Settings,
    x: Var<'t>,
    axis: usize,
    steps: &[Vec<Step<'t>>],
    states: Vec<State<'t>>,
    dropout: Dropout,
) -> Unrolled<'t> {
    let (mut states, mut last) = (states.into_iter(), Vec::new());
    let mut xs = apart(cx, x, axis);
    for (layer, directions) in steps.iter().enumerate() {
        let ways = directions.iter().zip(&mut states).enumerate().map(|(way, (step, state))| {
            let (out, after) = step.recurrent().layer(&xs, state, way == 1);
            last.push(after);
            out
        });
        let ways: Vec<Vec<Var<'t>>> = ways.collect();
        xs = match &ways[..] {
            [forth, back] => forth.iter().zip(back).map(|(f, b)| cat(&[*f, *b], -1)).collect(),
            _ => ways.into_iter().next().unwrap_or_default(),
        };
        if settings.dropout > 0.0 && layer + 1 < steps.len() {
            xs = xs.into_iter().map(|x| dropout.forward(cx, x)).collect();
        }
    }
    let h: Vec<Var<'t>> = last.iter().map(|state| state.h).collect();
    let c: Option<Vec<Var<'t>>> = last.iter().map(|state| state.c).collect();
    Unrolled {
        out: stack(&xs, axis as i64),
        after: (stack(&h, 0), c.filter(|c| !c.is_empty()).map(|c| stack(&c, 0))),
    }
}

/// The positions of an axis, whose gradients are put together in one piece: those of as many slices
/// would be sums of as many tensors of the whole size.
fn apart<'t>(cx: &Context<'t>, x: Var<'t>, axis: usize) -> Vec<Var<'t>> {
    let axis = axis as i64;
    CustomGrad::new().apply_list(
        cx.trace(),
        &[x],
        |x| (x[0].unbind(axis), ()),
        |(), dys| vec![Some(stack(dys, axis))],
    )
}
