//! A program against what a pass has made of it: [`compare`].

use super::casts::{casts, dtypes, error_at, points_to, rounds};
use super::kept::Kept;
use super::roundings::Roundings;
use super::whole::Whole;
use super::{Verified, added, autocast};
use crate::error::{VerifyError, VerifyErrors};
use crate::graph::{Graph, NodeId, ValueId};
use crate::op::Intrinsic;
use crate::{DType, Reason};
use std::collections::{HashMap, HashSet};

/// What a pass may do to the casts of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It makes casts of the autocast decisions, and of nothing else but promotions.
    Casts,
    /// It adds code with casts of its own: gradients, the parts of ops. What was there stays, every
    /// rounding of it and no other.
    Adds,
    /// It moves, shares and cancels casts where that changes no bit.
    Moves,
    /// It moves, shares and cancels casts, and leaves roundings away that the program does not
    /// write itself.
    Drops,
    /// It turns ops into kernels.
    Lowers,
}

/// Holds a program against what a pass has made of it: its interface, and the roundings that the
/// promise is about.
///
/// # Errors
/// Every invariant that the pass broke, with the op, its line and the dtypes.
pub fn compare(before: &Verified, after: &Verified, promise: Promise) -> Result<(), VerifyErrors> {
    let mut errors = Vec::new();
    interface(before, after, &mut errors);
    match promise {
        Promise::Casts => {
            autocast::check(before, after, &mut errors);
            kept(before, after, promise, &mut errors);
        }
        Promise::Adds => {
            kept(before, after, promise, &mut errors);
            added::check(before, after, &mut errors);
        }
        Promise::Moves | Promise::Drops => {
            kept(before, after, promise, &mut errors);
            only_old(before, after, promise, &mut errors);
            tidy(after, &mut errors);
        }
        Promise::Lowers => {}
    }
    if errors.is_empty() { Ok(()) } else { Err(VerifyErrors(errors)) }
}

/// V2: ports, results and next values are what they were.
fn interface(before: &Graph, after: &Graph, errors: &mut Vec<VerifyError>) {
    if is_same_interface(before, after) {
        return;
    }
    let ports = |g: &Graph| -> Vec<String> {
        let port = |p: &crate::Port| format!("{:?} `{}`: {} on {}", p.role, p.name, p.ty, p.device);
        g.ports().iter().map(port).collect()
    };
    let results = |g: &Graph| -> Vec<String> {
        let result = |(name, v): &(String, ValueId)| format!("result `{name}`: {}", g.ty(*v));
        g.outputs().iter().map(result).collect()
    };
    let updates = |g: &Graph| -> Vec<String> {
        let update = |(port, v): &(usize, ValueId)| {
            format!("next value of `{}`: {}", g.ports()[*port].name, g.ty(*v))
        };
        g.updates().iter().map(update).collect()
    };
    let mut differ = |was: Vec<String>, is: Vec<String>, at: &dyn Fn(usize) -> Option<NodeId>| {
        let Some(i) = (0..was.len().max(is.len())).find(|i| was.get(*i) != is.get(*i)) else {
            return;
        };
        let show = |all: &[String]| all.get(i).map_or("nothing".to_owned(), Clone::clone);
        let message = format!("expected {}, found {}", show(&was), show(&is));
        errors.push(match at(i) {
            Some(id) => error_at(before, id, message),
            None => VerifyError {
                node: before.len(),
                op: "return".to_owned(),
                message,
                source_line: String::new(),
            },
        });
    };
    differ(ports(before), ports(after), &|i| before.ports().get(i).map(|p| p.node));
    differ(results(before), results(after), &|i| before.outputs().get(i).map(|(_, v)| v.node));
    differ(updates(before), updates(after), &|i| before.updates().get(i).map(|(_, v)| v.node));
}

fn is_same_interface(before: &Graph, after: &Graph) -> bool {
    let port = |p: &crate::Port| (p.role, p.device);
    let ports = |g: &Graph| g.ports().iter().map(port).collect::<Vec<_>>();
    let named =
        before.ports().iter().zip(after.ports()).all(|(a, b)| (&a.name, &a.ty) == (&b.name, &b.ty));
    let result = |(a, b): (&(String, ValueId), &(String, ValueId))| {
        a.0 == b.0 && before.ty(a.1) == after.ty(b.1)
    };
    let update = |(a, b): (&(usize, ValueId), &(usize, ValueId))| {
        a.0 == b.0 && before.ty(a.1) == after.ty(b.1)
    };
    ports(before) == ports(after)
        && named
        && before.outputs().len() == after.outputs().len()
        && before.outputs().iter().zip(after.outputs()).all(result)
        && before.updates().len() == after.updates().len()
        && before.updates().iter().zip(after.updates()).all(update)
}

/// V6 and V7: every rounding that a result depends on is still there, or at least each that the
/// program writes. Where code is only added, there is no question of what a result can do without.
fn kept(before: &Graph, after: &Graph, promise: Promise, errors: &mut Vec<VerifyError>) {
    let live = after.live();
    let there: HashSet<u32> = casts(after)
        .filter(|id| live[id.index()])
        .flat_map(|id| points_to(after, id).collect::<Vec<_>>())
        .collect();
    let is_there = |number: u32| there.contains(&number);
    // Checked in every build, and nobody's values are replaced.
    if promise == Promise::Casts && Roundings::all(before).all(|(_, number)| is_there(number)) {
        return;
    }
    let kept = Kept::of(before, after);
    let moves = matches!(promise, Promise::Moves | Promise::Drops);
    let roundings = match promise {
        Promise::Casts | Promise::Adds => Roundings::of_whole(before),
        _ => Roundings::of_rewritten(before, &kept),
    };
    let mut whole = Whole::of(before, &kept, after);
    for (id, number) in Roundings::all(before) {
        let is_passed_by = || roundings.is_passed_by(before, &kept, id);
        let mut is_gone = || !is_there(number) || moves && whole.misses_a_part(id, number);
        let is_lost = is_passed_by() || roundings.needs(before, id) && is_gone();
        if !is_lost {
            continue;
        }
        let point = before.points()[number as usize];
        if promise == Promise::Drops && point.reason != Reason::Written {
            continue;
        }
        let what = if point.reason == Reason::Written {
            "the program rounds here"
        } else {
            "a result depends on this rounding"
        };
        let message =
            format!("{what}, {} to {}, and nothing does so any more", point.from, point.to);
        errors.push(error_at(before, id, message));
    }
}

/// V7: no rounding appears where casts are only moved. Where some are left away, what an op rounded
/// itself may have become a cast.
fn only_old(before: &Graph, after: &Graph, promise: Promise, errors: &mut Vec<VerifyError>) {
    let mut old: HashSet<u32> = Roundings::all(before).map(|(_, number)| number).collect();
    if promise == Promise::Drops {
        old.extend(of_results(before, after));
    }
    for id in casts(after) {
        let (from, to) = dtypes(after, id);
        let is_old = || points_to(after, id).any(|number| old.contains(&number));
        if rounds(from, to) && !is_old() {
            let message = format!("rounds {from} to {to} where the program before did not");
            errors.push(error_at(after, id, message));
        }
    }
}

/// The new points that are roundings of results by ops of the program before, no more of them than
/// there are such results.
fn of_results(before: &Graph, after: &Graph) -> Vec<u32> {
    let mut results: HashMap<(NodeId, bool, DType), usize> = HashMap::new();
    for id in before.nodes() {
        let node = before.node(id);
        let (origin, backward) = (node.origin.node.unwrap_or(id), node.origin.backward);
        for result in &node.results {
            *results.entry((origin, backward, result.dtype)).or_default() += 1;
        }
    }
    let first = before.points().len();
    let new = after.points().iter().enumerate().skip(first);
    let roundings = new.filter_map(|(number, point)| {
        let left = results.get_mut(&(point.node, point.backward, point.to))?;
        *left = left.checked_sub(1)?;
        matches!(point.reason, Reason::Inside(_)).then_some(number as u32)
    });
    roundings.collect()
}

/// V10: no dead cast, no two equal casts of one value.
fn tidy(after: &Graph, errors: &mut Vec<VerifyError>) {
    let live = after.live();
    let mut seen: HashMap<(ValueId, DType), NodeId> = HashMap::new();
    for id in after.nodes().filter(|id| after.node(*id).op.intrinsic() == Some(Intrinsic::Cast)) {
        let (from, to) = dtypes(after, id);
        if !live[id.index()] {
            let message = format!("nothing needs this cast of {from} to {to}");
            errors.push(error_at(after, id, message));
        }
        if let Some(first) = seen.insert((after.args(id)[0], to), id) {
            let message = format!("casts {from} to {to} as %{} does already", first.index());
            errors.push(error_at(after, id, message));
        }
    }
}
