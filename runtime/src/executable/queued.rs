//! Runs on a device with a queue: a step is given as one group of commands, and from then on what
//! the store holds is pending.

use super::binding::Workspace;
use super::started::Started;
use super::{Clock, Executable, Given};
use crate::device::{FaultKind, Landing, Queue, SharedQueue, alloc};
use crate::error::{Error, Result};
use crate::layout::Place;
use crate::memory::{Memory, Span};
use crate::output_pool::OutputBuffer;
use crate::outputs::{Outputs, Values};
use crate::store::{Flight, Ready, Spare, Store};
use crate::submitted::{Input, Submitted};
use crate::tensor::Tensor;
use std::sync::Arc;

/// Where an output goes.
enum Target {
    Host(Landing),
    /// In memory of its own.
    Device(OutputBuffer),
}

/// What is asked of a step.
struct Wish<'a, 'i> {
    input: &'a dyn Fn(usize) -> Option<Input<'i>>,
    /// Makes the target of an output.
    target: &'a dyn Fn(usize) -> Result<Target>,
    /// Has others give up memory.
    make_room: &'a mut dyn FnMut(),
    clock: Option<&'a mut Clock>,
}

/// What a step needs that is about to be given.
struct Prepared {
    states: Vec<Ready>,
    workspace: Workspace,
    targets: Vec<Target>,
}

/// The step that is to be given.
struct Step<'a, 'i> {
    executable: &'a Executable,
    workspace: &'a Workspace,
    states: &'a [Ready],
    input: &'a dyn Fn(usize) -> Option<Input<'i>>,
    targets: &'a [Target],
}

impl Executable {
    /// Gives a step and does not wait for its end; its outputs stay on the device. They can be
    /// [inputs](Input) of other steps on this device, which then waits for nothing.
    ///
    /// On a device without a queue the step is done when this returns, and its outputs are on the
    /// host.
    ///
    /// # Errors
    /// As [`run`](Executable::run), as far as that is known now. How the step itself ends is told
    /// by whoever asks first: its [outputs](Submitted) or the [store](Store).
    pub fn submit(&self, store: &mut Store, inputs: &[(&str, Input<'_>)]) -> Result<Submitted> {
        let Some(queue) = self.device.queue() else {
            let host = |(name, input): &(_, Input<'_>)| Ok((*name, input.to_host()?));
            let host = inputs.iter().map(host).collect::<Result<Vec<(&str, Tensor)>>>()?;
            let host: Vec<(&str, &Tensor)> = host.iter().map(|(name, t)| (*name, t)).collect();
            return Ok(Submitted::on_host(self.run(store, &host)?));
        };
        self.runs_alone()?;
        let mut given = Given::new();
        self.inputs.find(&self.program.parts.ports, inputs, &mut given)?;
        let here = inputs.iter().map(|(_, input)| input.on(&self.device));
        let here = here.collect::<Result<Vec<_>>>()?;
        let input = |port: usize| given[port].map(|at| here[at].as_input());
        let _guard = self.device.enter()?;
        let target = |output: usize| {
            let bytes = self.output_type(output).bytes().get();
            Ok(Target::Device(self.output_pool.take(&*self.device, output, bytes)?))
        };
        let wish = Wish { input: &input, target: &target, make_room: &mut || (), clock: None };
        let (flight, targets) = self.give(queue, store, wish)?;
        let targets = targets.into_iter().enumerate().filter_map(|(output, target)| match target {
            Target::Device(buffer) => Some((self.output_type(output).clone(), buffer)),
            Target::Host(_) => None,
        });
        Ok(Submitted::on_device(self.output_names.clone(), targets, &self.device, &flight))
    }

    /// Gives a step; waits for it if it has outputs, or is timed.
    pub(super) fn run_queued<'i>(
        &self,
        queue: &SharedQueue,
        store: &mut Store,
        input: &dyn Fn(usize) -> Option<Input<'i>>,
        clock: Option<&mut Clock>,
        make_room: &mut dyn FnMut(),
    ) -> Result<Outputs> {
        let waits = clock.is_some() || !self.program.parts.outputs.is_empty();
        let started = self.start_queued(queue, store, input, clock, make_room)?;
        match waits {
            true => started.finish(store),
            false => Ok(Outputs::new(self.output_names.clone(), Values::new())),
        }
    }

    /// Gives a step whose outputs go to the host.
    pub(super) fn start_queued<'i>(
        &self,
        queue: &SharedQueue,
        store: &mut Store,
        input: &dyn Fn(usize) -> Option<Input<'i>>,
        clock: Option<&mut Clock>,
        make_room: &mut dyn FnMut(),
    ) -> Result<Started> {
        let target =
            |output| Ok(Target::Host(Landing::of(self.output_type(output).bytes().get())?));
        let (flight, targets) =
            self.give(queue, store, Wish { input, target: &target, make_room, clock })?;
        let output = |(output, target)| match target {
            Target::Host(landing) => Some((self.output_type(output).clone(), landing)),
            Target::Device(_) => None,
        };
        let outputs = targets.into_iter().enumerate().filter_map(output).collect();
        Ok(Started::in_flight(flight, self.output_names.clone(), outputs))
    }

    /// Gives a step: afterwards the store holds what it will have written.
    fn give(
        &self,
        queue: &SharedQueue,
        store: &mut Store,
        wish: Wish<'_, '_>,
    ) -> Result<(Arc<Flight>, Vec<Target>)> {
        store.admit(queue)?;
        let layout = &self.program.layout;
        let ports = &self.program.parts.ports;
        // What comes from elsewhere is read there, behind the steps that write it.
        let names = || layout.states.iter().map(|port| ports[*port].name.as_str());
        if names().any(|name| store.is_elsewhere(name, &self.device)) {
            store.synchronize()?;
        }
        let mut buffers = vec![None; layout.states.len()];
        for (buffer, state) in layout.fresh.iter().enumerate() {
            buffers[*state] = Some(buffer);
        }
        let Wish { input, target, make_room, clock } = wish;
        let Prepared { states, mut workspace, targets } =
            self.prepare_making_room(store, &buffers, target, make_room)?;
        workspace.fresh.iter().for_each(Memory::changed);
        let step = Step {
            executable: self,
            workspace: &workspace,
            states: &states,
            input,
            targets: &targets,
        };
        let before = &*store;
        let given = queue.give(&mut || step.may_begin(before), &mut step.commands(queue, clock));
        let flight = given.map(|group| Arc::new(Flight::new(queue, group.number)));
        if let Ok(flight) = &flight {
            for (number, state) in states.into_iter().enumerate() {
                let (to, spare) = match buffers[number] {
                    Some(buffer) => {
                        let fresh = workspace.fresh[buffer].clone();
                        let (memory, to) = (state.memory, self.spares.clone());
                        let spare = (!fresh.same(&memory)).then_some(Spare { memory, to, buffer });
                        (fresh, spare)
                    }
                    None if state.is_new => (state.memory, None),
                    None => continue,
                };
                let name = &ports[layout.states[number]].name;
                store.advance(name, (&self.device, to), flight, spare);
            }
            store.follow(flight);
        } else {
            let unused = workspace.fresh.iter().enumerate();
            unused.for_each(|(buffer, memory)| self.spares.give(buffer, memory.clone()));
        }
        // What comes next stands behind it in the queue, and may use the same memory.
        workspace.fresh.clear();
        self.arenas.give_back(workspace.arena.take());
        self.pool().workspaces.push(workspace);
        if flight.is_err() {
            store.settle()?;
        }
        Ok((flight?, targets))
    }

    /// Has what a step needs. If there is not enough memory, once more when steps that have ended
    /// have given up theirs, and then when others have.
    fn prepare_making_room(
        &self,
        store: &mut Store,
        buffers: &[Option<usize>],
        target: &dyn Fn(usize) -> Result<Target>,
        make_room: &mut dyn FnMut(),
    ) -> Result<Prepared> {
        let is_short = |error: &Error| match error {
            Error::Fault(fault) => matches!(fault.kind, FaultKind::OutOfMemory { .. }),
            _ => false,
        };
        let told = |error| self.short_of_memory(error);
        match self.prepare(store, buffers, target) {
            // What the steps before it tell stays theirs.
            Err(error) if is_short(&error) => store.synchronize()?,
            done => return done.map_err(told),
        }
        let again = match self.prepare(store, buffers, target) {
            Err(error) if is_short(&error) => {
                self.output_pool.clear();
                make_room();
                self.prepare(store, buffers, target)
            }
            done => done,
        };
        again.map_err(told)
    }

    /// Has what a step needs, which writes those states to these buffers.
    fn prepare(
        &self,
        store: &mut Store,
        buffers: &[Option<usize>],
        target: &dyn Fn(usize) -> Result<Target>,
    ) -> Result<Prepared> {
        let layout = &self.program.layout;
        let ports = &self.program.parts.ports;
        let fresh = layout.fresh.iter().enumerate().map(|(buffer, state)| {
            let bytes = ports[layout.states[*state]].ty.bytes().get();
            self.spares.take(buffer).map_or_else(|| alloc(&*self.device, bytes), Ok)
        });
        let fresh = fresh.collect::<Result<Vec<Memory>>>()?;
        let ready = layout.states.iter().enumerate().map(|(number, port)| {
            let port = &ports[*port];
            let buffer = buffers[number];
            // What is never read needs no memory besides that to which it is written.
            let next = buffer.filter(|_| !layout.is_read[number]).map(|buffer| &fresh[buffer]);
            store.ready(&port.name, &port.ty, &self.device, buffer.is_some(), next)
        });
        let states = ready.collect::<Result<Vec<Ready>>>()?;
        let targets = (0..layout.outputs.len()).map(target).collect::<Result<_>>()?;
        let memories: Vec<Memory> = states.iter().map(|state| state.memory.clone()).collect();
        let mut workspace = self.workspace(&memories, Some(fresh))?;
        self.reserve(&mut workspace)?;
        Ok(Prepared { states, workspace, targets })
    }
}

impl<'a> Step<'a, '_> {
    /// An error if something that it needs is known to have failed.
    fn may_begin(&self, store: &Store) -> Result<()> {
        store.unfailed()?;
        let ports = 0..self.executable.program.parts.ports.len();
        ports.filter_map(self.input).try_for_each(|input| input.unfailed())
    }

    /// Its commands, in order.
    fn commands(
        &'a self,
        queue: &'a SharedQueue,
        mut clock: Option<&'a mut Clock>,
    ) -> impl FnMut(&mut dyn Queue) -> Result<()> + 'a {
        move |line| {
            let layout = &self.executable.program.layout;
            let binding = &self.workspace.bindings[0];
            for state in self.states {
                if let Some(tensor) = &state.upload {
                    upload(line, tensor, &state.memory, 0)?;
                }
            }
            for (port, place) in layout.inputs.iter().enumerate() {
                let (Some(input), Some(Place::Arena(at))) = ((self.input)(port), place) else {
                    continue;
                };
                let arena = self.workspace.arena();
                match input.place() {
                    Ok(tensor) => upload(line, tensor, arena, *at)?,
                    Err(from) => {
                        let to = Span { memory: arena.clone(), at: *at, len: from.len };
                        line.copy(&from, &to)?;
                    }
                }
            }
            for (i, (command, step)) in binding.commands.iter().zip(&layout.steps).enumerate() {
                match &mut clock {
                    None => command.give(&step.name, line)?,
                    Some(clock) => clock.time(i, || {
                        command.give(&step.name, line)?;
                        queue.wait(line.record())
                    })?,
                }
            }
            let executable = self.executable;
            for (output, (place, target)) in layout.outputs.iter().zip(self.targets).enumerate() {
                let (memory, at) = executable.locate(*place, self.workspace, binding);
                let len = executable.output_type(output).bytes().get();
                let from = Span { memory: memory.clone(), at, len };
                match target {
                    _ if len == 0 => {}
                    Target::Host(landing) => line.download(&from, landing.clone())?,
                    Target::Device(buffer) => {
                        let memory = buffer.memory().clone();
                        line.copy(&from, &Span { memory, at: 0, len })?;
                    }
                }
            }
            Ok(())
        }
    }
}

/// Copies a tensor, whose bytes the queue holds until it has.
fn upload(line: &mut dyn Queue, tensor: &Tensor, to: &Memory, at: usize) -> Result<()> {
    let len = tensor.bytes().len();
    if len == 0 {
        return Ok(());
    }
    line.upload(tensor.clone().into(), &Span { memory: to.clone(), at, len })
}
