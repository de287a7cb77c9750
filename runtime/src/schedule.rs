//! The order of a program's steps, and which state is updated in place.

use crate::buckets::Work;
use crate::parts::{Part, Parts};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use tracecast_ir::Size;
use tracecast_ir::kernel::Checked;

/// The order of the steps, and where updates are made.
pub(crate) struct Schedule {
    /// Numbers of steps.
    pub(crate) order: Vec<usize>,
    /// For each value, the state port whose memory it is written to.
    pub(crate) home: Vec<Option<usize>>,
}

/// Orders the steps as they were recorded, except that steps which update state in place wait for
/// every step that reads the old state or can fail: raise a check, or wait for another rank in
/// vain. An update that cannot wait for them is not made in place.
///
/// A step that checks only what another one checks as a whole cannot fail behind it: the gradient
/// of an embedding is added up at the indices that forward has looked up.
pub(crate) fn schedule(parts: &Parts, in_place: bool) -> Schedule {
    let (uses, fails) = (Uses::of(parts), fails(parts));
    let mut after = Order::of(parts, &uses, &fails);
    let mut home = vec![None; parts.values.len()];
    if in_place {
        for &(port, value) in &parts.updates {
            let Some((writer, output)) = uses.producer[value] else { continue };
            let (own, others): (Vec<Read>, Vec<Read>) =
                uses.reads[port].iter().partition(|(step, _)| *step == writer);
            // The step itself must not mind: it raises no check, and reads the old state only where
            // it writes the new one.
            let step = &parts.steps[writer];
            let update = match parts.kernel_of(step) {
                Some(kernel) => kernel.outputs[output].update,
                None if step.work == Work::Copy => None,
                None => continue,
            };
            if fails[writer] || own.iter().any(|(_, input)| update != Some(*input)) {
                continue;
            }
            let readers = others.iter().map(|(step, _)| *step);
            let before: Vec<usize> = readers.chain([after.barrier]).collect();
            if after.reaches(writer, &before) {
                continue;
            }
            before.iter().for_each(|b| after.edge(*b, writer));
            home[value] = Some(port);
        }
    }
    Schedule { order: after.sorted(), home }
}

/// For each step whether it can fail.
fn fails(parts: &Parts) -> Vec<bool> {
    // Values all of whose elements lie within a range, once the steps before have succeeded.
    let mut within: HashSet<(usize, [i64; 2])> = HashSet::new();
    let fails = |step: &Part| {
        let Some(kernel) = parts.kernel_of(step) else { return step.work != Work::Copy };
        // The names of sizes are those of the kernel, not of the program.
        let known = |about: Checked| match about.range.map(Size::number) {
            [Some(from), Some(to)] => Some((step.inputs[about.input], [from, to])),
            _ => None,
        };
        let (checked, mut fails) = (kernel.checked(), false);
        for about in &checked {
            fails |= about.and_then(known).is_none_or(|known| !within.contains(&known));
        }
        let whole = checked.into_iter().flatten().filter(|about| about.whole);
        within.extend(whole.filter_map(known));
        fails
    };
    parts.steps.iter().map(fails).collect()
}

/// A step, and which of its inputs.
type Read = (usize, usize);

/// Who makes and who reads each value, so that nothing is looked for among all steps.
struct Uses {
    /// The step and which of its outputs.
    producer: Vec<Option<(usize, usize)>>,
    /// In the order of the steps.
    reads: Vec<SmallVec<[Read; 1]>>,
}

impl Uses {
    fn of(parts: &Parts) -> Self {
        let mut producer = vec![None; parts.values.len()];
        let mut reads = vec![SmallVec::new(); parts.values.len()];
        for (i, step) in parts.steps.iter().enumerate() {
            for (o, output) in step.outputs.iter().enumerate() {
                producer[*output] = Some((i, o));
            }
            for (n, input) in step.inputs.iter().enumerate() {
                reads[*input].push((i, n));
            }
        }
        Uses { producer, reads }
    }
}

/// What comes after what. The last number is a barrier behind all steps that can raise a check.
struct Order {
    next: Vec<Vec<usize>>,
    barrier: usize,
}

impl Order {
    fn of(parts: &Parts, uses: &Uses, fails: &[bool]) -> Self {
        let barrier = parts.steps.len();
        let mut order = Order { next: vec![Vec::new(); barrier + 1], barrier };
        // Recorded before it is waited for. Both follow each other in the order of the buckets,
        // which is the same on all ranks.
        let mut begun = vec![0; parts.buckets.len()];
        let mut finished = vec![0; parts.buckets.len()];
        for (i, step) in parts.steps.iter().enumerate() {
            for (from, _) in step.inputs.iter().filter_map(|v| uses.producer[*v]) {
                order.edge(from, i);
            }
            if fails[i] {
                order.edge(i, barrier);
            }
            match step.work {
                Work::Begin(bucket) => {
                    begun[bucket] = i;
                    if let Some(before) = bucket.checked_sub(1) {
                        order.edge(begun[before], i);
                    }
                }
                Work::Finish(bucket) => {
                    finished[bucket] = i;
                    order.edge(begun[bucket], i);
                    if let Some(before) = bucket.checked_sub(1) {
                        order.edge(finished[before], i);
                    }
                }
                Work::Kernel(_) | Work::Copy => {}
            }
        }
        order
    }

    fn edge(&mut self, from: usize, to: usize) {
        self.next[from].push(to);
    }

    fn reaches(&self, from: usize, targets: &[usize]) -> bool {
        let mut seen = vec![false; self.next.len()];
        let mut todo = vec![from];
        while let Some(at) = todo.pop() {
            if targets.contains(&at) {
                return true;
            }
            for &next in &self.next[at] {
                if !std::mem::replace(&mut seen[next], true) {
                    todo.push(next);
                }
            }
        }
        false
    }

    /// A topological order, of the possible steps always the one recorded first.
    fn sorted(&self) -> Vec<usize> {
        let mut waiting = vec![0usize; self.next.len()];
        self.next.iter().flatten().for_each(|to| waiting[*to] += 1);
        // The barrier is no step: it is passed as soon as it can be.
        let rank = |i: usize| Reverse(if i == self.barrier { 0 } else { i + 1 });
        let mut ready: BinaryHeap<Reverse<usize>> =
            (0..self.next.len()).filter(|i| waiting[*i] == 0).map(rank).collect();
        let mut order = Vec::with_capacity(self.barrier);
        while let Some(Reverse(rank_of)) = ready.pop() {
            let at = if rank_of == 0 { self.barrier } else { rank_of - 1 };
            if at != self.barrier {
                order.push(at);
            }
            for &next in &self.next[at] {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    ready.push(rank(next));
                }
            }
        }
        order
    }
}
