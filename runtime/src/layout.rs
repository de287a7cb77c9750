//! Places in memory for a program's values, and its steps in terms of places.

use crate::arena::{Buffer, pack};
use crate::buckets::{Bucket, Work};
use crate::device::{Access, Device};
use crate::parts::{Line, Parts};
use crate::schedule::Schedule;
use std::fmt;
use std::sync::Arc;
use tracecast_ir::op::Exchange;

/// A scheduled program in terms of places.
pub(crate) struct Layout {
    /// In order.
    pub(crate) steps: Vec<Step>,
    /// The size of the arena.
    pub(crate) arena: usize,
    /// For each port that is an input and read by something, its place: in the arena or lent.
    pub(crate) inputs: Vec<Option<Place>>,
    /// Where each output lies after the steps.
    pub(crate) outputs: Vec<Place>,
    /// The state ports that are needed, in order; [`Place::State`] counts these.
    pub(crate) states: Vec<usize>,
    /// For each of these whether the program only reads it.
    pub(crate) only_read: Vec<bool>,
    /// For each of these whether a step or an output reads its memory.
    pub(crate) is_read: Vec<bool>,
    /// For each fresh buffer, the state it replaces (counted as in `states`) after the steps. Empty
    /// if state is updated in place.
    pub(crate) fresh: Vec<usize>,
    /// The first step that writes to the memory of a state; the number of steps if none does.
    pub(crate) first_write: usize,
    /// The number of loans. Inputs come first.
    pub(crate) loans: usize,
    /// Memory needed besides the state and the tensors that go in; the numbers that the program
    /// brings are part of it.
    pub(crate) peak_bytes: usize,
}

/// One launch.
pub(crate) struct Step {
    pub(crate) work: Work,
    pub(crate) name: Arc<str>,
    pub(crate) line: Line,
    pub(crate) operands: Vec<Operand>,
}

/// An operand of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    pub(crate) place: Place,
    pub(crate) bytes: usize,
    pub(crate) access: Access,
    /// See [`Arg::lasting`](crate::Arg::lasting).
    pub(crate) lasting: bool,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// At an offset of the arena.
    Arena(usize),
    /// In the memory of a state.
    State(usize),
    /// In the memory of numbers that the program brings.
    Data(usize),
    /// In the memory that will replace a state.
    Fresh(usize),
    /// In the tensor of an input, or in bytes that become an output.
    Lent(usize),
}

/// What a device can do, as far as places depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// State is updated in place, after the last kernel that can raise a check; otherwise fresh
    /// memory replaces it.
    pub(crate) in_place: bool,
    /// Kernels work on the memory of large inputs and outputs themselves; otherwise these are
    /// copied.
    pub(crate) loans: bool,
}

impl Abilities {
    /// Those of a device. Where some kernels run elsewhere, a launch may fail by a copy.
    pub(crate) fn of(device: &dyn Device, is_partly_away: bool) -> Self {
        let waits = device.queue().is_some() || is_partly_away;
        Abilities {
            in_place: device.launches_are_infallible() && !waits,
            loans: device.takes_loans() && !waits,
        }
    }
}

/// An input or output of fewer bytes is copied: that costs less than asking for its address at
/// every launch.
const LENT_FROM: usize = 64 * 1024;

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, n) = match self.place {
            Place::Arena(at) => ("arena", at),
            Place::State(i) => ("state", i),
            Place::Data(i) => ("data", i),
            Place::Fresh(i) => ("fresh", i),
            Place::Lent(i) => ("lent", i),
        };
        let sign = match self.access {
            Access::Read => "<",
            Access::Write => ">",
            Access::Update => "<>",
        };
        write!(f, "{sign}{place}[{n}; {}]", self.bytes)
    }
}

/// Gives every value a place and every step its operands.
///
/// In place, updates that the schedule gave no home are copied at the end, where no step can raise
/// a check. Otherwise each updated state gets fresh memory, to be put in its place afterwards.
pub(crate) fn layout(parts: &Parts, schedule: &Schedule, able: Abilities) -> Layout {
    let in_place = able.in_place;
    let mut placing = Placing::new(parts, schedule, in_place);
    let (loans, lent_bytes) = if able.loans { placing.lend() } else { (0, 0) };
    placing.buffers();
    let arena = placing.pack();
    let mut launches = Vec::with_capacity(schedule.order.len());
    for number in &schedule.order {
        let step = &placing.parts.steps[*number];
        // A kernel that makes nothing for these sizes is left out.
        let makes = step.outputs.iter().any(|value| placing.parts.bytes[*value] > 0);
        if makes || matches!(step.work, Work::Begin(_) | Work::Finish(_)) {
            placing.step(*number, &mut launches);
        }
    }
    placing.commit(&mut launches);
    let Placing { places, states, .. } = placing;
    let at = |value: usize| places[value].unwrap_or(Place::Arena(0));
    let is_input = |place: &Place| matches!(place, Place::Arena(_) | Place::Lent(_));
    let inputs = (0..parts.ports.len()).map(|p| places[p].filter(is_input)).collect();
    let outputs: Vec<Place> = parts.outputs.iter().map(|(_, v)| at(*v)).collect();
    let updated = parts.updates.iter().filter(|_| !in_place).map(|(port, _)| *port);
    let fresh: Vec<usize> = updated.filter_map(|port| states.binary_search(&port).ok()).collect();
    let fresh_bytes =
        fresh.iter().fold(0usize, |sum, s| sum.saturating_add(parts.bytes[states[*s]]));
    let data = parts.data.iter().map(|value| parts.bytes[*value]);
    let data_bytes = data.fold(0usize, usize::saturating_add);
    let mut only_read = vec![true; states.len()];
    for state in parts.updates.iter().filter_map(|(port, _)| states.binary_search(port).ok()) {
        only_read[state] = false;
    }
    let mut steps: Vec<Step> = launches.into_iter().map(|launch| launch.into_step(parts)).collect();
    let first_write = mark_lasting(&mut steps, &only_read, in_place);
    let mut is_read = vec![false; states.len()];
    let operands = steps.iter().flat_map(|step| &step.operands).map(|operand| operand.place);
    for place in operands.chain(outputs.iter().copied()) {
        if let Place::State(state) = place {
            is_read[state] = true;
        }
    }
    Layout {
        first_write,
        steps,
        arena,
        inputs,
        outputs,
        states,
        only_read,
        is_read,
        fresh,
        loans,
        peak_bytes: [arena, fresh_bytes, lent_bytes, data_bytes]
            .into_iter()
            .fold(0, usize::saturating_add),
    }
}

/// A state that a step updates lasts until then if the step reads it this often, as a recurrent
/// network reads its weights. A device copies it after a few reads, and gains by many later ones.
const MANY_READS: usize = 32;

/// Marks [lasting](crate::Arg::lasting) operands; of updated state only if that happens in place.
/// Returns the first step that writes state; the number of steps if none does.
fn mark_lasting(steps: &mut [Step], only_read: &[bool], in_place: bool) -> usize {
    let mut reads = vec![0; only_read.len()];
    let mut written_at = vec![steps.len(); only_read.len()];
    for (number, step) in steps.iter().enumerate() {
        for operand in &step.operands {
            match operand.place {
                Place::State(state) if operand.access == Access::Read => reads[state] += 1,
                Place::State(state) => written_at[state] = written_at[state].min(number),
                _ => {}
            }
        }
    }
    for (number, step) in steps.iter_mut().enumerate() {
        for operand in &mut step.operands {
            operand.lasting = match operand.place {
                Place::State(state) if !only_read[state] => {
                    in_place && reads[state] >= MANY_READS && number < written_at[state]
                }
                Place::State(_) | Place::Data(_) => true,
                _ => false,
            };
        }
    }
    written_at.into_iter().min().unwrap_or(steps.len())
}

/// A step to be.
enum Launch {
    /// A step of the program with its operands.
    Step(usize, Vec<Operand>),
    /// A copy of that many bytes.
    Copy(Place, Place, usize),
}

impl Launch {
    fn into_step(self, parts: &Parts) -> Step {
        let (work, name, line, operands) = match self {
            Launch::Step(number, operands) => {
                let part = &parts.steps[number];
                (part.work, part.name.as_str(), part.line.clone(), operands)
            }
            Launch::Copy(from, to, bytes) => {
                let operand = |place, access| Operand { place, bytes, access, lasting: false };
                let operands = vec![operand(from, Access::Read), operand(to, Access::Write)];
                (Work::Copy, "", Line::default(), operands)
            }
        };
        let name = match work {
            Work::Copy => format!("copy_{}", operands.first().map_or(0, |from| from.bytes)).into(),
            _ => name.into(),
        };
        Step { work, name, line, operands }
    }
}

/// Places while they are being found.
struct Placing<'a> {
    parts: &'a Parts,
    schedule: &'a Schedule,
    in_place: bool,
    states: Vec<usize>,
    /// For each value, the last step that needs it, counted along the schedule.
    last: Vec<Option<usize>>,
    places: Vec<Option<Place>>,
    buffers: Vec<Buffer>,
    /// For each value, its buffer of the arena.
    buffer_of: Vec<Option<usize>>,
}

impl<'a> Placing<'a> {
    fn new(parts: &'a Parts, schedule: &'a Schedule, in_place: bool) -> Self {
        let count = parts.values.len();
        let mut last = vec![None; count];
        for (time, &step) in schedule.order.iter().enumerate() {
            parts.steps[step].inputs.iter().for_each(|v| last[*v] = Some(time));
            // Ranks that see each other's memory read the operands only now.
            if let Work::Finish(bucket) = parts.steps[step].work {
                let operands = parts.buckets[bucket].members.iter().map(|(operand, _)| *operand);
                operands.for_each(|operand| last[operand] = Some(time));
            }
        }
        let end = Some(schedule.order.len());
        parts.outputs.iter().for_each(|(_, v)| last[*v] = end);
        parts
            .updates
            .iter()
            .filter(|(_, v)| schedule.home[*v].is_none())
            .for_each(|(_, v)| last[*v] = end);
        let mut updated = vec![false; parts.ports.len()];
        parts.updates.iter().for_each(|(port, _)| updated[*port] = true);
        let needed = |port: &usize| last[*port].is_some() || updated[*port];
        let states: Vec<usize> =
            (0..parts.ports.len()).filter(|p| parts.is_state(*p)).filter(needed).collect();
        let mut places = vec![None; count];
        for (number, port) in states.iter().enumerate() {
            places[*port] = Some(Place::State(number));
        }
        for (number, value) in parts.data.iter().enumerate() {
            places[*value] = Some(Place::Data(number));
        }
        for (fresh, (_, value)) in parts.updates.iter().enumerate() {
            places[*value] = match schedule.home[*value] {
                _ if !in_place => Some(Place::Fresh(fresh)),
                Some(port) => places[port],
                None => None,
            };
        }
        Placing {
            parts,
            schedule,
            in_place,
            states,
            last,
            places,
            buffers: Vec::new(),
            buffer_of: vec![None; count],
        }
    }

    /// Lends the large inputs that something reads, and room for the large outputs. The number of
    /// loans, and the bytes of the outputs.
    fn lend(&mut self) -> (usize, usize) {
        let (mut loans, mut bytes) = (0, 0usize);
        // The device copies what ranks exchange, from memory of its own.
        let mut exchanged = vec![false; self.parts.values.len()];
        for (operand, result) in self.parts.buckets.iter().flat_map(|b| &b.members) {
            (exchanged[*operand], exchanged[*result]) = (true, true);
        }
        let ports = (0..self.parts.ports.len()).filter(|p| self.last[*p].is_some());
        let outputs = self.parts.outputs.iter().map(|(_, value)| *value);
        for value in ports.chain(outputs) {
            let size = self.parts.bytes[value];
            if exchanged[value] {
                continue;
            }
            if self.places[value].is_none() && size >= LENT_FROM {
                self.places[value] = Some(Place::Lent(loans));
                loans += 1;
                bytes = bytes.saturating_add(if value < self.parts.ports.len() { 0 } else { size });
            }
        }
        (loans, bytes)
    }

    /// Buffers of the arena for inputs, and for results that have no place yet. A result that may
    /// replace an operand in place does so if it is the last use of that operand.
    fn buffers(&mut self) {
        for port in 0..self.parts.ports.len() {
            if let (None, Some(to)) = (self.places[port], self.last[port]) {
                self.buffer(port, 0, to);
            }
        }
        for (time, &number) in self.schedule.order.iter().enumerate() {
            let step = &self.parts.steps[number];
            for (o, &value) in step.outputs.iter().enumerate() {
                if self.places[value].is_some() {
                    continue;
                }
                let to = self.last[value].unwrap_or(time);
                match self.dying_operand(number, o, time) {
                    Some(buffer) => {
                        self.buffers[buffer].to = to;
                        self.buffer_of[value] = Some(buffer);
                    }
                    None => self.buffer(value, time, to),
                }
            }
        }
    }

    fn buffer(&mut self, value: usize, from: usize, to: usize) {
        self.buffer_of[value] = Some(self.buffers.len());
        self.buffers.push(Buffer { bytes: self.parts.bytes[value], from, to });
    }

    /// The buffer that output `o` of a step may take over.
    fn dying_operand(&self, number: usize, o: usize, time: usize) -> Option<usize> {
        let step = &self.parts.steps[number];
        if let Work::Finish(bucket) = step.work {
            return self.reduced_operand(&self.parts.buckets[bucket], step.outputs[o], time);
        }
        let outputs = &self.parts.kernel_of(step)?.outputs;
        let input = outputs[o].update?;
        let buffer = self.buffer_of[step.inputs[input]]?;
        if self.last[step.inputs[input]] != Some(time) || self.buffers[buffer].to != time {
            return None;
        }
        let alone = outputs.iter().filter(|other| other.update == Some(input)).count() == 1
            && step.inputs.iter().filter(|v| **v == step.inputs[input]).count() == 1;
        alone.then_some(buffer)
    }

    /// The buffer of the operand that a bucket has for a result, if nothing else needs it: it is
    /// reduced in place.
    fn reduced_operand(&self, bucket: &Bucket, result: usize, time: usize) -> Option<usize> {
        let (operand, _) = bucket.members.iter().find(|(_, to)| *to == result)?;
        let buffer = self.buffer_of[*operand]?;
        let dies = self.last[*operand] == Some(time) && self.buffers[buffer].to == time;
        let count = bucket.members.iter().filter(|(other, _)| other == operand).count();
        (bucket.what == Exchange::AllReduce && dies && count == 1).then_some(buffer)
    }

    fn pack(&mut self) -> usize {
        let (offsets, total) = pack(&self.buffers);
        for (place, buffer) in self.places.iter_mut().zip(&self.buffer_of) {
            if let Some(buffer) = buffer {
                *place = Some(Place::Arena(offsets[*buffer]));
            }
        }
        total
    }

    fn place(&self, value: usize) -> Place {
        self.places[value].unwrap_or(Place::Arena(0))
    }

    /// The launch of a step. A predicated kernel leaves its outputs alone in a step that it skips,
    /// so those that are not in the place of what they update are given its contents first.
    fn step(&self, number: usize, launches: &mut Vec<Launch>) {
        let step = &self.parts.steps[number];
        let kernel = self.parts.kernel_of(step);
        let operand = |v: &usize, access| Operand {
            place: self.place(*v),
            bytes: self.parts.bytes[*v],
            access,
            lasting: false,
        };
        let mut inputs: Vec<Operand> = Vec::with_capacity(step.inputs.len() + step.outputs.len());
        inputs.extend(step.inputs.iter().map(|v| operand(v, Access::Read)));
        let mut outputs: Vec<Operand> =
            step.outputs.iter().map(|v| operand(v, Access::Write)).collect();
        for (operand, output) in outputs.iter_mut().zip(kernel.iter().flat_map(|k| &k.outputs)) {
            if let Some(input) = output.update.map(|i| &mut inputs[i]).filter(|_| operand.bytes > 0)
            {
                if input.place == operand.place {
                    (input.access, operand.access) = (Access::Update, Access::Update);
                } else if kernel.is_some_and(|kernel| kernel.when.is_some()) {
                    launches.push(Launch::Copy(input.place, operand.place, operand.bytes));
                    operand.access = Access::Update;
                }
            }
        }
        inputs.extend(outputs);
        launches.push(Launch::Step(number, inputs));
    }

    /// Copies of the updates that are not made in place.
    fn commit(&self, launches: &mut Vec<Launch>) {
        let left = self
            .parts
            .updates
            .iter()
            .filter(|(_, v)| self.in_place && self.schedule.home[*v].is_none());
        launches.extend(left.map(|(port, v)| {
            Launch::Copy(self.place(*v), self.place(*port), self.parts.bytes[*v])
        }));
    }
}
