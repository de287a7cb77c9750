//! The order of a program's steps, and which state is updated in place.

use crate::program::Parts;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The order of the steps, and where updates are made.
pub(crate) struct Schedule {
    /// Numbers of steps.
    pub(crate) order: Vec<usize>,
    /// For each value, the state port whose memory it is written to.
    pub(crate) home: Vec<Option<usize>>,
}

/// Orders the steps as they were recorded, except that steps which update state in place wait for every step that reads the old state
/// or can raise a check. An update that cannot wait for them is not made in place.
pub(crate) fn schedule(parts: &Parts, in_place: bool) -> Schedule {
    let mut after = Order::of(parts);
    let mut home = vec![None; parts.values.len()];
    if in_place {
        for &(port, value) in &parts.updates {
            let Some(writer) = parts.steps.iter().position(|s| s.outputs.contains(&value)) else {
                continue;
            };
            if !may_write_in_place(parts, writer, port, value) {
                continue;
            }
            let readers = parts
                .steps
                .iter()
                .enumerate()
                .filter(|(i, s)| *i != writer && s.inputs.contains(&port));
            let before: Vec<usize> = readers.map(|(i, _)| i).chain([after.barrier]).collect();
            if after.reaches(writer, &before) {
                continue;
            }
            before.iter().for_each(|b| after.edge(*b, writer));
            home[value] = Some(port);
        }
    }
    Schedule { order: after.sorted(), home }
}

/// True if the step itself does not mind: it raises no check, and reads the old state only where it writes the new one.
fn may_write_in_place(parts: &Parts, writer: usize, port: usize, value: usize) -> bool {
    let step = &parts.steps[writer];
    let kernel = &parts.kernels[step.kernel];
    let output = step.outputs.iter().position(|o| *o == value);
    let update = output.and_then(|o| kernel.outputs[o].update);
    let reads: Vec<usize> = (0..step.inputs.len()).filter(|i| step.inputs[*i] == port).collect();
    let only_there = match reads.as_slice() {
        [] => true,
        [read] => update == Some(*read),
        _ => false,
    };
    kernel.checks.is_empty() && only_there
}

/// What comes after what. The last number is a barrier behind all steps that can raise a check.
struct Order {
    next: Vec<Vec<usize>>,
    barrier: usize,
}

impl Order {
    fn of(parts: &Parts) -> Self {
        let barrier = parts.steps.len();
        let mut order = Order { next: vec![Vec::new(); barrier + 1], barrier };
        let mut producer = vec![None; parts.values.len()];
        for (i, step) in parts.steps.iter().enumerate() {
            for output in &step.outputs {
                producer[*output] = Some(i);
            }
        }
        for (i, step) in parts.steps.iter().enumerate() {
            for from in step.inputs.iter().filter_map(|v| producer[*v]) {
                order.edge(from, i);
            }
            if !parts.kernels[step.kernel].checks.is_empty() {
                order.edge(i, barrier);
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
