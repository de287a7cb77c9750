//! The emitter of vectors of 128 bits does what the table of capabilities promises, and nothing
//! else.

use super::emitter::{Choices, Emitter};
use super::row::Row;
use super::signature;
use crate::machine::Vectors;
use crate::plan::numbers::SizeTable;
use crate::plan::phases::tests::{Sample, hold};
use crate::plan::phases::{Capability, Lanes, VectorLoops};
use crate::target::{Target, target};
use cranelift::codegen::ir::Function;
use cranelift::codegen::verify_function;
use cranelift::prelude::{FunctionBuilder, FunctionBuilderContext, InstBuilder};

/// The vector phase of a sample, as Cranelift's verifier takes it.
fn emits(target: &Target, sample: &Sample) -> Result<(), String> {
    let mut function = Function::new();
    function.signature = signature(target.isa.default_call_conv());
    let mut context = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut function, &mut context);
    let choices = Choices { rows: 1, streams: false, prefetches: false, takes_ahead: false };
    let table = SizeTable::default();
    let mut emitter = Emitter::new(builder, target, (&sample.plan, choices), &table);
    let mut row = Row::new(&emitter, &sample.plan.stages[0], &sample.cut);
    row.once_per_row(&mut emitter);
    let (from, to) = (emitter.from, emitter.to);
    row.positions(&mut emitter, from, to);
    emitter.fb.ins().return_(&[]);
    let Emitter { mut fb, failed, .. } = emitter;
    fb.seal_all_blocks();
    fb.finalize(target.isa.frontend_config());
    match failed {
        Some(what) => Err(what),
        None => verify_function(&function, &*target.isa).map_err(|e| e.to_string()),
    }
}

#[test]
fn vectors_do_what_the_table_promises() {
    let portable = target(Vectors::Portable).unwrap();
    assert_eq!(portable.vector_width, None);
    for floor in [false, true] {
        let (isa, identity) = (portable.isa.clone(), portable.identity.clone());
        let target = Target { isa, identity, floor, ..portable };
        let can = Capability { loops: target.vector_loops(), lanes: Lanes::Bits32 };
        assert_eq!(can.loops, VectorLoops::Cranelift { floor });
        hold(can, |sample| emits(&target, sample));
    }
}
