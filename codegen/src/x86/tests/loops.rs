//! Whole loops: they do what the table of capabilities promises, and are listed as assembly.

use super::is_sound;
use crate::machine::Width;
use crate::plan::phases::tests::{Sample, hold, samples};
use crate::plan::phases::{Capability, Lanes};
use crate::x86::{Compiled, RowScratch, Task, compile};

/// Compiles the vector phase of a sample.
fn compiled(width: Width, sample: &Sample, streams: bool) -> Result<Compiled, String> {
    let row = RowScratch { buffers: vec![0; sample.plan.buffers.len()], lanes: [(0, 256)].into() };
    compile(&Task {
        width,
        plan: &sample.plan,
        stage: &sample.plan.stages[0],
        cut: &sample.cut,
        phase: &sample.cut.phases[0],
        rows: vec![row],
        temporaries: 512,
        prefetched: Vec::new(),
        initialises: true,
        area: 512,
        streams,
    })
}

#[test]
fn vectors_do_what_the_table_promises() {
    for (width, lanes) in [
        (Width::Bits256, Lanes::Bits32),
        (Width::Bits512, Lanes::Bits32),
        (Width::Bits512, Lanes::Bits64),
    ] {
        hold(Capability { loops: width.loops(), lanes }, |sample| {
            let compiled = compiled(width, sample, true)?;
            is_sound(width, &compiled.bytes, compiled.instructions);
            Ok(())
        });
    }
}

/// The listings of some samples, each under its name.
fn listings() -> String {
    let listed = [
        (Width::Bits256, Lanes::Bits32, "mul_add of [F32, F32, F32] as f32", true),
        (Width::Bits256, Lanes::Bits32, "le of [I32, I32] as bool", false),
        (Width::Bits512, Lanes::Bits32, "storing bf16", false),
        (Width::Bits512, Lanes::Bits64, "sum of f64 along rows", false),
        (Width::Bits512, Lanes::Bits32, "max of f32 down columns", false),
    ];
    let mut text = String::new();
    for (width, lanes, name, streams) in listed {
        let samples = samples(Capability { loops: width.loops(), lanes });
        let sample =
            samples.iter().find(|sample| sample.name == name).expect("a sample of that name");
        let compiled = compiled(width, sample, streams).expect("it is promised");
        text.push_str(&format!("{name}\n{}\n", compiled.listing));
    }
    text
}

/// `TRACECAST_BLESS=1` writes the expectation.
#[test]
fn loops_are_listed_as_assembly() {
    let listings = listings();
    if std::env::var_os("TRACECAST_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/x86/tests/loops.txt");
        std::fs::write(path, &listings).expect("the expectation can be written");
        return;
    }
    assert_eq!(listings, include_str!("loops.txt").replace("\r\n", "\n"));
}
