//! Views of views, views that change nothing, and movement back and forth.
//!
//! Sizes left open (`-1`) and axes counted from the end are written out, so that equal views look
//! equal. Views that only move, add or drop axes of size 1 become `reshape`, which other reshapes
//! then swallow.

use super::recorder::{Draft, Recorder};
use crate::decompose::MOST_OPERANDS;
use smallvec::SmallVec;
use tracecast_ir::op::{Lower, View};
use tracecast_ir::ops::view::{EXPAND, PERMUTE, RESHAPE, SLICE};
use tracecast_ir::{Args, Attr, Attrs, Shape, Size, Var};

type Ints = SmallVec<[i64; 4]>;

/// Simplifies a view, `cat` or `pad`.
pub(super) fn rule<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let (shape, x) = (d.result()?.shape, &d.x().shape());
    if let Some(attrs) = written_out(d, x, &shape) {
        return Some(r.record(d.op.clone(), d.args.clone(), attrs)[0]);
    }
    match d.lowering()? {
        Lower::View(View::Reshape) => reshape(r, d, &shape),
        Lower::View(View::Permute) => permute(r, d, x, &shape),
        Lower::View(View::Expand) => expand(r, d, x, &shape),
        Lower::View(View::Slice) => slice(r, d, x, &shape),
        Lower::Pad => pad(r, d),
        Lower::Cat => cat(r, d),
        _ => None,
    }
}

fn is_view(lowering: &Lower, view: View) -> bool {
    matches!(lowering, Lower::View(v) if *v == view)
}

/// The attributes without negative sizes and axes, if there are any.
fn written_out(d: &Draft<'_>, x: &Shape, result: &Shape) -> Option<Attrs> {
    let name = match d.lowering()? {
        Lower::View(View::Reshape | View::Expand) => "shape",
        Lower::View(View::Permute) => "dims",
        Lower::View(View::Slice) | Lower::Cat => "dim",
        _ => return None,
    };
    let value: Attr = match d.attrs.get(name)? {
        Attr::Int(i) if *i < 0 => Attr::Int(x.axis(*i).ok()? as i64),
        Attr::Ints(_) | Attr::Sizes(_) if name == "shape" => {
            if !d.attrs.sizes(name).contains(&Size::from(-1)) {
                return None;
            }
            Attr::from(&result[..])
        }
        Attr::Ints(list) if list.iter().any(|i| *i < 0) => {
            let axes = list.iter().map(|i| x.axis(*i).ok().map(|a| a as i64));
            Attr::Ints(axes.collect::<Option<Ints>>()?)
        }
        _ => return None,
    };
    Some(d.attrs.clone().with(name.to_owned(), value))
}

fn reshaped<'t>(r: &mut Recorder<'_, 't>, x: Var<'t>, shape: &Shape) -> Var<'t> {
    r.apply(&RESHAPE, &[x], Attrs::new().with("shape", &shape[..]))
}

fn expanded<'t>(r: &mut Recorder<'_, 't>, x: Var<'t>, shape: &Shape) -> Var<'t> {
    r.apply(&EXPAND, &[x], Attrs::new().with("shape", &shape[..]))
}

fn reshape<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>, shape: &Shape) -> Option<Var<'t>> {
    let x = d.x();
    if x.shape() == *shape {
        return Some(x);
    }
    let below = r.made_by(x, |below| is_view(below, View::Reshape))?;
    Some(reshaped(r, below.x(), shape))
}

fn permute<'t>(
    r: &mut Recorder<'_, 't>,
    d: &Draft<'t>,
    x: &Shape,
    shape: &Shape,
) -> Option<Var<'t>> {
    let dims = d.attrs.ints("dims");
    let moved: Ints = dims.iter().copied().filter(|&a| x[a as usize] != 1).collect();
    if moved.is_sorted() {
        return Some(reshaped(r, d.x(), shape));
    }
    let below = r.made_by(d.x(), |below| is_view(below, View::Permute))?;
    let inner = below.attrs.ints("dims");
    let dims: Ints = dims.iter().map(|&a| inner[a as usize]).collect();
    Some(r.apply(&PERMUTE, &[below.x()], Attrs::new().with("dims", &dims[..])))
}

fn expand<'t>(
    r: &mut Recorder<'_, 't>,
    d: &Draft<'t>,
    x: &Shape,
    shape: &Shape,
) -> Option<Var<'t>> {
    if x.numel() == shape.numel() {
        return Some(reshaped(r, d.x(), shape));
    }
    let below = r.made(d.x())?;
    let adds_leading_axes = || {
        let inner = below.x().shape();
        inner.rank() < x.rank() && x[x.rank() - inner.rank()..] == inner[..]
    };
    let swallowed = match below.lowering()? {
        Lower::View(View::Expand) => true,
        Lower::View(View::Reshape) => adds_leading_axes(),
        _ => false,
    };
    swallowed.then(|| expanded(r, below.x(), shape))
}

/// The attributes of a slice.
#[derive(Clone, Copy)]
struct Range {
    dim: usize,
    start: Size,
    end: Size,
    step: i64,
}

impl Range {
    fn of(d: &Draft<'_>) -> Option<Range> {
        Some(Range {
            dim: usize::try_from(d.attrs.int("dim")?).ok()?,
            start: d.attrs.size("start")?,
            end: d.attrs.size("end")?,
            step: d.attrs.int("step")?,
        })
    }

    fn take<'t>(self, r: &mut Recorder<'_, 't>, x: Var<'t>) -> Var<'t> {
        let attrs = Attrs::new().with("dim", self.dim as i64).with("start", self.start);
        r.apply(&SLICE, &[x], attrs.with("end", self.end).with("step", self.step))
    }

    /// The same positions counted from another start.
    fn shifted(self, by: Size) -> Range {
        Range { start: self.start - by, end: self.end - by, ..self }
    }

    /// True if all of it lies within that many positions, whatever the values of names.
    fn lies_within(self, size: Size, r: &Recorder<'_, '_>) -> bool {
        r.tracer.proves(self.start.at_least(0)) && r.tracer.proves(size.at_least(self.end))
    }

    /// The same `count` positions, in the shortest way to say which they are.
    fn written_short(self, count: Size) -> Range {
        match count.number() {
            Some(0) => Range { end: self.start, step: 1, ..self },
            Some(1) => Range { end: self.start + 1, step: 1, ..self },
            Some(count) => Range { end: self.start + (count - 1) * self.step + 1, ..self },
            None => self,
        }
    }
}

fn slice<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>, x: &Shape, shape: &Shape) -> Option<Var<'t>> {
    let range = Range::of(d)?;
    let count = shape[range.dim];
    if shape == x {
        return Some(d.x());
    }
    let short = range.written_short(count);
    if (short.end, short.step) != (range.end, range.step) {
        return Some(short.take(r, d.x()));
    }
    let below = r.made(d.x())?;
    match below.lowering()? {
        Lower::View(View::Slice) => {
            let inner = Range::of(&below).filter(|inner| inner.dim == range.dim)?;
            let start = inner.start + range.start * inner.step;
            let step = range.step * inner.step;
            let end = match count.number() {
                Some(0) => start,
                Some(count) => start + (count - 1) * step + 1,
                None if step == 1 => start + count,
                None => return None,
            };
            Some(Range { dim: range.dim, start, end, step }.take(r, below.x()))
        }
        Lower::View(View::Expand) => {
            let inner = below.x().shape();
            let axis = (range.dim + inner.rank()).checked_sub(x.rank());
            let is_repeated = axis.is_none_or(|a| inner[a] == 1);
            is_repeated.then(|| expanded(r, below.x(), shape))
        }
        Lower::Pad => {
            let (low, high) = (below.attrs.sizes("low"), below.attrs.sizes("high"));
            let others = (0..low.len()).any(|a| a != range.dim && (low[a] != 0 || high[a] != 0));
            let inner = range.shifted(low[range.dim]);
            let inside = inner.lies_within(below.x().size(range.dim), r);
            (inside && !others).then(|| inner.take(r, below.x()))
        }
        Lower::Cat if below.attrs.int("dim") == Some(range.dim as i64) => {
            slice_of_cat(r, &below, range)
        }
        _ => None,
    }
}

/// A slice that lies within one operand of a `cat`.
fn slice_of_cat<'t>(r: &mut Recorder<'_, 't>, cat: &Draft<'t>, range: Range) -> Option<Var<'t>> {
    let mut start = Size::from(0);
    for v in &cat.args.vars {
        let size = v.size(range.dim);
        let inner = range.shifted(start);
        if inner.lies_within(size, r) {
            return Some(inner.take(r, *v));
        }
        start += size;
    }
    None
}

fn pad<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let (low, high) = (d.attrs.sizes("low"), d.attrs.sizes("high"));
    if low.iter().chain(&high).all(|n| *n == 0) {
        return Some(d.x());
    }
    let below = r
        .made_by(d.x(), |below| matches!(below, Lower::Pad))
        .filter(|below| below.attrs.get("value") == d.attrs.get("value"))?;
    let add = |a: &[Size], b: &[Size]| {
        a.iter().zip(b).map(|(a, b)| *a + *b).collect::<SmallVec<[Size; 4]>>()
    };
    let more = |name| below.attrs.sizes(name);
    let (low, high) = (add(&low, &more("low")), add(&high, &more("high")));
    let attrs = d.attrs.clone().with("low", &low[..]).with("high", &high[..]);
    Some(r.record(d.op.clone(), Args::of(&[below.x()]), attrs)[0])
}

fn cat<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let dim = usize::try_from(d.attrs.int("dim")?).ok()?;
    if let [x] = d.args.vars[..] {
        return Some(x);
    }
    let mut parts: SmallVec<[Var<'t>; 4]> = SmallVec::new();
    for v in &d.args.vars {
        let below = r.made_by(*v, |below| matches!(below, Lower::Cat));
        match below.filter(|below| below.attrs.int("dim") == Some(dim as i64)) {
            Some(below) => parts.extend(below.args.vars),
            None => parts.push(*v),
        }
    }
    if parts.len() > MOST_OPERANDS.max(d.args.vars.len()) {
        parts = d.args.vars.iter().copied().collect();
    }
    let is_empty = |v: &Var<'t>| v.size(dim) == 0;
    if !parts.iter().all(is_empty) {
        parts.retain(|v| !is_empty(v));
    }
    let parts = joined(r, &parts, dim);
    if parts.iter().map(|v| v.id()).eq(d.args.vars.iter().map(|v| v.id())) {
        return None;
    }
    let groups = SmallVec::from_elem(parts.len() as u16, 1);
    Some(r.record(d.op.clone(), Args { vars: parts, groups }, d.attrs.clone())[0])
}

/// Neighbours that are neighbouring slices of one value are one slice of it.
fn joined<'t>(r: &mut Recorder<'_, 't>, parts: &[Var<'t>], dim: usize) -> SmallVec<[Var<'t>; 4]> {
    let dense = |r: &Recorder<'_, 't>, v: Var<'t>| {
        let d = r.made_by(v, |below| is_view(below, View::Slice))?;
        let range = Range::of(&d).filter(|range| range.dim == dim && range.step == 1)?;
        Some((d.x(), range))
    };
    let mut out: SmallVec<[Var<'t>; 4]> = SmallVec::new();
    let mut open: Option<(Var<'t>, Range)> = None;
    for v in parts {
        let next = dense(r, *v);
        match (&mut open, next) {
            (Some((x, range)), Some((y, more))) if x.id() == y.id() && range.end == more.start => {
                range.end = more.end;
                let whole = range.take(r, y);
                out.pop();
                out.push(whole);
            }
            _ => {
                out.push(*v);
                open = next;
            }
        }
    }
    out
}
