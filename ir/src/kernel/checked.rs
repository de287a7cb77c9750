//! [`Kernel::checked`]: what the checks of a kernel are about, where that can be read from its
//! code.

use super::{Body, Form, Kernel, Load, Over, ScalarOp, Scatter, Val};
use crate::Size;
use smallvec::{SmallVec, smallvec};

/// Elements of an input that a check compares with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The input.
    pub input: usize,
    /// The range: from the first to before the second.
    pub range: [Size; 2],
    /// True if the kernel checks every element of the input whenever it runs.
    pub whole: bool,
}

impl Kernel {
    /// What each check is about; `None` for a check of something that is computed. A step whose
    /// checks another kernel makes as a whole cannot fail behind it.
    pub fn checked(&self) -> Vec<Option<Checked>> {
        // One check may serve several values.
        let mut found: Vec<SmallVec<[Option<Checked>; 1]>> = vec![smallvec![]; self.checks.len()];
        match &self.form {
            Form::Nest(nest) if nest.segments.len() == 1 => {
                for stage in &nest.stages {
                    let mut extents = nest.segments[0].extents.clone();
                    if let (Over::Once, Some(row)) = (stage.over, extents.last_mut()) {
                        *row = Size::from(1);
                    }
                    self.checked_by(&stage.body, &nest.loads, &extents, &mut found);
                }
            }
            Form::Scatter(scatter) => {
                let Scatter { body, loads, extents, .. } = scatter;
                self.checked_by(body, loads, extents, &mut found);
            }
            _ => {}
        }
        let one = |found: SmallVec<[Option<Checked>; 1]>| {
            let first = *found.first()?;
            first.filter(|_| found.iter().all(|other| *other == first))
        };
        found.into_iter().map(one).collect()
    }

    /// Adds what the checks of scalar code are about, which runs at each position of `extents`.
    fn checked_by(
        &self,
        body: &Body,
        loads: &[Load],
        extents: &[Size],
        found: &mut [SmallVec<[Option<Checked>; 1]>],
    ) {
        for inst in &body.insts {
            let ScalarOp::Check(check) = inst.op else { continue };
            let load = inst.args.get(1).and_then(|value| loaded(body, *value));
            let about = load.zip(self.checks[check as usize].range).map(|(load, range)| {
                let load = &loads[load];
                let whole = self.when.is_none() && self.reads_whole(load, extents);
                Checked { input: load.input, range, whole }
            });
            found[check as usize].push(about);
        }
    }

    /// True if the positions of loops read every element of an input.
    fn reads_whole(&self, load: &Load, extents: &[Size]) -> bool {
        let access = &load.access;
        let mut read = Size::from(1);
        for (&stride, &extent) in access.strides.iter().zip(extents).rev() {
            if extent == 1 || stride == 0 && extent.number().is_some_and(|n| n > 0) {
                continue;
            }
            if stride != read {
                return false;
            }
            read *= extent;
        }
        let direct = access.indirect.is_empty() && access.guards.is_empty();
        direct && access.offset == 0 && read == self.inputs[load.input].numel()
    }
}

/// The load whose element a value is, perhaps as another integer type.
fn loaded(body: &Body, value: Val) -> Option<usize> {
    let inst = &body.insts[value as usize];
    match inst.op {
        ScalarOp::Load(load) => Some(load as usize),
        ScalarOp::Convert => loaded(body, inst.args[0]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::Checked;
    use crate::kernel::build;

    /// What the checks of each op of a program are about, each op as a kernel.
    fn checked(body: &str) -> Vec<Vec<Option<Checked>>> {
        let ports = "%x: f32[9, 4], %i: i64[6, 4]";
        let graph = crate::text::parse(&format!("graph @g({ports}) {{\n{body}\n}}")).unwrap();
        let kernel = |n| build::single(&graph, n).unwrap().kernel;
        graph.nodes().skip(2).map(|n| kernel(n).checked()).collect()
    }

    #[test]
    fn a_gather_checks_all_indices() {
        let range = [0, 9].map(Into::into);
        let whole = Some(Checked { input: 0, range, whole: true });
        let gather = "%0 = gather %x, %i {dim = 0} : f32[6, 4]\nreturn y = %0";
        assert_eq!(checked(gather), [vec![whole]]);
    }

    #[test]
    fn a_check_of_something_computed_is_about_nothing() {
        let divides = "%0 = div_trunc %i, %i : i64[6, 4]\nreturn y = %0";
        assert_eq!(checked(divides), [vec![None]]);
    }
}
