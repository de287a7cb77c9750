//! Programs that are wide: what many numbers, operands, ports and rules take from the trace, or
//! from text, to code.

use crate::{Failure, Verdict, tell};
use std::time::{Duration, Instant};
use tracecast::Graph;
use tracecast::ir::ops;
use tracecast::ir::ops::view::cat;
use tracecast::ir::policy::{Policy, PolicySet, Target, review};
use tracecast::ir::text::{self, did_you_mean};
use tracecast::prelude::*;

/// Tries, of which the fastest counts.
const TRIES: usize = 5;

/// Measures; see the module.
pub(crate) fn run(few: bool) -> Verdict {
    let many = |count: usize| if few { count / 100 } else { count };
    let (numbers, operands, ports, rules) =
        (many(1_000_000), many(5_000), many(20_000), many(20_000));
    let table: Vec<f64> = (0..numbers).map(|i| (i % 1000) as f64 * 0.25).collect();
    let written = constant(&table)?.to_string();
    let wide = ported(ports)?.to_string();
    let set = ruled(rules);
    let file = set.to_toml();
    let rows: [(&str, f64, Compile<'_>); 7] = [
        ("1,000,000 numbers of a constant, from Rust", 0.05, &mut || compiled(constant(&table)?)),
        ("the same from text", 0.5, &mut || compiled(text::parse(&written)?)),
        ("cat of 5,000 operands", 1.0, &mut || compiled(concatenated(operands)?)),
        ("20,000 ports, from Rust", 1.0, &mut || compiled(ported(ports)?)),
        ("the same from text", 1.0, &mut || compiled(text::parse(&wide)?)),
        ("20,000 rules over a program of 200 ops", 1.0, &mut || under(&set)),
        ("a file of 20,000 rules, read and checked", 1.0, &mut || checked(&file)),
    ];
    println!("{:<44}{:>10}{:>10}", "ms, the least of some", "took", "wanted");
    let mut well = true;
    for (what, most, compile) in rows {
        let took = best(compile)?.as_secs_f64();
        println!("{what:<44}{:>10.1}{:>10.0}", took * 1e3, most * 1e3);
        well &= took <= most;
    }
    let well = tell(few || well, "what is wide is compiled in time");
    Ok(at_speed(&table, few)? && well)
}

/// Compiles something that is wide.
type Compile<'a> = &'a mut dyn FnMut() -> Result<(), Failure>;

fn best(body: &mut dyn FnMut() -> Result<(), Failure>) -> Result<Duration, Failure> {
    let mut least = Duration::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        body()?;
        least = least.min(start.elapsed());
    }
    Ok(least)
}

fn options() -> Options {
    Options::new().threads(1)
}

fn compiled(graph: Graph) -> Result<(), Failure> {
    compile(graph, &options())?;
    Ok(())
}

fn line(count: usize) -> TensorType {
    TensorType::new(DType::F32, [count])
}

fn constant(numbers: &[f64]) -> tracecast::Result<Graph> {
    trace("table", |t| {
        let table = t.constant(DType::F32, &[numbers.len()], numbers);
        t.output("y", t.input_of("x", line(numbers.len())) + table);
    })
}

fn concatenated(count: usize) -> tracecast::Result<Graph> {
    trace("wide", |t| {
        let input = |i: usize| t.input_of(&format!("x{i}"), line(1 + i % 2));
        t.output("y", cat(&(0..count).map(input).collect::<Vec<Var<'_>>>(), 0));
    })
}

/// Half of the ports are inputs, half parameters; each is summed up and given.
fn ported(count: usize) -> tracecast::Result<Graph> {
    trace("ports", |t| {
        for i in 0..count {
            let name = format!("p{i}");
            let port =
                if i % 2 == 0 { t.input_of(&name, line(2)) } else { t.param_of(&name, line(2)) };
            t.output(&format!("y{i}"), port);
        }
    })
}

/// Rules about nodes, modules and ops, none of which is there.
fn ruled(count: usize) -> PolicySet {
    let mut set = PolicySet::standard();
    for i in 0..count {
        let target = match i % 4 {
            0 => Target::Node(format!("layer{i}/matmul#0")),
            1 => Target::Module(format!("layer{i}.attention")),
            2 => Target::Module(format!("layer{i}.*")),
            _ => Target::Op(format!("own_op_{i}")),
        };
        set.add_rule(target, None, Policy::Fp32);
    }
    set
}

fn under(set: &PolicySet) -> Result<(), Failure> {
    let options = options().with_policies(set.clone());
    let graph = tracecast::trace_with("ruled", &options, |t| {
        let x = t.input_of("x", TensorType::new(DType::F32, [8, 8]));
        let y = autocast(t, "cpu", DType::BF16, || (0..100).fold(x, |x, _| x.matmul(x).tanh()));
        t.output("y", y);
    })?;
    compile(graph, &options)?;
    Ok(())
}

fn checked(file: &str) -> Result<(), Failure> {
    let hint = |name: &str, known: &mut dyn Iterator<Item = &str>| did_you_mean(name, known);
    review(file, &ops::known(), &hint)?;
    Ok(())
}

/// A sum with a constant takes as long as one with an input.
fn at_speed(numbers: &[f64], few: bool) -> Verdict {
    let both = trace("both", |t| {
        let ty = line(numbers.len());
        t.output("y", t.input_of("x", ty.clone()) + t.input_of("table", ty));
    })?;
    let (own, given) = (compile(constant(numbers)?, &options())?, compile(both, &options())?);
    let [x, table] = [Tensor::rand([numbers.len()], 1)?, Tensor::rand([numbers.len()], 2)?];
    let mut store = Store::new();
    let mut time = |program: &tracecast::Executable| {
        best(&mut || {
            for _ in 0..20 {
                program.run(&mut store, &[("x", &x), ("table", &table)])?;
            }
            Ok(())
        })
    };
    let (own, given) = (time(&own)?.as_secs_f64(), time(&given)?.as_secs_f64());
    let wanted = format!(
        "a sum with a constant takes {:.2} × the time of one with an input, wanted 1.1",
        own / given
    );
    Ok(tell(few || own <= 1.1 * given, &wanted))
}
